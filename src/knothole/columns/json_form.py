"""Columns and their levels as plain values for JSON, and back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict
from typing import Any

import numpy as np

from knothole.checks import check_type, require
from knothole.columns.columns import Block, Column, Columns, Kind, Variable
from knothole.columns.levels import HashedLevel
from knothole.errors import DamagedFile, InvalidInput


def describe_columns(columns: Columns) -> dict[str, Any]:
    """For JSON; the inverse of :func:`columns_from`."""
    return {
        "columns": [describe_column(column) for column in columns],
        "blocks": [[block.name, list(block.columns), block.baseline] for block in columns.blocks],
        "named": columns.named,
    }


def columns_from(description: dict[str, Any]) -> Columns:
    """From JSON."""
    columns = tuple(map(column_from, description["columns"]))
    for name, at, baseline in description["blocks"]:
        check_type("the name of a block", name, str)
        check_type("the baseline of a block", baseline, bool)
        for position in at:
            check_type("a position of a block", position, int)
            numeric = not columns[position].levels
            require(numeric, f"{columns[position].name!r} has levels, and is no dummy")
    blocks = tuple(Block(name, tuple(at), baseline) for name, at, baseline in description["blocks"])
    check_type("named", description["named"], bool)
    return Columns(columns, blocks, description["named"])


def describe_column(column: Column | Variable) -> dict[str, Any]:
    """For JSON; the inverse of :func:`column_from`."""
    return {
        "name": column.name,
        "kind": column.kind.value,
        "levels": [describe_level(level, column.name) for level in column.levels],
        "nullable": column.nullable,
    }


def column_from(description: dict[str, Any]) -> Column:
    """From JSON."""
    name, kind, nullable = (description[key] for key in ("name", "kind", "nullable"))
    levels = tuple(level_from(level) for level in description["levels"])
    check_type("the name of a column", name, str)
    check_type(f"nullable of {name!r}", nullable, bool)
    distinct = len({(type(level), level) for level in levels}) == len(levels)
    require(distinct, f"{name!r} must have each of its levels once")
    fits = Kind(kind) is Kind.CATEGORICAL or not levels
    require(fits, f"{name!r} is {kind}, and must have no levels")
    return Column(name, Kind(kind), levels, nullable)


def describe_level(level: Hashable, column: str) -> list[Any]:
    """A level with the name of its type: 1, 1.0, True and "1" are different ones."""
    if isinstance(level, np.generic):
        level = level.item()
    if level is None or type(level) in (bool, int, str):
        return [type(level).__name__, level]
    if type(level) is float:
        return ["float", level.hex()]
    if isinstance(level, HashedLevel):
        return [type(level).__name__, asdict(level)]
    raise InvalidInput(
        f"column {column!r} has a level of type {type(level).__name__}, {level!r}; only text, "
        f"numbers, booleans and None can be stored."
    )


def level_from(description: list[Any]) -> Hashable:
    """From JSON."""
    kind, value = description
    if kind == "float":
        return float.fromhex(value)
    if kind == HashedLevel.__name__:
        hashed = HashedLevel(**value)
        check_type("a hash", hashed.hash, int)
        check_type("text of a category", hashed.text, str, type(None))
        check_type("searched", hashed.searched, bool)
        return hashed
    level: Hashable = value
    if type(level).__name__ != kind:
        raise DamagedFile(f"level {value!r} is not of type {kind}.")
    return level
