"""The tolerance of Monte Carlo answers, and the rule that stops drawing (:func:`refine`).

Errors are measured in units of the spread of the model's outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.checks import check_number
from knothole.errors import ToleranceMissed
from knothole.trees.ensemble import Ensemble

#: The largest standard error of an answer, as a fraction of the spread of the model's outputs.
SHARE = 0.01
#: The spread assumed for probabilities of any model: the standard deviation of a fair coin.
SPREAD_OF_PROBABILITIES = 0.5
# Relative rounding error of sums of a few thousand leaves.
ROUNDING = 1e-10

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Spread:
    """Standard deviations of a model's outputs over rows, (outputs,): margins and predictions."""

    margin: Floats
    prediction: Floats

    @classmethod
    def of(cls, ensemble: Ensemble, margin: Floats) -> Spread:
        """The spread of margins (rows, outputs) and of their predictions.

        Examples
        --------
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> from knothole.trees.read import read
        >>> X = np.array([[0.0], [1.0]])
        >>> ensemble = read(DecisionTreeRegressor().fit(X, [0.0, 2.0]))
        >>> Spread.of(ensemble, ensemble.margin(X)).prediction
        array([1.])
        """
        link = ensemble.link
        if link.name in ("sigmoid", "softmax") or (ensemble.classes and not link.linear):
            predicted = np.full(ensemble.n_responses, SPREAD_OF_PROBABILITIES)
        else:
            predicted = _deviation(link(margin))
        if ensemble.classes is not None and link.linear:  # the leaves are probabilities
            predicted = np.full(ensemble.n_outputs, SPREAD_OF_PROBABILITIES * abs(link.scale))
            return cls(predicted / max(abs(link.scale), np.finfo(np.float64).tiny), predicted)
        return cls(_deviation(margin), predicted)


def _deviation(values: Floats) -> Floats:
    """Standard deviations over rows, at least the rounding error of equal values."""
    rounding = ROUNDING * np.abs(values).max(axis=0, initial=0.0)
    return np.asarray(np.maximum(values.std(axis=0), rounding))


class Tolerance(NamedTuple):
    """The unit that errors of some answers are measured in, and the largest error allowed."""

    unit: Floats
    share: float
    allowed: Floats  # the largest standard error of each answer
    rare: bool = True  # whether errors include rare values that draws may have missed

    def repeated(self, n: int) -> Tolerance:
        """For ``n`` answers of each output, grouped by output."""
        return tolerance_of(np.tile(self.unit, n), self.share)._replace(rare=self.rare)


def tolerance_of(unit: Floats, share: float | None) -> Tolerance:
    """Allow errors up to a fraction of the unit; None allows any error."""
    if share is None or share == np.inf:
        return Tolerance(unit, np.inf, np.full_like(unit, np.inf))
    return Tolerance(unit, share, unit * share)


#: No requirement: the first draws suffice.
NONE = tolerance_of(np.ones(1), None)


def in_parts(kept: Floats, further: Floats, before: int, now: int) -> Floats:
    """Concatenate what earlier and later draws gave, (rows, parts, ...)."""
    return np.concatenate([kept, further], axis=1)


def refine(
    n_rows: int,
    sizes: Sequence[int],
    collect: Callable[[Rows, range], Floats],
    settle: Callable[[Floats, Rows, int], tuple[Floats, Floats]],
    tolerance: Tolerance,
    decay: Callable[[int, int], float],
    join: Callable[[Floats, Floats, int, int], Floats] = in_parts,
) -> tuple[Floats, Floats, Ints]:
    """Draw for each row until its error is within the tolerance: the one stopping rule.

    Parameters
    ----------
    n_rows : int
    sizes : sequence of int
        Number of draws (in words, or pairs of orders) at first, and in all after each step.
    collect : callable
        From row numbers and a range of draws to results of the draws, (rows, ...).
    settle : callable
        From all results so far, row numbers and the number of draws to answers and standard
        errors, (rows, ..., outputs).
    tolerance : Tolerance
    decay : callable
        Expected factor of the error from one number of draws to another. The reported error
        combines the new estimate with the one that the last estimate predicts; otherwise rows would
        stop when their error estimate happens to be small.
    join : callable
        Combines the results of earlier and later draws.

    Returns
    -------
    answers, errors : float64 (rows, ..., outputs)
    used : int64 (rows,)
        Number of draws of each row.
    """
    rows, size = np.arange(n_rows), sizes[0]
    kept = collect(rows, range(size))
    value, error = settle(kept, rows, size)
    used = np.full(n_rows, size)
    for before, size in pairwise(sizes):
        late = (error[rows] > tolerance.allowed).any(axis=tuple(range(1, error.ndim)))
        rows, kept = rows[late], kept[late]
        if not len(rows):
            break
        kept = join(kept, collect(rows, range(before, size)), before, size)
        value[rows], now = settle(kept, rows, size)
        expected = decay(before, size) * error[rows]
        error[rows] = np.where(expected > 0, np.sqrt((now**2 + expected**2) / 2), now)
        used[rows] = size
    return value, error, used


def check_tol(tol: Any) -> float | None:
    """A fraction above 0, or None, for which the first draws suffice."""
    meaning = "It is the standard error of answers as a share of the spread of the model's outputs"
    check_number("tol", tol, above=0, also=[None], way_out=f"{meaning}, {SHARE} by default.")
    return None if tol is None else float(tol)


def warn_missed(error: Floats, tolerance: Tolerance, what: str) -> None:
    """Warn if rows have a larger standard error than allowed, with their number."""
    allowed = tolerance.allowed
    beyond = error > allowed * (1 + 1e-9)
    late = beyond.any(axis=tuple(range(1, beyond.ndim)))
    if late.any():
        warnings.warn(
            f"{int(late.sum())} of {len(error)} rows have a {what} whose standard error is larger "
            f"than the tolerance, {error.max():.3g} at most where {allowed.min():.3g} is allowed; "
            f"all draws were used up. Allow more with tol, or ask for errors with return_error.",
            ToleranceMissed,
            stacklevel=2,
        )
