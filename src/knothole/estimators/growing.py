"""Own trees or grown ones, their leaves tuned or not: as asked for, or as is best on held-out rows.

*Own* is the estimator trained on the table as it is. *Expected* is the same estimator trained on
completions from p(x_m | x_o, y) (:mod:`knothole.learning.induction`); y is known while trees grow
only, so that predictions go on under p(X).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.utils import check_random_state, get_tags

from knothole.arrays import Floats, Mask
from knothole.densities.base import Density, encode_target
from knothole.densities.mixture.density import Factorized
from knothole.densities.selection.held_out import HeldOut, hold_out
from knothole.densities.trained import of_same_size
from knothole.errors import InvalidInput
from knothole.estimators.robust import Robust
from knothole.estimators.scoring import PredictionLoss, prediction_loss
from knothole.learning.conditioning import Conditioned, TrainingTable
from knothole.learning.induction.filling import Completions, aligned, take
from knothole.learning.induction.grow import Growing
from knothole.learning.options import TuningOptions
from knothole.tables.columns import Blocks, Columns, Evidence, Kind
from knothole.tables.encoding import row_weights
from knothole.tables.holes import HoleRule, nullable_as_met, with_nan

#: How a model is trained ("own", "expected"), and whether its leaves are tuned then.
Way = tuple[str, bool]
# NaN is a value where telling it from the rest takes such a part off the squared error of y, and
# is so many standard errors away from saying nothing.
PART, SURE = 0.01, 4.0
# Draws of y that this is measured with, and the rows: at most, and of each kind at least.
DRAWS_OF_Y, ROWS, FEW = 64, 4000, 20


@dataclass(frozen=True, eq=False)
class Lesson:
    """Rows to learn from, and what goes with them to the estimator's ``fit``."""

    table: Any
    y: NDArray[Any]
    weight: Floats | None
    fit_params: Mapping[str, Any]

    def fitted(self, estimator: Any) -> Any:
        """The estimator, trained on the table as it is."""
        params = {} if self.weight is None else {"sample_weight": self.weight}
        return clone(estimator).fit(self.table, self.y, **self.fit_params, **params)


@dataclass(frozen=True, eq=False)
class Induction:
    """How to learn.

    Attributes
    ----------
    estimator : object
        Not fitted.
    wrap : callable
        :func:`knothole.wrap` with what a caller has settled for every model.
    density, columns, blocks, holes, random_state
        As ``wrap`` takes them.
    tuning : TuningOptions or None
        For ways that tune.
    draws, memory : int
        See :class:`~knothole.learning.induction.grow.Growing`.
    """

    estimator: Any
    wrap: Callable[..., Robust]
    density: Any
    columns: Columns | None
    blocks: Blocks | None
    holes: str
    random_state: Any
    tuning: TuningOptions | None
    draws: int
    memory: int

    def learn(self, lesson: Lesson, ways: list[Way]) -> Learned:
        """The model of the only way, or of the best on rows held out."""
        if lesson.y.ndim == 2 and lesson.y.shape[1] > 1:
            raise InvalidInput(
                f"learn: trees are grown under the expected loss of one target, but y has "
                f"{lesson.y.shape[1]} outputs; use learn='own'."
            )
        own = self.own(lesson)
        first = self.wrap(
            own, lesson.table, lesson.y, self.density, self.columns, blocks=self.blocks,
            holes="all", sample_weight=lesson.weight,
        )  # fmt: skip
        if not isinstance(first.density_, Density):
            raise InvalidInput(
                "learn: a density of your own cannot be conditioned on y; pass one of knothole's, "
                "such as density='auto', or use learn='own'."
            )
        ground = Ground.of(self, lesson, first, own)
        if not ground.completions.incomplete.any():
            ways = [("own", ways[-1][1])]
        trial = Trial.of(ground, first).run(ways) if len(ways) > 1 else None
        way = ways[0] if trial is None else ways[int(trial["loss"].argmin())]
        model = ground.model(way)
        robust = ground.robust(way, model)
        robust.selection_ = first.selection_
        return Learned(robust, model, trial)

    def own(self, lesson: Lesson) -> Any:
        """The estimator trained without us; where it refuses NaN, on columns filled at random."""
        if get_tags(self.estimator).input_tags.allow_nan:
            return lesson.fitted(self.estimator)
        columns = Columns.infer(lesson.table) if self.columns is None else self.columns
        density = Factorized(random_state=0).fit(lesson.table, columns=columns)
        completions = Completions.of(density, lesson.table)
        if not completions.incomplete.any():
            return lesson.fitted(self.estimator)
        return replace(lesson, table=completions.each(1, 0)).fitted(self.estimator)


@dataclass(frozen=True, eq=False)
class Learned:
    """A wrapped model, the model itself, and how the ways to learn compared, if they were."""

    robust: Robust
    model: Any
    trial: pd.DataFrame | None


@dataclass(frozen=True, eq=False)
class Ground:
    """Rows, and the densities that are learned from them.

    Attributes
    ----------
    how : Induction
    lesson : Lesson
    own : object
        The estimator trained without us.
    base : Density
        Over X; NaN is a hole wherever the caller did not declare it a value.
    training : TrainingTable
        The rows, encoded, NaN where the model takes a number for it.
    sentinel : float64 (columns, 2)
        What the model takes for NaN.
    values : bool (columns,)
        Columns in which NaN is a value while trees grow.
    """

    how: Induction
    lesson: Lesson
    own: Any
    base: Density
    training: TrainingTable
    sentinel: Floats
    values: Mask

    @classmethod
    def of(cls, how: Induction, lesson: Lesson, first: Robust, own: Any) -> Ground:
        """All rows, with the density that the own model was wrapped with."""
        base, sentinel = first.density_, first.ensemble_.sentinel
        matrix = with_nan(base.columns_.matrix(lesson.table), sentinel, base.columns_)
        training = TrainingTable(matrix, None, row_weights(lesson.weight, len(matrix)))
        ground = cls(how, lesson, own, base, training, sentinel, base.columns_.nullable)
        return replace(ground, values=ground.meaningful()) if how.holes == "auto" else ground

    def part(self, rows: NDArray[np.intp]) -> Ground:
        """Some of the rows, with densities of the same size and an own model of theirs."""
        given, n = self.lesson, len(self.lesson.y)
        lesson = Lesson(
            take(self.completions.table, rows),
            given.y[rows],
            None if given.weight is None else given.weight[rows],
            aligned(given.fit_params, n, rows),
        )
        training = TrainingTable(self.training.matrix[rows], None, self.training.weight[rows])
        base = training.fit(of_same_size(self.base, self.base), columns=self.base.columns_)
        own = self.how.own(lesson)
        return Ground(self.how, lesson, own, base, training, self.sentinel, self.values)

    def model(self, way: Way) -> Any:
        """What is trained in a way."""
        return self.own if way[0] == "own" else self.grown()

    def robust(self, way: Way, model: Any) -> Robust:
        """What was trained in a way, wrapped and (if the way says so) tuned."""
        density, holes, (learn, tune) = self.density, self.how.holes, way
        if learn == "own" and tune:
            density, holes = self.base, "all"
        elif learn == "own" and holes == "auto":  # as wrap does it by itself
            density = self._with_nullable(nullable_as_met(self.base.columns_, self.training.matrix))
        table, y, weight = self.lesson.table, self.lesson.y, self.lesson.weight
        robust = self.how.wrap(model, table, y, density, holes=holes, sample_weight=weight)
        if self.how.tuning is None or not tune:
            return robust
        holes = "auto" if density.columns_.nullable.any() else "all"
        return robust.tune(table, y, self.how.tuning, sample_weight=weight, holes=holes)

    def grown(self) -> Any:
        """The estimator, trained on completions."""
        seed = int(check_random_state(self.how.random_state).randint(2**31 - 1))
        growing = Growing(
            self.completions, self.lesson.y, self.lesson.weight, self.how.draws, seed,
            self.how.memory, lambda X, y: self._completions(X, y),
        )  # fmt: skip
        return growing.fit(self.how.estimator, **self.lesson.fit_params)

    # ---- densities -------------------------------------------------------------------------------

    @cached_property
    def density(self) -> Density:
        """Over X, NaN a value where it is to be."""
        return self._with_nullable(self.base.columns_.with_nullable(self.values))

    def _with_nullable(self, columns: Columns) -> Density:
        if (columns.nullable == self.base.columns_.nullable).all():
            return self.base
        return self.training.fit(of_same_size(self.base, self.base), columns=columns)

    @cached_property
    def known(self) -> Conditioned:
        """Over X and y."""
        labels = is_classifier(self.how.estimator)
        return Conditioned.of(self.density, self.training, self.lesson.y, labels, "auto")

    @cached_property
    def completions(self) -> Completions:
        """Of the rows, given y."""
        return self._completions(self.lesson.table, self.lesson.y)

    def _completions(self, X: Any, y: NDArray[Any]) -> Completions:
        density = self.known.density
        rule = HoleRule.of(density.columns_, self.sentinel)
        values, holes = rule.read(density.columns_.matrix(X))
        gone = np.isnan(values) if holes is None else holes
        return Completions.of(density, X, self.known.given(self.lesson.y, y), gone)

    # ---- what NaN means --------------------------------------------------------------------------

    def meaningful(self) -> Mask:
        """Columns in which NaN says something of y that what is observed does not, (columns,).

        Where holes come at random, y is as far from its mean given x_o, on average, whether a
        variable is observed or not.
        """
        columns, density = self.base.columns_, self.known.density
        found = columns.nullable.copy()
        rows = np.random.default_rng(0).permutation(len(self.lesson.y))[:ROWS]
        own = columns.evidence(self.training.matrix[rows])
        residual = _residuals(density, own, np.asarray(self.known.target)[rows])
        total = (residual**2).mean(axis=0).sum()
        for place, variable in enumerate(columns.variables):
            gone = np.isnan(own.points[:, place])
            if min(gone.sum(), (~gone).sum()) < FEW:
                continue
            groups = [residual[gone], residual[~gone]]
            apart = groups[0].mean(axis=0) - groups[1].mean(axis=0)
            error = np.sqrt(sum(group.var(axis=0) / len(group) for group in groups))
            gain = gone.mean() * (1 - gone.mean()) * (apart**2).sum()
            if gain > PART * total and (np.abs(apart) > SURE * error).any():
                found[list(variable.columns)] = True
        return found


def _residuals(density: Density, own: Evidence, target: NDArray[Any]) -> Floats:
    """Targets (0 and 1 of classes) less their means given the rows under p, (rows, outputs)."""
    variable = density.variables_[-1]
    drawn = density.complete_points(density.extended(own, None), DRAWS_OF_Y, 0)[:, :, -1]
    truth = encode_target(variable, target)
    if variable.kind is Kind.CATEGORICAL:
        codes = np.arange(len(variable.levels))
        return np.asarray((truth[:, None] == codes) - (drawn[:, :, None] == codes).mean(axis=1))
    return np.asarray(truth - drawn.mean(axis=1))[:, None]


@dataclass(frozen=True, eq=False)
class Trial:
    """Ways side by side on rows held out, with the holes that they have."""

    ground: Ground
    loss: PredictionLoss

    @classmethod
    def of(cls, ground: Ground, first: Robust) -> Trial:
        """Losses as those that densities are chosen by."""
        matrix = ground.training.matrix
        return cls(
            ground, prediction_loss(first.ensemble_, matrix, ground.base.columns_, ground.lesson.y)
        )

    def run(self, ways: list[Way]) -> pd.DataFrame | None:
        """Mean losses by way, None where nothing can be held out."""
        ground = self.ground
        matrix, weight = ground.training.matrix, ground.training.weight
        losses: list[list[Floats]] = [[] for _ in ways]
        held: list[NDArray[np.intp]] = []
        for part in hold_out(matrix, ground.base.columns_, ground.how.random_state):
            if not self._whole(part):
                continue
            held.append(part.held)
            smaller = ground.part(np.sort(part.train))
            for own, way in zip(losses, ways, strict=True):
                robust = smaller.robust(way, smaller.model(way))
                evidence = robust.expectation_.evidence_of(matrix[part.held], robust.holes_)
                response = robust.expectation_.predict(evidence)[0]
                own.append(self.loss.measure(response, self.loss.truth[part.held]))
        if not held:
            return None
        rows = np.concatenate(held)
        means = [np.average(np.concatenate(own), weights=weight[rows]) for own in losses]
        return pd.DataFrame(ways, columns=["learn", "tune"]).assign(loss=means)

    def _whole(self, part: HeldOut) -> bool:
        """Whether the rows to learn from have all columns, and all classes."""
        ground = self.ground
        seen = ~np.isnan(ground.training.matrix[part.train]).all(axis=0)
        if not seen.all():
            return False
        y = ground.lesson.y
        return not is_classifier(ground.how.estimator) or set(y[part.train]) == set(y)
