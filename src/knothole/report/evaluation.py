"""Everything a report shows, measured in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knothole.progress import Advance, silent
from knothole.report.diagnostics import Coverage, Fit, Outage, coverage, density_fit, outages
from knothole.report.methods import METHODS, Case
from knothole.report.robustness import RATES, Robustness, compare, steps

# Steps after the comparison: outage, coverage, fit of the density.
_CHECKS = 3


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured of a case."""

    case: Case
    robustness: Robustness
    outage: Outage
    coverage: Coverage
    fit: Fit
    seed: int


def evaluate(
    case: Case,
    *,
    rates: Sequence[float] = RATES,
    repeats: int = 5,
    methods: tuple[str, ...] = METHODS,
    seed: int = 0,
    learning: float | None = None,
    advance: Advance = silent,
) -> Evaluation:
    """Measure a wrapped model on held-out rows; for the arguments see :func:`compare`.

    Examples
    --------
    >>> import numpy as np
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = DecisionTreeRegressor(max_depth=3).fit(X[:200], X[:200].sum(axis=1))
    >>> robust = kh.wrap(model, X[:200], density=kh.Factorized())
    >>> case = Case.of(robust, X[:200], X[200:], X[200:].sum(axis=1))
    >>> found = evaluate(case, rates=(0, 0.5), repeats=1, methods=("knothole", "median"))
    >>> found.robustness.table().shape
    (2, 2)
    """
    robustness = compare(
        case, rates=rates, repeats=repeats, methods=methods, seed=seed, learning=learning,
        advance=advance,
    )  # fmt: skip
    outage = outages(case)
    advance("outages")
    covered = coverage(case, seed=seed)
    advance("intervals")
    fit = density_fit(case, outage.names, seed=seed)
    advance("density")
    return Evaluation(case, robustness, outage, covered, fit, seed)


def evaluation_steps(
    case: Case, rates: Sequence[float], repeats: int, methods: tuple[str, ...]
) -> int:
    """How often :func:`evaluate` will advance."""
    return steps(case, rates, repeats, methods) + _CHECKS
