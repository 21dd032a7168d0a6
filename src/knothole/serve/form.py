"""What the page needs to know of a model before anything is asked: a control for every variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Kind, Variable
from knothole.columns.evidence import Evidence
from knothole.densities.base import Density
from knothole.expectation.expectation import Expectation

#: Rows drawn from the density that show what is usual.
DRAWS = 1024
BINS = 32
#: Levels that a list shows, the most frequent ones.
MOST_LEVELS = 500


@dataclass(frozen=True, eq=False)
class Usual:
    """Rows drawn from the density: what values are usual, and how usual a row is."""

    expectation: Expectation
    points: Floats  # (draws, variables)

    @classmethod
    def of(cls, expectation: Expectation) -> Usual:
        """Draws of a row of which nothing is known."""
        empty = np.full((1, len(expectation.columns)), np.nan)
        evidence = expectation.evidence_of(empty, "all")
        points = expectation.density.complete_points(evidence, DRAWS, expectation.seed)[0]
        return cls(expectation, points)

    def share(self, evidence: Evidence) -> list[float | None]:
        """The share of drawn rows that are less likely than each row, in what is known of it.

        None for a row of which nothing is known, and under a density of the user's own, which
        does not tell how likely a row is.
        """
        density: Any = self.expectation.density
        if not isinstance(density, Density):
            return [None] * len(evidence.points)
        own = density.log_evidence(evidence)
        shares: list[float | None] = []
        for row, log_p in zip(evidence.points, own, strict=True):
            known = ~np.isnan(row)
            if not known.any():
                shares.append(None)
                continue
            others = density.log_evidence(Evidence(np.where(known, self.points, np.nan)))
            shares.append(float(np.mean(others < log_p)))
        return shares

    def controls(self) -> list[dict[str, Any]]:
        """One control for every variable, in the model's order."""
        variables = self.expectation.columns.variables
        return [_control(variable, self.points[:, v]) for v, variable in enumerate(variables)]


def _control(variable: Variable, drawn: Floats) -> dict[str, Any]:
    about = {"name": variable.name, "kind": variable.kind.value, "nullable": variable.nullable}
    if variable.kind is Kind.CATEGORICAL:
        return about | _levels(variable, drawn)
    return about | _numbers(variable, drawn[np.isfinite(drawn)])


def _levels(variable: Variable, drawn: Floats) -> dict[str, Any]:
    count = np.bincount(drawn.astype(np.int64), minlength=len(variable.levels))
    order = [int(code) for code in np.argsort(-count, kind="stable")]
    shown = sorted(code for code in order[:MOST_LEVELS] if variable.levels[code] is not None)
    return {
        "levels": [str(variable.levels[code]) for code in shown],
        "shares": [float(count[code] / len(drawn)) for code in shown],
        "more": len(variable.levels) - variable.nullable - len(shown),
    }


def _numbers(variable: Variable, drawn: Floats) -> dict[str, Any]:
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
