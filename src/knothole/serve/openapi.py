"""The OpenAPI description of a model's server."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from knothole.columns.columns import Kind, Variable
from knothole.serve.questions import MOST_QUANTILES, MOST_ROWS, Questions
from knothole.serve.rows import UNRECORDED

#: Levels that the description lists; of more it gives the first as examples.
LISTED = 100
_ERRORS = {
    "401": "the token is absent or wrong",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "421": "the Host header names another server",
    "422": "a row or an option is wrong: the message names the field, the rule and what came",
    "503": "too many requests, or no answer in time",
}


def description(questions: Questions) -> dict[str, Any]:
    """What may be asked, and what comes back."""
    row = {
        "type": "object",
        "additionalProperties": False,
        "description": "What is known of a row. A key that is absent, or null, is unknown.",
        "properties": {
            variable.name: _field(variable) for variable in questions.fields.variables.values()
        },
    }
    more: dict[str, Any] = {
        "std": {"type": "boolean", "description": "The spread that the holes cause."},
        "quantiles": {
            "type": "array",
            "items": {"type": "number", "minimum": 0, "maximum": 1},
            "maxItems": MOST_QUANTILES,
            "description": "Quantiles of the prediction over what the holes could be.",
        },
        "interval": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "Coverage of an interval for y; the model must be calibrated.",
        },
        "usual": {
            "type": "boolean",
            "description": "The share of rows that are less likely than this one.",
        },
    }
    answers = questions.by_name()
    paths = {
        f"/{name}": _path(str(answer.__doc__), _body(name, more if name == "predict" else {}))
        for name, answer in answers.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{questions.model.model_name_}, rows with holes",
                 "version": version("knothole")},
        "paths": paths,
        "components": {
            "schemas": {"Row": row},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }  # fmt: skip


def _field(variable: Variable) -> dict[str, Any]:
    if variable.kind is Kind.CATEGORICAL:
        levels = [level for level in variable.levels if level is not None]
        levels += [UNRECORDED] if variable.nullable else []
        plain = [x if isinstance(x, str | int | float | bool) else str(x) for x in levels]
        return {"enum": [*plain, None]} if len(plain) <= LISTED else {"examples": plain[:LISTED]}
    number = "integer" if variable.kind is Kind.INTEGER else "number"
    if variable.nullable:
        return {"anyOf": [{"type": [number, "null"]}, {"const": UNRECORDED}]}
    return {"type": [number, "null"]}


def _body(name: str, more: dict[str, Any]) -> dict[str, Any]:
    rows = {
        "type": "array",
        "items": {"$ref": "#/components/schemas/Row"},
        "maxItems": MOST_ROWS[name],
    }
    return {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {"rows": rows, **more},
    }


def _path(summary: str, body: dict[str, Any]) -> dict[str, Any]:
    def content(schema: dict[str, Any]) -> dict[str, Any]:
        return {"application/json": {"schema": schema}}

    wrong = {"type": "object", "properties": {"error": {"type": "string"}}}
    refused = {
        code: {"description": what, "content": content(wrong)} for code, what in _ERRORS.items()
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": content(body)},
            "responses": {
                "200": {"description": "the answers, one for each row",
                        "content": content({"type": "object"})},
                **refused,
            },
        }
    }  # fmt: skip
