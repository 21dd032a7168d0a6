"""Densities over (X, y), to integrate missing training values over p(x_m | x_o, y).

Integrating over p(x_m | x_o) ignores y and flattens the leaves. Refitting knows y, so it may use
it. At deployment y is unknown, and p(X) is used as before. A one-to-one map of y does not change
p(x_m | x_o, y), but it changes how well a density can learn it: a skewed target may be better
replaced by its ranks. The choice between the values and their normal scores is by held-out log
p(x_o | y), which has no units. Size and prior are those found for p(X): another search would take
several times as long and gain little. But if p(X) consists of independent columns, its size would
make y independent of them too, so there is a search.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from knothole.arrays import Floats
from knothole.columns.columns import Columns
from knothole.columns.evidence import Evidence, without_nullable
from knothole.densities.base import Density, of_same_size
from knothole.densities.held_out import HELD_OUT
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.densities.search import STRONGER
from knothole.errors import InvalidInput

# The most rows for the choice of a form, and the fraction of them that is held out.
CHOICE_ROWS = 10_000


@dataclass(frozen=True, eq=False)
class TrainingTable:
    """Encoded rows that densities are learned from, with missing values and weights.

    See :meth:`~knothole.densities.base.Density.fit_matrix`.
    """

    matrix: Floats
    missing_mask: NDArray[np.bool_] | None
    weight: Floats

    def fit(self, density: Density, target: Any = None, columns: Columns | None = None) -> Density:
        """A density with the same settings (and columns, unless others are given), refitted."""
        fresh: Density = clone(density)
        return fresh.fit_matrix(
            self.matrix,
            density.columns_ if columns is None else columns,
            sample_weight=self.weight,
            target=target,
            missing_mask=self.missing_mask,
        )

    def without_unrecorded(self, density: Density) -> Density:
        """The density, refitted if it has "not recorded" as a state but every NaN is lost."""
        columns = density.columns_
        if density.target_ or not any(column.nullable for column in columns):
            return density
        return self.fit(density, columns=without_nullable(columns))


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A density for refitting, and the targets in its form.

    Attributes
    ----------
    density : Density
        Fitted; over (X, y) where ``target`` is not None.
    target : array (rows,) or None
        y in the form that the density was fitted with.
    form : {"none", "given", "labels", "values", "scores"}
        How y was passed to the density.
    """

    density: Density
    target: NDArray[Any] | None
    form: str

    @classmethod
    def of(
        cls, density: Density, training: TrainingTable, y: NDArray[Any], labels: bool
    ) -> Conditioned:
        """A density over (X, y): the given one if it is, otherwise one that is fitted here.

        ``labels`` says whether y holds classes.
        """
        if y.ndim == 2 and y.shape[1] > 1:
            raise InvalidInput(
                f"condition_on_target: a density takes one target, but y has {y.shape[1]} "
                f"outputs; refit with condition_on_target=False."
            )
        target, like = y.reshape(-1), with_target(density)
        if density.target_:
            return cls(density, target, "given")
        if labels:
            form, target = "labels", np.array([repr(label) for label in target.tolist()])
        else:
            numbers = target.astype(np.float64)
            form, like = choose_form(density, training, numbers)
            target = in_form(numbers, form)
        return cls(training.fit(like, target, density.columns_), target, form)

    def given(self, y: NDArray[Any], others: NDArray[Any]) -> NDArray[Any] | None:
        """Targets of other rows in the density's form; ``y`` are the targets it was fitted with."""
        if self.target is None:
            return None
        if self.form == "labels":
            return np.array([repr(label) for label in others.tolist()])
        if self.form == "scores":
            order = np.argsort(y.reshape(-1))
            return np.asarray(np.interp(others, y.reshape(-1)[order], self.target[order]))
        return others


def in_form(y: Floats, form: str) -> Floats:
    """A numeric target as its values or as normal scores (ties have their mid-rank)."""
    return np.asarray(ndtri((rankdata(y) - 0.5) / len(y))) if form == "scores" else y


def with_target(density: Density) -> Density:
    """An unfitted density for p(X, y), with the size and prior of p(X).

    Both are searched anew if the columns are nearly independent, which a size of one or a strong
    prior shows: y would come out independent of them.
    """
    if isinstance(density, Factorized):
        seed = 0 if density.random_state is None else density.random_state
        return Mixture(families=density.families, random_state=seed)
    alone = isinstance(density, Mixture) and len(density.weights_) == 1
    alone |= isinstance(density, LatentTree) and density.states_ == 1
    alone |= getattr(density, "strength", None) == "auto" and density.strength_ >= STRONGER
    fresh: Density = clone(density) if alone else of_same_size(density, density)
    return fresh


def choose_form(density: Density, training: TrainingTable, y: Floats) -> tuple[str, Density]:
    """The form of y that makes held-out rows most likely given their targets.

    And the density for p(X, y), of a size.
    """
    rng = np.random.default_rng(0)
    rows = rng.permutation(np.flatnonzero(training.weight > 0))[:CHOICE_ROWS]
    n_held = int(HELD_OUT * len(rows))
    like = with_target(density)
    if n_held == 0:
        return "values", like
    held, weight = rows[:n_held], np.zeros_like(training.weight)
    weight[rows[n_held:]] = training.weight[rows[n_held:]]
    others = replace(training, weight=weight)
    own = density.columns_.evidence(training.matrix, training.missing_mask)[held]
    tried = {}
    for form in ("values", "scores"):
        target = in_form(y, form)
        with warnings.catch_warnings():
            # A trial is good enough for the comparison before it has fully converged.
            warnings.simplefilter("ignore", ConvergenceWarning)
            trial = others.fit(like, target, density.columns_)
        gain = _log_given_target(trial, own, target[held])
        tried[form] = float(np.average(gain, weights=training.weight[held])), trial
    best = max(tried, key=lambda form: tried[form][0])
    return best, of_same_size(like, tried[best][1])


def _log_given_target(density: Density, own: Evidence, target: Floats) -> Floats:
    """Log p(x_o | y) of rows, (rows,)."""
    nothing = Evidence(np.full_like(own.points, np.nan))
    joint = density.log_evidence(density.extended(own, target))
    return np.asarray(joint - density.log_evidence(density.extended(nothing, target)))
