"""JSON questions about a wrapped model, its answers as JSON, and what the page needs to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.columns.columns import Kind, Variable
from knothole.columns.evidence import Evidence
from knothole.columns.read import shortened
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.serve.rows import Fields
from knothole.trees.classes import label, of_label

#: Rows that one question may be about.
MOST_ROWS = {"predict": 1000, "explain": 16, "acquire": 16}
MOST_QUANTILES = 200
#: Rows drawn from the density that show what is usual.
DRAWS = 1024
BINS = 32
#: Levels that a list shows, the most frequent ones.
MOST_LEVELS = 500


@dataclass(frozen=True, eq=False)
class Questions:
    """A model that is asked in JSON.

    Parameters
    ----------
    model : Robust
    cost : mapping, optional
        What finding out a variable costs, for ``acquire``.
    """

    model: Any  # a Robust: its module is above this one
    cost: Mapping[str, float] | None = None

    @cached_property
    def fields(self) -> Fields:
        """The keys of rows."""
        return Fields(self.model.expectation_.columns)

    @cached_property
    def drawn(self) -> Floats:
        """Rows drawn from the density, (draws, variables): what is typical under it."""
        expectation = self.model.expectation_
        evidence = expectation.evidence_of(np.full((1, len(expectation.columns)), np.nan))
        drawn: Floats = expectation.density.complete_points(evidence, DRAWS, expectation.seed)[0]
        return drawn

    @cached_property
    def classes(self) -> list[str] | None:
        """Labels of a classifier of one target."""
        classes = self.model.expectation_.original.classes
        if classes is None or any(isinstance(label, tuple) for label in classes):
            return None
        return [str(label) for label in classes]

    def form(self) -> dict[str, Any]:
        """What the page shows before anything is asked."""
        return {
            "model": self.model.model_name_,
            "version": version("knothole"),
            "variables": self.controls(),
            "classes": self.classes,
            "outputs": self.model.expectation_.original.n_outputs,
            "conformalized": self.model.conformal_ is not None,
            "cost": dict(self.cost or {}),
        }

    def controls(self) -> list[dict[str, Any]]:
        """One control of the page for every variable, in the model's order."""
        variables = self.model.expectation_.columns.variables
        auxiliary = self.fields.columns.auxiliary
        return [
            _control(variable, self.drawn[:, v])
            | {"auxiliary": bool(auxiliary[list(variable.columns)].all())}
            for v, variable in enumerate(variables)
        ]

    def typicality(self, evidence: Evidence) -> list[float | None]:
        """The share of drawn rows that are less likely than each row, in what is known of it.

        None for a row of which nothing is known, and under a density of the user's own, which
        does not tell how likely a row is.
        """
        density: Any = self.model.expectation_.density
        if not isinstance(density, Density):
            return [None] * len(evidence.points)
        own = density.log_evidence(evidence)
        shares: list[float | None] = []
        for row, log_p in zip(evidence.points, own, strict=True):
            known = ~np.isnan(row)
            if not known.any():
                shares.append(None)
                continue
            others = density.log_evidence(Evidence(np.where(known, self.drawn, np.nan)))
            shares.append(float(np.mean(others < log_p)))
        return shares

    def lost(self, evidence: Evidence) -> list[dict[str, float]]:
        """The probability that each missing value was lost, by variable, for each row."""
        names = [variable.name for variable in self.fields.columns.variables]
        found = self.model.expectation_.lost_probability(evidence)
        return [
            {name: p for name, p in zip(names, row, strict=True) if np.isfinite(p)}
            for row in found.tolist()
        ]

    def predict(self, question: Any) -> dict[str, Any]:
        """Predictions of rows, with their errors; on request spreads, quantiles and more."""
        asked = _asked(question, ("rows", "std", "quantiles", "interval", "set", "usual", "lost"))
        std, usual, lost = (_flag(asked, name) for name in ("std", "usual", "lost"))
        levels, interval = _levels(asked.get("quantiles")), _share(asked.get("interval"))
        of_set = _share(asked.get("set"), "set")
        known, robust = self._known(asked, "predict"), self.model
        names = ("prediction", "std", "error", "std_error") if std else ("prediction", "error")
        if self.classes is None:
            answer = robust.predict(known, return_std=std, return_error=True)
            parts = dict(zip(names, answer, strict=True))
        else:
            shares, *beside = robust.predict_proba(known, return_std=std, return_error=True)
            answer = label(robust.ensemble_, [shares]), *(of_label([shares], [b]) for b in beside)
            parts = dict(zip(names, answer, strict=True)) | {"probabilities": shares}
        if levels is not None:
            found = robust.predict(known, quantiles=levels)
            # Of a single quantile, a quantile forest gives one number a row.
            parts["quantiles"] = found[:, None] if found.ndim == 1 else found
        if interval is not None:
            parts["interval"] = robust.predict_interval(known, interval)
        lists = {name: _plain(part) for name, part in parts.items()}
        if of_set is not None:
            lists["set"] = self.sets(known, of_set)
        if usual:
            lists["usual"] = self.typicality(known)
        if lost:
            lists["lost"] = self.lost(known)
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        if self.classes is not None:
            for row in rows:
                row["probabilities"] = dict(zip(self.classes, row["probabilities"], strict=True))
        return {"predictions": rows}

    def sets(self, evidence: Evidence, level: float) -> list[list[str]]:
        """The classes of the set of each row."""
        if self.classes is None:
            raise InvalidInput("set: the model has no classes; use interval.")
        within = self.model.predict_set(evidence, level)
        return [[str(label) for label in np.array(self.classes)[row]] for row in within]

    def explain(self, question: Any) -> dict[str, Any]:
        """Why: what each variable adds to the expected prediction."""
        known = self._known(_asked(question, ("rows",)), "explain")
        return {"explanations": explanations(self.model.explain(known))}

    def acquire(self, question: Any) -> dict[str, Any]:
        """What to find out: the gain of knowing each missing value, the largest first."""
        known = self._known(_asked(question, ("rows",)), "acquire")
        return {"gains": gains(self.model.acquire(known, self.cost))}

    def by_name(self) -> dict[str, Callable[[Any], dict[str, Any]]]:
        """The questions that may be posted."""
        return {"predict": self.predict, "explain": self.explain, "acquire": self.acquire}

    def _known(self, asked: Mapping[str, Any], name: str) -> Evidence:
        rows = asked["rows"]
        if len(rows) > MOST_ROWS[name]:
            raise InvalidInput(
                f"rows: {name} takes at most {MOST_ROWS[name]} at a time; got {len(rows)}. Send "
                f"them in several requests."
            )
        table, lost, not_recorded = self.fields.table(rows)
        matrix = self.fields.columns.matrix(table)
        evidence: Evidence = self.model.expectation_.evidence_of(
            matrix, lost, not_recorded=not_recorded
        )
        return evidence


def _asked(question: Any, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """A question that has rows, and nothing that is not known."""
    if not isinstance(question, Mapping):
        raise InvalidInput(f'the body must be an object, {{"rows": [...]}}; got '
                           f"{shortened(question)}.")  # fmt: skip
    unknown = [key for key in question if key not in keys]
    if unknown:
        raise InvalidInput(f"{shortened(unknown[0])}: the keys are {', '.join(keys)}.")
    if not isinstance(question.get("rows"), list):
        raise InvalidInput("rows: must be a list of objects, one for each row.")
    return question


def _flag(asked: Mapping[str, Any], name: str) -> bool:
    value = asked.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}: must be true or false; got {shortened(value)}.")
    return value


def _share(value: Any, name: str = "interval") -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 <= value <= 1):
        raise InvalidInput(f"{name}: must be a number from 0 to 1; got {shortened(value)}.")
    return None if value is None else float(value)


def _levels(value: Any) -> list[float] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not 0 < len(value) <= MOST_QUANTILES or None in value:
        raise InvalidInput(f"quantiles: must be a list of 1 to {MOST_QUANTILES} numbers.")
    found = [_share(level, f"quantiles[{i}]") for i, level in enumerate(value)]
    return [level for level in found if level is not None]


def _plain(part: Any) -> list[Any]:
    """An array, Series or DataFrame as lists of plain values."""
    values: list[Any] = np.asarray(part).tolist()
    return values


def explanations(found: Any) -> list[dict[str, Any]]:
    """An explanation row by row: of several outputs, the one that is expected to be largest."""
    names = [str(name) for name in found.data.columns]
    missing = found.data.isna().to_numpy()
    shape = (*missing.shape, len(found.outputs))
    values, errors = found.values.reshape(shape), found.errors.reshape(shape)
    told = ~missing | (values != 0).any(axis=2)  # that a value is missing may tell something, too
    base = np.atleast_1d(found.base)
    chosen = (base + values.sum(axis=1)).argmax(axis=1)
    return [
        {
            "output": str(found.outputs[k]),
            "base": float(base[k]),
            "values": [
                {"variable": names[j], "value": float(values[r, j, k]),
                 "error": float(errors[r, j, k]), "missing": bool(missing[r, j])}
                for j in np.flatnonzero(told[r])
            ],
        }
        for r, k in enumerate(chosen)
    ]  # fmt: skip


def gains(found: Any) -> list[list[dict[str, Any]]]:
    """What finding out is worth, row by row, the most for its cost first."""
    names = [str(name) for name in found.gain.columns]
    parts = [part.to_numpy() for part in (found.gain, found.error, found.per_cost)]
    return [
        [
            {"variable": names[j], "gain": float(gain[j]), "error": float(error[j]),
             "per_cost": float(per_cost[j])}
            for j in np.argsort(-per_cost, kind="stable")
            if np.isfinite(gain[j])
        ]
        for gain, error, per_cost in zip(*parts, strict=True)
    ]  # fmt: skip


def _control(variable: Variable, drawn: Floats) -> dict[str, Any]:
    about = {"name": variable.name, "kind": variable.kind.value, "nullable": variable.nullable}
    if variable.kind is Kind.CATEGORICAL:
        return about | _level_control(variable, drawn)
    return about | _number_control(variable, drawn[np.isfinite(drawn)])


def _level_control(variable: Variable, drawn: Floats) -> dict[str, Any]:
    count = np.bincount(drawn.astype(np.int64), minlength=len(variable.levels))
    order = [int(code) for code in np.argsort(-count, kind="stable")]
    shown = sorted(code for code in order[:MOST_LEVELS] if variable.levels[code] is not None)
    return {
        "levels": [str(variable.levels[code]) for code in shown],
        "shares": [float(count[code] / len(drawn)) for code in shown],
        "more": len(variable.levels) - variable.nullable - len(shown),
    }


def _number_control(variable: Variable, drawn: Floats) -> dict[str, Any]:
    if not len(drawn):  # never recorded in any draw
        drawn = np.zeros(1)
    low, high = (float(end) for end in np.quantile(drawn, [0.005, 0.995]))
    if variable.kind is Kind.INTEGER:
        low, high, step = float(np.floor(low)), float(np.ceil(high)), 1.0
    else:
        step = _step(high - low)
        low, high = float(np.floor(low / step) * step), float(np.ceil(high / step) * step)
    if high <= low:
        high = low + max(step, 1.0)
    heights, _ = np.histogram(drawn, BINS, (low, high))
    return {
        "low": low,
        "high": high,
        "step": step,
        "middle": float(np.median(drawn)),
        "heights": (heights / max(1, heights.max())).tolist(),
    }


def _step(width: float) -> float:
    """A round number, about a two hundredth of a width.

    Examples
    --------
    >>> _step(1.0), _step(37.0)
    (0.005, 0.2)
    """
    if not 1e-290 < width < 1e290:
        return 1.0
    digits, power = f"{width / 200:.0e}".split("e")
    nearest = min((1, 2, 5, 10), key=lambda one: abs(one - float(digits)))
    return float(f"{nearest}e{power}")
