"""Densities over (X, y), to fill training holes from p(x_m | x_o, y).

Filling them from p(x_m | x_o) ignores y and flattens the leaves. Tuning knows y, so it may use it;
at deployment y is not known, and p(X) serves as before: it has spent all it has on X. Any
one-to-one map of y leaves p(x_m | x_o, y) as it is, but not
how well a density can learn it: a skewed target may be better taken by rank. The choice between the
values themselves and their normal scores goes by held-out log p(x_o | y), which has no units.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.tables.columns import Columns
from knothole.tables.evidence import Evidence
from knothole.tables.holes import without_nullable

Form = Literal["auto", "values", "scores"]

# Rows that the choice of a form is made on, and the part of them that is held out.
CHOICE_ROWS = 10_000
HELD_OUT = 0.25


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A density for tuning, and the targets as it takes them.

    Attributes
    ----------
    density : Density
        Fitted; over (X, y) where ``target`` is not None.
    target : array (rows,) or None
        y in the form that the density knows.
    form : {"none", "given", "labels", "values", "scores"}
        How y was given to the density.
    holes : bool (rows, columns) or None
        Holes of the table, as in :meth:`~knothole.densities.base.Density.fit`.
    """

    density: Density
    target: NDArray[Any] | None
    form: str
    table: Any
    holes: NDArray[np.bool_] | None

    def refitted(self, row_weight: Floats) -> Density:
        """A density like this one, learned with other weights of the rows."""
        return _fit(
            clonable(self.density),
            self.table,
            self.target,
            row_weight,
            self.holes,
            self.density.columns_,
        )

    @classmethod
    def of(
        cls,
        density: Density,
        table: Any,
        holes: NDArray[np.bool_] | None,
        *,
        y: NDArray[Any],
        row_weight: Floats,
        condition: bool,
        labels: bool,
        form: Form = "auto",
    ) -> Conditioned:
        """A density that knows y, from one that may not.

        Parameters
        ----------
        density : Density
            Fitted. Where it has a target already it is taken as it is.
        table, holes
            Training rows, as in ``density.fit``.
        y : array (rows,) or (rows, outputs)
        row_weight : float64 (rows,)
        condition : bool
            Whether to condition on y at all.
        labels : bool
            Whether y holds classes.
        form : {"auto", "values", "scores"}
            How a numeric target is given to the density.
        """
        if form not in ("auto", "values", "scores"):
            raise InvalidInput(f"target_form must be 'auto', 'values' or 'scores'; got {form!r}.")
        if not condition:
            return cls(density, None, "none", table, holes)
        if y.ndim == 2 and y.shape[1] > 1:
            raise InvalidInput(
                f"condition_on_target: a density takes one target, but y has {y.shape[1]} "
                f"outputs; tune with condition_on_target=False."
            )
        y = y.reshape(-1)
        if density.target_:
            return cls(density, y, "given", table, holes)
        if labels:
            chosen, target = "labels", np.array([repr(label) for label in y.tolist()])
        elif form == "auto":
            chosen, target = _choose(density, table, y.astype(np.float64), row_weight, holes)
        else:
            chosen, target = form, in_form(y.astype(np.float64), form)
        fitted = _fit(clonable(density), table, target, row_weight, holes, density.columns_)
        return cls(fitted, target, chosen, table, holes)


def without_unrecorded(density: Density, table: Any, row_weight: Floats) -> Density:
    """The density, learned anew where it has "not recorded" as a state but every NaN is a hole."""
    columns = density.columns_
    if density.target_ or not columns.nullable.any():
        return density
    return _fit(clonable(density), table, None, row_weight, None, without_nullable(columns))


def in_form(y: Floats, form: str) -> Floats:
    """A numeric target as values or as normal scores (ties have their mid-rank)."""
    return np.asarray(ndtri((rankdata(y) - 0.5) / len(y))) if form == "scores" else y


def _choose(
    density: Density,
    table: Any,
    y: Floats,
    row_weight: Floats,
    holes: NDArray[np.bool_] | None,
) -> tuple[str, Floats]:
    """The form under which held-out rows are most likely given their targets."""
    rng = np.random.default_rng(0)
    rows = rng.permutation(np.flatnonzero(row_weight > 0))[:CHOICE_ROWS]
    n_held = int(HELD_OUT * len(rows))
    forms = {form: in_form(y, form) for form in ("values", "scores")}
    if n_held == 0:
        return "values", forms["values"]
    held, train = rows[:n_held], np.zeros_like(row_weight)
    train[rows[n_held:]] = row_weight[rows[n_held:]]
    own = density.columns_.evidence(density.columns_.matrix(table), holes)[held]
    # To compare forms, the size that suits X will do: no need to search for one each time.
    prototype = of_same_size(density)
    scores = {}
    for form, target in forms.items():
        with warnings.catch_warnings():
            # A trial that has not quite converged still compares.
            warnings.simplefilter("ignore", ConvergenceWarning)
            trial = _fit(prototype, table, target, train, holes, density.columns_)
        gain = log_given_target(trial, own, target[held])
        scores[form] = float(np.average(gain, weights=row_weight[held]))
    best = max(scores, key=lambda form: scores[form])
    return best, forms[best]


def log_given_target(density: Density, own: Evidence, target: Floats) -> Floats:
    """Log p(x_o | y) of rows, (rows,)."""
    nothing = Evidence(np.full_like(own.points, np.nan))
    joint = density.log_evidence(density.extended(own, target))
    return np.asarray(joint - density.log_evidence(density.extended(nothing, target)))


def clonable(density: Density) -> Density:
    """The density, which must be one that can be learned anew."""
    if not hasattr(density, "get_params"):
        raise InvalidInput(
            f"tune: a {type(density).__name__} cannot be learned anew, with the target beside X or "
            f"with every NaN as a hole. Fit one with target=y and pass that; or fit one where no "
            f"NaN is a state, and tune with condition_on_target=False."
        )
    return density


def of_same_size(density: Density) -> Density:
    """An unfitted density with the size that a fitted one has found."""
    fresh: Density = clone(clonable(density))
    for name, size in (("components", "weights_"), ("states", "states_")):
        if getattr(fresh, name, None) == "auto":
            found = getattr(density, size)
            fresh.set_params(**{name: found if np.isscalar(found) else len(found)})
    return fresh


def _fit(
    density: Density,
    table: Any,
    target: Any,
    row_weight: Floats,
    holes: NDArray[np.bool_] | None,
    columns: Columns,
) -> Density:
    """A density with the same settings, learned from (X, target)."""
    fresh: Density = clone(density)
    fresh.fit(table, sample_weight=row_weight, target=target, columns=columns, holes=holes)
    return fresh
