"""Train trees as usual or on draws, with refitted leaves or not; compared on held-out rows.

*Own* is the estimator trained on the table as it is. *Expected* is the same estimator trained on
draws from p(x_m | x_o, y) (:mod:`knothole.leaves.induction`). y is used only while trees grow, so
predictions are still under p(X).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, get_tags

from knothole.arrays import Floats, Mask
from knothole.cached import cached_property
from knothole.checks import check_choice, check_number, check_whole
from knothole.columns.columns import Columns, Kind
from knothole.columns.evidence import missing_in, nullable_as_met, with_nan
from knothole.columns.read import row_weights
from knothole.densities.base import Density, encode_target, of_same_size
from knothole.densities.held_out import (
    FOLDS,
    TOO_FEW_TO_HOLD_OUT,
    hold_out,
    mean_and_error,
    sample_rows,
)
from knothole.densities.mixture.density import Factorized
from knothole.errors import InvalidInput
from knothole.leaves.conditioning import Conditioned, TrainingTable
from knothole.leaves.induction import Rows, TableDraws, TrainingOnDraws, aligned, expand, take
from knothole.leaves.options import RefitOptions
from knothole.robust import Robust
from knothole.scoring import prediction_loss
from knothole.trees.libraries import unfitted, weight_name
from knothole.wrapping import wrap

if TYPE_CHECKING:
    import pandas as pd

# The value of ``redraw`` that learn="auto" tries besides 0.
REDRAW = 0.3
# NaN counts as a value in columns where distinguishing it reduces the squared error of y by at
# least this fraction, and by so many standard errors.
PART, SURE = 0.01, 4.0
# Draws of y for this measurement.
DRAWS_OF_Y = 64


class Way(NamedTuple):
    """How a model is trained ("own", "expected"), and whether its leaves are refitted then."""

    learn: str
    redraw: float
    refit_leaves: bool


def ways_of(how: Any) -> list[Way]:
    """The ways to try for a meta-estimator's ``learn``, ``redraw`` and ``refit_leaves``."""
    check_whole("n_draws", how.n_draws)
    check_choice("learn", how.learn, ("own", "expected", "auto"))
    auto = how.learn == "auto"
    check_number("redraw", how.redraw, most=1, also=["auto"])
    redraws = (0.0, REDRAW)[: 1 + auto] if how.redraw == "auto" else (float(how.redraw),)
    refits = (
        (False, True) if how.refit_leaves == "auto" else (how.refit_leaves not in (None, False),)
    )
    # Grown leaves already are those of Prop. 2; with several ways to compare, refitting them takes
    # too long.
    after = refits[:1] if auto else refits
    grown = [Way("expected", redraw, refit_leaves) for redraw in redraws for refit_leaves in after]
    own = [Way("own", 0.0, refit_leaves) for refit_leaves in refits]
    return grown + own if auto else grown if how.learn == "expected" else own


@dataclass(frozen=True, eq=False)
class Lesson:
    """Training rows, the other arguments of ``fit``, and the meta-estimator with the settings."""

    how: Any
    refitting: RefitOptions
    table: Any
    y: NDArray[Any]
    weight: Floats | None
    fit_params: Mapping[str, Any]

    def part(self, rows: Rows) -> Lesson:
        """Some of the rows."""
        return replace(
            self, table=take(self.table, rows), y=self.y[rows],
            weight=None if self.weight is None else np.asarray(self.weight)[rows],
            fit_params=aligned(self.fit_params, len(self.y), rows),
        )  # fmt: skip

    def own(self) -> Any:
        """The estimator trained as usual; if it refuses NaN, on columns imputed at random."""
        table, estimator = self.table, self.how.estimator
        if not get_tags(estimator).input_tags.allow_nan:
            columns = Columns.infer(table) if self.how.columns is None else self.how.columns
            table = expand(
                Factorized(random_state=0).fit(table, columns=columns), table, n_draws=1
            ).X
        params = {} if self.weight is None else {weight_name(estimator): self.weight}
        return unfitted(estimator).fit(table, self.y, **self.fit_params, **params)

    def wrapped(self, model: Any, density: Any, **options: Any) -> Robust:
        """A model under a density."""
        return wrap(
            model, self.table, self.y, density, sample_weight=self.weight, correction=False,
            random_state=self.how.random_state, verbose=self.how.verbose, **options,
        )  # fmt: skip


def learn(lesson: Lesson, ways: list[Way]) -> tuple[Robust, Any, pd.DataFrame | None]:
    """A wrapped model, the model itself, and how the ways compared on held-out rows, if several."""
    how = lesson.how
    if lesson.y.ndim == 2 and lesson.y.shape[1] > 1:
        raise InvalidInput(
            f"learn: trees are grown under the expected loss of one target, but y has "
            f"{lesson.y.shape[1]} outputs; use learn='own'."
        )
    own = lesson.own()
    first = lesson.wrapped(
        own, how.density, columns=how.columns, one_hot=how.one_hot, nan_policy="lost"
    )
    if not isinstance(first.density_, Density):
        raise InvalidInput(
            "learn: a density of your own cannot be conditioned on y; pass one of knothole's, "
            "such as density='auto', or use learn='own'."
        )
    ground = TrainingContext.of(lesson, first, own)
    if not ground.missing_mask.any():
        ways = [Way("own", 0.0, ways[-1].refit_leaves)]
    trial = compare(ground, first, ways) if len(ways) > 1 else None
    way = ways[0] if trial is None else chosen(trial, ways)
    model = ground.model(way)
    robust = ground.robust(way, model)
    robust.selection_ = first.selection_
    return robust, model, trial


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """Training rows, and what is learned from them.

    Attributes
    ----------
    own : object
        The estimator trained as usual.
    base : Density
        Over X; missing values are integrated over, unless the caller declared a column nullable.
    training : TrainingTable
        The encoded rows, with NaN where the model takes a number for it.
    sentinel : float64 (columns, 2)
        Numbers that the model takes for NaN.
    values : bool (columns,)
        Columns in which NaN counts as a value while trees grow.
    """

    lesson: Lesson
    own: Any
    base: Density
    training: TrainingTable
    sentinel: Floats
    values: Mask

    @classmethod
    def of(cls, lesson: Lesson, first: Robust, own: Any) -> TrainingContext:
        """From all rows, with the density that the usual model was wrapped with."""
        base, sentinel = first.density_, first.ensemble_.sentinel
        matrix = with_nan(base.columns_.matrix(lesson.table), sentinel, base.columns_)
        training = TrainingTable(matrix, None, row_weights(lesson.weight, len(matrix)))
        ground = cls(lesson, own, base, training, sentinel, base.columns_.nullable)
        if lesson.how.nan_policy == "infer" and ground.missing_mask.any():
            return replace(ground, values=ground.meaningful())
        return ground

    def part(self, rows: Rows) -> TrainingContext:
        """From some of the rows, with a density of the same size and a usual model of their own."""
        lesson, training = self.lesson.part(rows), self._training(rows)
        base = training.fit(of_same_size(self.base, self.base), columns=self.base.columns_)
        return replace(self, lesson=lesson, own=lesson.own(), base=base, training=training)

    def _training(self, rows: Rows) -> TrainingTable:
        return TrainingTable(self.training.matrix[rows], None, self.training.weight[rows])

    def model(self, way: Way) -> Any:
        """The model trained in one way."""
        if way.learn == "own":
            return self.own
        lesson, how, matrix = self.lesson, self.lesson.how, self.training.matrix
        table_draws = TableDraws(
            self.parts, lesson.table, matrix, self.missing_mask, self.known.target, way.redraw
        )
        seed = int(check_random_state(how.random_state).randint(2**31 - 1))
        growing = TrainingOnDraws(
            table_draws, lesson.y, lesson.weight, how.n_draws, seed, self.others
        )
        return growing.fit(how.estimator, **lesson.fit_params)

    def robust(self, way: Way, model: Any) -> Robust:
        """The model trained in one way, wrapped and (if the way says so) refitted."""
        lesson, density, policy = self.lesson, self.density, self.lesson.how.nan_policy
        if way.learn == "own" and way.refit_leaves:
            density, policy = self.base, "lost"
        elif way.learn == "own" and policy != "lost":  # as wrap does by default
            density = self._nullable(nullable_as_met(self.base.columns_, self.training.matrix))
        robust = lesson.wrapped(model, density, nan_policy=policy)
        if not way.refit_leaves:
            return robust
        native = density.columns_.nullable.any()
        options = lesson.refitting.changed(nan_policy="native" if native else "lost")
        return robust.refit_leaves(lesson.table, lesson.y, options, sample_weight=lesson.weight)

    # ---- densities -------------------------------------------------------------------------------

    @cached_property
    def density(self) -> Density:
        """The density over X, with NaN as a value where it counts as one."""
        return self._nullable(self.base.columns_.with_nullable(self.values))

    def _nullable(self, columns: Columns) -> Density:
        if (columns.nullable == self.base.columns_.nullable).all():
            return self.base
        return self.training.fit(of_same_size(self.base, self.base), columns=columns)

    @cached_property
    def known(self) -> Conditioned:
        """The density over X and y."""
        labels = is_classifier(self.lesson.how.estimator)
        return Conditioned.of(self.density, self.training, self.lesson.y, labels)

    @cached_property
    def parts(self) -> tuple[tuple[Density, Rows], ...]:
        """Densities and the rows that each completes given y; none has learned from its own rows.

        A density over (X, y) that was fitted to a row knows its y too well, and trees would find
        that y again in the draws.

        Rows of rare classes are completed by the density of all rows, and so is every row if a
        column is rare or if the caller gave a density over (X, y).
        """
        known, matrix, target = self.known, self.training.matrix, np.asarray(self.known.target)
        fold = sample_rows(len(matrix), most=None) % FOLDS
        if known.form == "labels":
            _, label, count = np.unique(target, return_inverse=True, return_counts=True)
            fold[count[label] < TOO_FEW_TO_HOLD_OUT] = -1
        if known.form == "given" or (~np.isnan(matrix)).sum(axis=0).min() < TOO_FEW_TO_HOLD_OUT:
            fold[:] = -1
        parts = [(known.density, np.flatnonzero(fold < 0))]
        sized = of_same_size(known.density, known.density)
        for number in np.unique(fold[fold >= 0]):
            others = np.flatnonzero(fold != number)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the full density has warned
                fitted = self._training(others).fit(sized, target[others], self.density.columns_)
            parts.append((fitted, np.flatnonzero(fold == number)))
        return tuple(parts)

    def others(self, X: Any, y: NDArray[Any]) -> TableDraws:
        """Draws of rows that are not trained on."""
        columns = self.density.columns_
        matrix = with_nan(columns.matrix(X), self.sentinel, columns)
        target = self.known.given(self.lesson.y, y)
        parts = ((self.known.density, np.arange(len(matrix))),)
        return TableDraws(parts, X, matrix, missing_in(columns, matrix), target)

    @property
    def missing_mask(self) -> Mask:
        """Entries that are drawn, (rows, columns)."""
        columns = self.base.columns_.with_nullable(self.values)
        return missing_in(columns, self.training.matrix)

    def meaningful(self) -> Mask:
        """Columns in which NaN says something about y that observed values do not, (columns,).

        If values are missing at random, the mean distance of y from its mean given x_o is the same
        whether a variable is observed or not.
        """
        columns, density, found = self.base.columns_, self.known.density, self.values.copy()
        rows = sample_rows(len(self.lesson.y))
        own, variable = columns.evidence(self.training.matrix[rows]), density.variables_[-1]
        truth = encode_target(variable, np.asarray(self.known.target)[rows])[:, None]
        drawn = density.complete_points(density.extended(own, None), DRAWS_OF_Y, 0)[:, :, -1:]
        if variable.kind is Kind.CATEGORICAL:
            codes = np.arange(len(variable.levels))
            truth, drawn = truth == codes, drawn == codes
        residual = truth - drawn.mean(axis=1)
        for place, column in enumerate(columns.variables):
            gone = np.isnan(own.points[:, place])
            groups = [residual[gone], residual[~gone]]
            if min(map(len, groups)) < TOO_FEW_TO_HOLD_OUT:
                continue
            apart = groups[0].mean(axis=0) - groups[1].mean(axis=0)
            error = np.sqrt(sum(group.var(axis=0) / len(group) for group in groups))
            gain = gone.mean() * (1 - gone.mean()) * (apart**2).sum()
            worth = gain > PART * (residual**2).mean(axis=0).sum()
            found[list(column.columns)] |= worth and (np.abs(apart) > SURE * error).any()
        return found


def compare(ground: TrainingContext, first: Robust, ways: list[Way]) -> pd.DataFrame | None:
    """Mean losses of the ways on held-out rows, which stay incomplete; None if impossible.

    Each with the standard error of its difference from the least loss.

    Folds whose training rows lack a column or a class are left out.
    """
    import pandas as pd

    matrix, columns, y = ground.training.matrix, ground.base.columns_, ground.lesson.y
    loss, how = prediction_loss(first.ensemble_, matrix, columns, y), ground.lesson.how
    losses: list[list[Floats]] = [[] for _ in ways]
    held: list[Rows] = []
    for part in hold_out(matrix, columns, how.random_state):
        rows = np.sort(part.train)
        lacks = is_classifier(how.estimator) and len(np.unique(y[rows])) < len(np.unique(y))
        if lacks or np.isnan(matrix[rows]).all(axis=0).any():
            continue
        held.append(part.held)
        smaller = ground.part(rows)
        for own, way in zip(losses, ways, strict=True):
            robust = smaller.robust(way, smaller.model(way))
            evidence = robust.expectation_.evidence_of(matrix[part.held])
            response = robust.expectation_.predict(evidence)[0]
            own.append(loss.measure(response, loss.truth[part.held]))
    if not held:
        return None
    weight = ground.training.weight[np.concatenate(held)]
    every = np.array([np.concatenate(own) for own in losses])
    means = np.average(every, axis=1, weights=weight)
    apart = every - every[means.argmin()]
    errors = [mean_and_error(difference, weight)[1] for difference in apart]
    return pd.DataFrame(ways).assign(loss=means, error=errors)


def chosen(trial: pd.DataFrame, ways: list[Way]) -> Way:
    """The way with the least loss; but usual trees with refitted leaves unless clearly worse.

    There are few held-out rows, and refitted leaves are seldom far behind.
    """
    best, last = ways[int(trial["loss"].argmin())], trial.iloc[-1]
    doubt = last["loss"] - trial["loss"].min() <= last["error"]
    refitted = ways[-1].learn == "own" and ways[-1].refit_leaves
    return ways[-1] if best.learn == "expected" and refitted and doubt else best
