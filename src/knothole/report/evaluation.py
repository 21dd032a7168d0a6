"""Everything a report shows, measured in one go."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from knothole.progress import Advance, silent
from knothole.report.diagnostics import (
    Asked,
    Coverage,
    Fit,
    Outage,
    asked,
    coverage,
    density_fit,
    outages,
)
from knothole.report.methods import Case
from knothole.report.robustness import USUAL, Comparison, Robustness, compare


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured of a case."""

    case: Case
    robustness: Robustness
    outage: Outage
    coverage: Coverage
    fit: Fit
    asked: Asked
    seed: int


def evaluate(
    case: Case, comparison: Comparison = USUAL, learning: float = nan, advance: Advance = silent
) -> Evaluation:
    """Measure a wrapped model on held-out rows.

    The arguments are those of :func:`~knothole.report.robustness.compare`.

    Examples
    --------
    >>> import numpy as np
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = DecisionTreeRegressor(max_depth=3).fit(X[:200], X[:200].sum(axis=1))
    >>> robust = kh.wrap(model, X[:200], density=kh.Factorized())
    >>> case = Case.of(robust, X[:200], X[200:], X[200:].sum(axis=1))
    >>> quick = Comparison(rates=(0, 0.5), repeats=1, methods=("knothole", "median"))
    >>> evaluate(case, quick).robustness.table().shape
    (2, 2)
    """
    robustness = compare(case, comparison, learning, advance)
    outage = outages(case)
    advance("outages")
    covered = coverage(case, seed=comparison.seed)
    advance("intervals")
    fit = density_fit(case, outage.names, seed=comparison.seed)
    advance("density")
    questions = asked(case, seed=comparison.seed)
    advance("questions")
    return Evaluation(case, robustness, outage, covered, fit, questions, comparison.seed)


def evaluation_steps(case: Case, comparison: Comparison) -> int:
    """How often :func:`evaluate` will advance."""
    checks = 4  # outage, coverage, fit of the density, questions
    return len(case.methods(comparison.methods)) * (1 + len(list(comparison.runs()))) + checks
