"""Corrections: what a learned model adds to E_p[f given x_o], because p is not the truth.

A correction has *parts*: ensembles of small trees over what is known of a row and its expected
prediction under p. One part serves rows in which one certain variable alone is missing, another all
other rows with missing values. A row without missing values is not corrected, and one whose missing
values are all determined by what is observed (:mod:`.dependencies`) has the model's own answer.

f(x) of a row that the model was trained on carries the noise of that row's y, and a correction that
learns it makes answers worse. So parts are learned from held-out rows: ``X_valid``, or those that
clones of the model, each fitted without some of the rows, have not seen. These rows are copied with
values hidden, and on the copies each part is boosted from E_p[f given x_o] towards f(x). Copies of
a row are in one fold, and each fold is answered by trees that the others have taught: so the number
of trees is chosen, and which share of their step is taken. A part is kept where it gains more than
twice its standard error, against f and, as far as y is known, against y: trees that come closer to
an f too sure of itself may move away from y. It then learns from all copies again.

docs/decisions/0007 has what each of these pieces was measured to buy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.cached import cached_property
from knothole.checks import check_array, check_choice, require
from knothole.columns.auxiliary import without_auxiliary
from knothole.columns.columns import Columns
from knothole.columns.evidence import NOT_RECORDED, Evidence, missing_in, with_nan
from knothole.columns.read import as_table, class_of, labels_of, listed, places_of
from knothole.densities.base import Density
from knothole.densities.held_out import FEW_ROWS, FOLDS, TOO_FEW_TO_JUDGE, folds, sample_rows
from knothole.errors import InvalidInput
from knothole.expectation.engine import Engine
from knothole.expectation.expectation import Expectation
from knothole.inspection import boosting
from knothole.inspection.dependencies import FunctionalDependencies
from knothole.leaves.induction import take
from knothole.missingness.inference import Reading
from knothole.trees.classes import is_classifier
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import in_levels
from knothole.trees.libraries import unfitted
from knothole.trees.links import Link
from knothole.trees.pipelines.composed import is_composed, read_over
from knothole.trees.read import name_levels, read

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.intp]
#: Patterns (patterns, columns), or what draws a mask for a table: ``patterns(X, seed)``.
Patterns = Mask | Callable[[Any, int], Any]

#: The part that serves what no other serves.
GENERAL = -1
# Copies to learn from: for the general part, and for each variable with a part of its own, which
# are those that the model needs most. Where predictions are not linear in the leaves, every copy
# needs draws, and there are fewer.
COPIES = {True: 2000, False: 1200}
COPIES_OF_ONE = {True: 600, False: 400}
SINGLE = {True: 4, False: 3}
# Copies of a first look. A part has the others only where these gain more than a standard error.
FIRST_COPIES, FIRST_COPIES_OF_ONE = 600, 200
# Of more variables than this, or more outputs, there are fewer copies, as what one takes grows with
# them. So many of the three clones are fitted where rows are many.
WIDE, OUTPUTS = 100, 3
CLONES = 2
# Stages at most; it ends earlier where so many did not gain. Shares of their step.
STAGES = 8
PATIENCE = 2
SHARES = (0.25, 0.5, 0.75, 1.0)
# A gain is beyond doubt from so many standard errors on: a model has several parts.
DOUBT = 2.0
# Rows that tell how much a model needs a variable, and copies that tell the spread, which is
# never so many times what p says, or less than one such part of it.
PROBES = 500
SPREAD_COPIES = 400
MOST_SPREAD = 10.0
# The part of held-out rows that may contradict functional dependencies.
CONTRADICTED = 0.03
# The largest outputs whose squares can be added up.
LARGEST = 1e150
# Shares of missing values by which gains are told.
BANDS = (0.0, 0.2, 0.4, 0.6, 1.0)
# What is hidden in copies: the highest rate; shares of copies in which few variables are missing
# (and how many), which take over the pattern of another row, and which have the user's patterns.
HIGHEST_RATE = 0.7
FEW, NUMBERS = 0.4, (1, 1, 2, 3)
NATURAL = 0.3
GIVEN = 0.5
# No probability is closer to 0 or 1. Of counts and other positive numbers any may be.
LEAST = 1e-6
LEAST_POSITIVE = float(np.finfo(np.float64).tiny)
# The longest step of Newton: where a probability is nearly sure, its curvature says little.
LONGEST = 4.0
_ADVICE = "pass X_valid, rows that the model was not trained on"


@dataclass(frozen=True)
class Space:
    """Where a correction is added: on predictions themselves, or their logarithms or logits.

    Least squares and cross entropy have the same minimum, E[f given x_o], each the loss that suits
    its kind of prediction. ``name`` is "plain", "log", "logit" or "softmax"; ``sizes`` are the
    numbers of classes of a softmax, target by target.

    Examples
    --------
    >>> space = Space("logit")
    >>> bool(np.isclose(space.means(space.base(np.array([[0.2]])) + 1.0)[0, 0], 0.4046, atol=1e-4))
    True
    """

    name: str
    sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, ensemble: Ensemble) -> Space:
        """The one that suits a model."""
        link, classes = ensemble.link.name, ensemble.classes
        if classes is not None and link != "sigmoid" and ensemble.n_responses > 1:
            targets = classes if isinstance(classes[0], tuple) else (classes,)
            return cls("softmax", tuple(len(one) for one in targets if isinstance(one, tuple)))
        if classes is not None:
            return cls("logit")
        names = {"exp": "log", "sigmoid": "logit", "softmax": "softmax"}
        return cls(names.get(link, "plain"), (ensemble.n_outputs,) if link == "softmax" else ())

    @property
    def least(self) -> float:
        """The least prediction that counts."""
        return LEAST_POSITIVE if self.name == "log" else LEAST

    def base(self, mean: Floats) -> Floats:
        """Predictions (rows, outputs) in this space."""
        if self.name == "plain":
            return mean
        if self.name == "logit":
            mean = np.clip(mean, LEAST, 1 - LEAST)
            return np.log(mean) - np.log1p(-mean)
        return np.log(np.maximum(mean, self.least))

    def means(self, z: Floats) -> Floats:
        """The way back."""
        if self.name == "plain":
            return z
        if self.name == "log":
            return np.exp(z)
        if self.name == "logit":
            return Link("sigmoid")(z)
        targets = np.split(z, np.cumsum(self.sizes)[:-1], axis=1)
        return np.hstack([Link("softmax")(target) for target in targets])

    def newton(self, mean: Floats, truth: Floats) -> tuple[Floats, Floats]:
        """What the next trees are to fit, and how much each entry weighs, (rows, outputs) each."""
        if self.name == "plain":
            return truth - mean, np.ones_like(mean)
        weight = np.maximum(mean if self.name == "log" else mean * (1 - mean), self.least)
        return np.clip((truth - mean) / weight, -LONGEST, LONGEST), weight

    def losses(self, mean: Floats, truth: Floats) -> Floats:
        """Losses (rows,): squared errors, or how far the truth's entropy is exceeded."""
        from scipy.special import xlogy

        if self.name == "plain":
            return np.asarray(((truth - mean) ** 2).sum(axis=1))
        q = np.maximum(mean, self.least)
        loss = xlogy(truth, np.maximum(truth, self.least) / q)
        if self.name == "log":
            loss += q - truth
        if self.name == "logit":
            rest = np.maximum(1 - mean, LEAST)
            loss += xlogy(1 - truth, np.maximum(1 - truth, LEAST) / rest)
        return np.asarray(loss.sum(axis=1))

    def slope(self, before: Floats, after: Floats) -> Floats:
        """How much a small change of the expectation changes the corrected one."""
        if self.name == "plain":
            return np.ones_like(before)
        if self.name == "log":
            return after / np.maximum(before, self.least)
        return np.asarray(after * (1 - after) / np.maximum(before * (1 - before), LEAST))


# ---- answers --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """Trees for some of the rows.

    Attributes
    ----------
    variable : int
        The one that is missing in the rows it serves; :data:`GENERAL` for all other rows.
    ensemble : Ensemble
        Over :func:`inputs_of`; its margin is the correction.
    spread : float64 (outputs,)
        What standard deviations under p are multiplied by.
    """

    variable: int
    ensemble: Ensemble
    spread: Floats


def inputs_of(points: Floats, base: Floats) -> Floats:
    """What the trees see: variables, NaN where nothing is recorded or known, and the base."""
    return np.hstack([np.where(points == NOT_RECORDED, np.nan, points), base])


@dataclass(frozen=True, eq=False)
class Correction:
    """All parts, and what is determined by other variables."""

    parts: tuple[Part, ...] = ()
    dependencies: FunctionalDependencies = field(default_factory=FunctionalDependencies.none)

    def check(self, columns: Columns, n_outputs: int) -> None:
        """Refuse what does not fit a model of these columns with so many outputs."""
        n_variables, numbers = len(columns.variables), [part.variable for part in self.parts]
        self.dependencies.check([len(variable.levels) for variable in columns.variables])
        fits = len(set(numbers)) == len(numbers) and bool(numbers or self.dependencies.targets)
        fits = fits and all(GENERAL <= number < n_variables for number in numbers)
        require(fits, f"parts of a correction must be for different variables, not {numbers}")
        for part in self.parts:
            check_array("spread of a correction", part.spread, (n_outputs,))
            require((part.spread >= 0).all(), "spread of a correction must not be negative")
            ensemble = part.ensemble
            fits = len(ensemble.columns) == n_variables + n_outputs
            fits = fits and ensemble.n_outputs == n_outputs and not ensemble.n_levels.any()
            require(fits, "trees of a correction must be over variables and expectations")


@dataclass(frozen=True, eq=False)
class Corrected(Expectation):
    """An expectation whose predictions, spreads and quantiles are corrected; margins are not."""

    correction: Correction = field(default_factory=Correction)

    @classmethod
    def by(cls, expectation: Expectation, correction: Correction) -> Self:
        """An expectation with a correction; tables and draws are shared."""
        given: dict[str, Any] = {
            one.name: getattr(expectation, one.name) for one in fields(Expectation)
        }
        return cls(**{**given, "source": expectation}, correction=correction)

    @cached_property
    def engine(self) -> Engine:
        """What margins come from: to the last bit those of the expectation itself."""
        if self.source is not None and self.exact:
            return self.source.engine
        return self.monte_carlo

    @cached_property
    def space(self) -> Space:
        """Where corrections are added."""
        return Space.of(self.original)

    def predict(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Corrected prediction and its standard error, (rows, outputs) each."""
        evidence = self.correction.dependencies.complete(evidence, self.used)
        mean, error = super().predict(evidence, threads=threads)
        corrected = self._corrected(evidence, mean, threads)
        for _, rows in self._served(evidence):
            error[rows] *= self.space.slope(mean[rows], corrected[rows])
        return corrected, error

    def std(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Standard deviation of the prediction given x_o, and its error, (rows, outputs) each."""
        evidence = self.correction.dependencies.complete(evidence, self.used)
        std, error = super().std(evidence, threads=threads)
        for part, rows in self._served(evidence):
            std[rows] *= part.spread
            error[rows] *= part.spread
        return std, error

    def quantiles(
        self, evidence: Evidence, quantiles: Sequence[float], *, threads: int | None = None
    ) -> tuple[Floats, Floats]:
        """Quantiles of the prediction, and their errors: about the corrected prediction."""
        evidence = self.correction.dependencies.complete(evidence, self.used)
        values, error = super().quantiles(evidence, quantiles, threads=threads)
        mean, _ = super().predict(evidence, threads=threads)
        corrected = self._corrected(evidence, mean, threads)
        for part, rows in self._served(evidence):
            spread = part.spread[:, None]
            values[rows] = corrected[rows, :, None] + spread * (values[rows] - mean[rows, :, None])
            error[rows] *= spread
        return values, error

    def _corrected(self, evidence: Evidence, mean: Floats, threads: int | None) -> Floats:
        """Predictions under p, corrected."""
        corrected, n_variables = mean.copy(), len(self.columns.variables)
        for part, rows in self._served(evidence):
            base = self.space.base(mean[rows])
            inputs = inputs_of(evidence.points[rows, :n_variables], base)
            corrected[rows] = self.space.means(base + part.ensemble.margin(inputs, threads))
        return corrected

    def _served(self, evidence: Evidence) -> Iterator[tuple[Part, Rows]]:
        """Each part with the rows it serves.

        Missing values of variables that no tree uses do not make a row incomplete, but in p they
        matter.
        """
        missing = np.isnan(evidence.points[:, : len(self.columns.variables)])
        count = missing.sum(axis=1)
        left = missing[:, self.used].any(axis=1) & ~self._of_known_cause(evidence).any(axis=1)
        for part in sorted(self.correction.parts, key=lambda part: part.variable, reverse=True):
            alone = (count == 1) & missing[:, part.variable]
            served = left if part.variable == GENERAL else left & alone
            left = left & ~served
            if served.any():
                yield part, np.flatnonzero(served)

    def _of_known_cause(self, evidence: Evidence) -> Mask:
        """Missing values that no part has learned from: the caller says why they are missing."""
        variables, reading = self.columns.variables, self.reading
        missing = np.isnan(evidence.points[:, : len(variables)])
        missing &= np.array([variable.nullable for variable in variables])
        if reading.policy == "infer" and reading.prior is None:
            lost = False if evidence.odds is None else evidence.odds[:, : len(variables)] == 0
            return np.asarray(missing & lost)
        unknown = False if evidence.hypotheses is None else evidence.hypotheses.unknown
        return np.asarray(missing & np.logical_not(unknown))


# Copies of which nothing is hidden, where rows have missing values of their own.
NOTHING = 0.2


# ---- what is hidden in copies ---------------------------------------------------------------


def masks(columns: Columns, matrix: Floats, copies: int, rng: np.random.Generator) -> Mask:
    """Entries to hide, (copies, columns): one at least in each, at many rates or of few variables.

    Some have the missing values of a row of the table too.

    Examples
    --------
    >>> from knothole.columns.columns import Column
    >>> columns = Columns((Column("a"), Column("b")))
    >>> hidden = masks(columns, np.zeros((4, 2)), 5, np.random.default_rng(0))
    >>> hidden.shape, bool(hidden.any(axis=1).all())
    ((5, 2), True)
    """
    n_variables = len(columns.variables)
    gone = rng.random((copies, n_variables)) < HIGHEST_RATE * rng.random((copies, 1))
    rank = rng.permuted(np.tile(np.arange(n_variables), (copies, 1)), axis=1)
    few = rng.random(copies) < FEW
    gone[few] = (rank < rng.choice(NUMBERS, (copies, 1)))[few]
    gone |= ~gone.any(axis=1, keepdims=True) & (rank == 0)
    others = np.isnan(matrix[rng.integers(len(matrix), size=copies)])
    return on_columns(columns, gone) | (others & (rng.random((copies, 1)) < NATURAL))


def on_columns(columns: Columns, of_variables: Mask) -> Mask:
    """From variables to columns: the columns of a one-hot group go together."""
    out = np.empty((len(of_variables), len(columns)), dtype=np.bool_)
    for number, variable in enumerate(columns.variables):
        out[:, list(variable.columns)] = of_variables[:, [number]]
    return out


def given_masks(patterns: Patterns, table: Any, columns: Columns, rows: int, seed: int) -> Mask:
    """A mask (rows, columns) for the user's table: of its columns, or of those that it names."""
    given = patterns(table, seed) if callable(patterns) else patterns
    named = given if hasattr(given, "columns") else as_table(table)
    width, mask = len(labels_of(named)) or len(columns), np.asarray(given)
    places = places_of(named, columns.names) if columns.named else list(range(len(columns)))
    lacks = any(p is None and not c.auxiliary for c, p in zip(columns, places, strict=True))
    fits = mask.dtype == np.bool_ and mask.ndim == 2 and mask.shape[1] == width
    if not fits or not len(mask) or lacks or (callable(patterns) and len(mask) != rows):
        raise InvalidInput(
            f"patterns must be booleans of shape (patterns, {width}), or a function of a table "
            f"and a seed that returns such a mask of the table's shape {rows, width}, as "
            f"knothole.missingness.mar_mask does; got {mask.dtype} of shape {mask.shape}. A "
            f"DataFrame of them must name each of the model's columns: {listed(columns.names)}."
        )
    if not callable(patterns):
        mask = mask[np.random.default_rng(seed).integers(len(mask), size=rows)]
    out = np.zeros((len(mask), len(columns)), dtype=np.bool_)
    there = [number for number, place in enumerate(places) if place is not None]
    out[:, there] = mask[:, [place for place in places if place is not None]]
    return out


# ---- held-out rows --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutPredictions:
    """Rows under a model that was not trained on them: the one that is wrapped, or a clone.

    ``table`` is what the user has, ``matrix`` the same encoded, ``y`` (rows, outputs) the targets
    in units of predictions, NaN where they are not known.
    """

    expectation: Expectation
    table: Any
    matrix: Floats
    y: Floats

    def read_as(self, reading: Reading) -> HeldOutPredictions:
        """The same where missing values mean something else."""
        return replace(self, expectation=self.expectation.read_as(reading))

    @cached_property
    def usable(self) -> Rows:
        """Rows of which the model has a prediction of its own: NaN only where it has met NaN."""
        ensemble = self.expectation.original
        used = np.isin(np.arange(len(ensemble.columns)), ensemble.feature)
        strange = np.isnan(self.matrix) & used & ~self.expectation.columns.nullable
        return np.flatnonzero(~strange.any(axis=1))

    @cached_property
    def output(self) -> Floats:
        """The model's own predictions of rows as they are, (rows, outputs)."""
        columns = self.expectation.columns
        return self.predicted(
            columns.evidence(self.matrix, missing_in(columns, self.matrix)).points
        )

    def predicted(self, points: Floats) -> Floats:
        """The model's own predictions of points without missing values, (rows, outputs)."""
        ensemble = self.expectation.ensemble
        return ensemble.predict(np.ascontiguousarray(points[:, : len(ensemble.columns)]))


def by_clones(
    model: Any,
    expectation: Expectation,
    table: Any,
    matrix: Floats,
    y: Any,
    target: Floats,
    seed: int,
) -> tuple[list[HeldOutPredictions], str]:
    """Clones of the model with the rows they were not fitted to, or why there are none."""
    if y is None:
        return [], f"without y_train no row is known that the model has not learned; {_ADVICE}"
    if not (hasattr(model, "fit") and hasattr(model, "get_params")):
        return [], f"the model cannot be fitted again without some rows; {_ADVICE}"
    order = sample_rows(len(matrix), seed)
    labels = np.asarray(y)[order]
    stratified = is_classifier(expectation.original) and labels.ndim == 1
    parts = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trained = as_trained(table, expectation.columns, model)
            splits = folds(len(order), labels if stratified else None)
            for learned, held in islice(splits, FOLDS if len(matrix) < FEW_ROWS else CLONES):
                clone = unfitted(model, quiet=True)
                clone.fit(some_rows(trained, order[learned]), labels[learned])
                rows = order[held]
                under = _under_density(clone, trained, expectation)
                shown = some_rows(table, rows)
                parts.append(HeldOutPredictions(under, shown, matrix[rows], target[rows]))
    except Exception as error:  # whatever a library has against its own clone
        return [], f"no clone of the model could be made without some rows ({error}); {_ADVICE}"
    return parts, ""


def _under_density(model: Any, table: Any, expectation: Expectation) -> Expectation:
    """A clone under the same density; ``table`` has all rows."""
    composed = is_composed(model)  # and what NaN is to it is known
    ensemble = (
        read_over(model, table, native=False) if composed else name_levels(read(model), table)
    )
    ensemble = replace(ensemble, columns=ensemble.columns.called_as_in(table))
    known = expectation.original.columns
    ensemble = ensemble.with_auxiliary([column for column in known if column.auxiliary])
    ensemble = in_levels(ensemble, expectation.density.columns_)
    if ensemble.n_outputs != expectation.original.n_outputs:
        raise InvalidInput("some of the rows have not all classes")
    return Expectation.of(
        ensemble, expectation.density, tol=expectation.tol, seed=expectation.seed,
        reading=expectation.reading, spread=expectation.given_spread,
    )  # fmt: skip


def as_trained(table: Any, columns: Columns, model: Any) -> Any:
    """A table as the model takes it: its columns, in its order; of a pipeline, all that it knows.

    What is not of pandas becomes so: LightGBM ends the process over text in a table of polars.
    """
    features = columns.names[: len(columns) - int(columns.auxiliary.sum())]
    auxiliary = columns.names[len(features) :]
    table = without_auxiliary(table, auxiliary, getattr(model, "feature_names_in_", ()))
    if is_composed(model):
        return table
    table = table.to_pandas() if hasattr(table, "to_pandas") else table
    places = places_of(table, features) if columns.named else []
    frame = class_of(table) == ("pandas", "DataFrame") and None not in places
    return table.iloc[:, places] if frame and places else table


def some_rows(table: Any, rows: Rows) -> Any:
    """Some rows of a table, as a table of the same class; lists of rows stay lists."""
    return [table[row] for row in rows] if isinstance(table, list) else take(table, rows)


# ---- learning -------------------------------------------------------------------------------


def check_options(correction: Any, patterns: Patterns | None, X_valid: Any) -> None:
    """Refuse options of :func:`knothole.wrap` that contradict one another."""
    check_choice("correction", correction, ("auto", True, False))
    if correction is False and (patterns is not None or X_valid is not None):
        raise InvalidInput(
            "patterns and X_valid are for the correction, and correction=False leaves it out; "
            "leave them out too, or say correction='auto'."
        )


def held_out_predictions(
    model: Any,
    expectation: Expectation,
    table: Any,
    matrix: Floats,
    y: Any,
    target: Floats | None,
    *,
    always: bool = False,
    X_valid: Any = None,
    seed: int = 0,
) -> tuple[list[HeldOutPredictions], str]:
    """Models with rows that they were not fitted to, or why there are none.

    Parameters
    ----------
    table, matrix : the training table, as the user has it and encoded
    y, target
        Targets as the user has them, and (rows, outputs) in units of predictions; or None.
    always : bool
        Whether to take training rows where there are no others.
    X_valid
        See :func:`knothole.wrap`.
    """
    if not isinstance(cast(Any, expectation.density), Density):
        return [], "the density is one of the user's own"
    n_outputs = expectation.original.n_responses
    if X_valid is not None:
        valid = expectation.columns.matrix(X_valid, "missing")
        valid = with_nan(valid, expectation.original.sentinel, expectation.columns)
        unknown = np.full((len(valid), n_outputs), np.nan)
        return [HeldOutPredictions(expectation, X_valid, valid, unknown)], ""
    unknown = np.full((len(matrix), n_outputs), np.nan)
    target = unknown if target is None else target
    held_out, why = by_clones(model, expectation, table, matrix, y, target, seed)
    if not held_out and always:
        held_out = [HeldOutPredictions(expectation, table, matrix, unknown)]
    return held_out, why


def learn_correction(
    expectation: Expectation,
    held_out: Sequence[HeldOutPredictions],
    matrix: Floats,
    *,
    always: bool,
    patterns: Patterns | None = None,
    seed: int = 0,
) -> tuple[Correction | None, pd.DataFrame]:
    """The correction of a model, None where there is none, and the table of what it gains.

    ``always`` keeps parts that have not been shown to gain; ``matrix`` are the training rows.
    """
    columns = expectation.columns
    points, variables = columns.evidence(matrix).points, columns.variables
    dependencies = FunctionalDependencies.learned(variables, points, expectation.used)
    return learn(expectation, held_out, dependencies, always=always, patterns=patterns, seed=seed)


class Copies(NamedTuple):
    """Rows with values hidden: where they come from, what is known, E_p, f(x) and y."""

    source: Rows
    row: Rows
    points: Floats
    mean: Floats
    truth: Floats
    y: Floats

    def joined(self, others: Copies) -> Copies:
        """These copies and others."""
        return Copies(*(np.concatenate(arrays) for arrays in zip(self, others, strict=True)))


class Trial(NamedTuple):
    """How a part does on copies of rows that its trees have not seen.

    ``share`` of the step of so many ``stages`` is taken. ``gains`` (2, copies) are what that takes
    off the losses against f and against y (NaN where y is not known), as shares of the mean loss
    without a correction.
    """

    stages: int
    share: float
    gains: Floats
    copies: Copies
    corrected: Floats

    def promises(self) -> bool:
        """Whether it gains more than a standard error: more copies may tell."""
        gain, error = by_rows(self.gains[0], self.copies.row)
        return gain > error

    def why_not(self) -> str:
        """Why the part is not worth it; empty where it is."""
        if not self.stages:
            return "no number of trees gains on rows held out"
        (gain, error), (y_gain, y_error) = (by_rows(each, self.copies.row) for each in self.gains)
        if not gain > DOUBT * error:
            return "the gain on rows held out is within two standard errors"
        if y_gain <= DOUBT * y_error:
            return "the gain against y on rows held out is within two standard errors"
        return ""


class CorrectionLearner:
    """All that parts of a correction are learned from."""

    def __init__(
        self,
        expectation: Expectation,
        held_out: Sequence[HeldOutPredictions],
        patterns: Patterns | None,
        seed: int,
    ) -> None:
        self.expectation, self.held_out, self.patterns = expectation, held_out, patterns
        self.columns = expectation.columns
        self.space = Space.of(expectation.original)
        self.linear = expectation.ensemble.link.linear
        self.rng = np.random.default_rng(seed)
        self.starts = np.cumsum([0, *(len(one.matrix) for one in held_out)])
        self.fold = self.rng.permutation(self.starts[-1]) % FOLDS

    def copies(self, count: int, hide: Callable[[HeldOutPredictions, Rows], Mask]) -> Copies:
        """About so many copies; ``hide`` says which entries of some rows to hide."""
        total = sum(len(one.usable) for one in self.held_out)
        parts = []
        for number, one in enumerate(self.held_out):
            left = round(count * len(one.usable) / total)
            while left > 0:  # every row once, and then again
                rows = self.rng.permutation(one.usable)[:left]
                parts.append(self._hidden(number, rows, hide(one, rows)))
                left -= len(rows)
        return reduce(Copies.joined, parts)

    def _hidden(self, number: int, rows: Rows, hidden: Mask) -> Copies:
        one = self.held_out[number]
        evidence = one.expectation.evidence_of(np.where(hidden, np.nan, one.matrix[rows]))
        used = np.isnan(evidence.points[:, one.expectation.used]).any(axis=1)
        rows, evidence = rows[used], evidence[np.flatnonzero(used)]
        mean, _ = one.expectation.rough.predict(evidence)
        points = evidence.points[:, : len(self.columns.variables)]
        where = np.full(len(rows), number), rows + self.starts[number]
        return Copies(*where, points, mean, one.output[rows], one.y[rows])

    def hide_some(self, one: HeldOutPredictions, rows: Rows) -> Mask:
        """Patterns of all kinds."""
        hidden = masks(self.columns, one.matrix, len(rows), self.rng)
        if self.columns.nullable.any():  # rows that lost nothing may have missing values, too
            hidden = hidden & (self.rng.random((len(rows), 1)) >= NOTHING)
        if self.patterns is not None:
            seed = int(self.rng.integers(2**31 - 1))
            given = given_masks(self.patterns, one.table, self.columns, len(one.matrix), seed)[rows]
            hidden = np.where(self.rng.random((len(rows), 1)) < GIVEN, given, hidden)
        return hidden

    def hide_one(self, variable: int) -> Callable[[HeldOutPredictions, Rows], Mask]:
        """A certain variable is missing."""
        gone = np.arange(len(self.columns.variables)) == variable
        return lambda _, rows: np.repeat(on_columns(self.columns, gone[None]), len(rows), axis=0)

    def judged(self, dependencies: FunctionalDependencies) -> tuple[float, float, str]:
        """What dependencies gain against f, its error, and why to leave them out, if so.

        E_p may be the better answer to rows that are as good as complete: it smooths what a model
        has learned too well. So dependencies are left out where y speaks against them.
        """

        def hide(_: HeldOutPredictions, rows: Rows) -> Mask:
            gone = self.rng.choice(dependencies.targets, (len(rows), 1))
            return on_columns(self.columns, gone == np.arange(len(self.columns.variables)))

        copies, used = self.copies(COPIES_OF_ONE[self.linear], hide), self.expectation.used
        points = dependencies.complete(Evidence(copies.points), used).points
        complete = ~np.isnan(points[:, used]).any(axis=1)
        arrays: list[Any] = [array[complete] for array in copies]
        copies, points = Copies(*arrays), points[complete]
        if len(copies.row) < TOO_FEW_TO_JUDGE:
            why = f"{len(copies.row)} rows to judge it by; it takes {TOO_FEW_TO_JUDGE}"
            return np.nan, np.nan, why
        answer = np.empty_like(copies.truth)
        for number, one in enumerate(self.held_out):
            rows = copies.source == number
            answer[rows] = one.predicted(points[rows])
        before, after = (
            np.stack([self.space.losses(mean, truth) for truth in (copies.truth, copies.y)])
            for mean in (copies.mean, answer)
        )
        gain, error = by_rows((before[0] - after[0]) / (before[0].mean() or 1.0), copies.row)
        y_gain, y_error = by_rows(before[1] - after[1], copies.row)
        why = "y of rows held out speaks against it" if y_gain < -y_error else ""
        if (answer != copies.truth).any(axis=1).mean() > CONTRADICTED:
            why = "rows held out contradict it"
        return gain, error, why

    def needed(self) -> list[int]:
        """Variables by how much predictions change where a variable is shuffled, the most first."""
        ensemble = self.expectation.original
        matrix = np.concatenate([one.matrix for one in self.held_out])
        matrix = matrix[self.rng.permutation(len(matrix))[:PROBES]]
        predicted, change = ensemble.predict(matrix), {}
        for number in self.expectation.used.tolist():
            shuffled = matrix.copy()
            members = list(self.columns.variables[number].columns)
            shuffled[:, members] = matrix[self.rng.permutation(len(matrix))][:, members]
            change[number] = float(((ensemble.predict(shuffled) - predicted) ** 2).mean())
        return sorted(change, key=change.__getitem__, reverse=True)

    def inputs(self, copies: Copies) -> tuple[Floats, Floats]:
        """What the trees see, and where they start."""
        base = self.space.base(copies.mean)
        return inputs_of(copies.points, base), base

    def boost(
        self, inputs: Floats, base: Floats, truth: Floats, weight: Floats
    ) -> Iterator[boosting.Stage]:
        """Stages of trees from the base towards the truth."""
        return boosting.boost(
            inputs, base, weight, lambda z: self.space.newton(self.space.means(z), truth)
        )

    def weights(self, copies: Copies, general: bool = True) -> Floats:
        """One over the variance to expect of f(x), so that rows with few missing values count.

        1 where one variable alone is missing, and where the loss knows of the variance itself.
        """
        if not general or self.space.name != "plain":
            return np.ones(len(copies.row))
        squares = ((copies.truth - copies.mean) ** 2).mean(axis=1)
        known = np.hstack([np.isnan(copies.points), copies.mean])
        return boosting.precisions(known, squares, self.fold[copies.row])

    def losses(self, z: Floats, copies: Copies, weight: Floats) -> Floats:
        """Losses of copies against f and against y, (2, copies)."""
        mean = self.space.means(z)
        return weight * np.stack(
            [self.space.losses(mean, each) for each in (copies.truth, copies.y)]
        )

    def tried(self, copies: Copies, weight: Floats, always: bool = False) -> Trial:
        """A part as it does on copies of rows that its trees have not seen.

        It goes on after the first stage only if that gains beyond doubt, or ``always``.
        """
        inputs, base = self.inputs(copies)
        fold, z, boosts = self.fold[copies.row], base.copy(), []
        for number in range(FOLDS):
            others = fold != number
            taught = inputs[others], base[others], copies.truth[others], weight[others]
            boosts.append((fold == number, self.boost(*taught)))
        before = self.losses(base, copies, weight)
        unit = np.where(before.mean(axis=1) == 0, 1.0, before.mean(axis=1))[:, None]
        least, best = before[0].mean(), Trial(0, 0.0, np.zeros_like(before), copies, copies.mean)
        for stages in range(1, STAGES + 1):
            for answered, boost in boosts:
                z[answered] += boosting.step(next(boost), inputs[answered])
            for share in SHARES:
                after = base + share * (z - base)
                losses = self.losses(after, copies, weight)
                if losses[0].mean() < least:
                    gains = (before - losses) / unit
                    least = losses[0].mean()
                    best = Trial(stages, share, gains, copies, self.space.means(after))
            if stages - best.stages >= PATIENCE or (stages == 1 and not always and best.why_not()):
                break
        return best

    def part(self, variable: int, copies: Copies, weight: Floats, trial: Trial) -> Part:
        """The part itself, learned from all copies."""
        inputs, base = self.inputs(copies)
        boost = self.boost(inputs, base, copies.truth, weight)
        stages = [next(boost) for _ in range(trial.stages)]
        names = [f"variable {number}" for number in range(copies.points.shape[1])]
        names += [f"expected {number}" for number in range(base.shape[1])]
        return Part(variable, boosting.as_ensemble(stages, names, trial.share), self.spread(trial))

    def spread(self, trial: Trial) -> Floats:
        """How much farther f lies from corrected predictions than p says, for each output."""
        copies, squares, variances = trial.copies, [], []
        for number, one in enumerate(self.held_out):
            rows = np.flatnonzero(copies.source == number)[: SPREAD_COPIES // len(self.held_out)]
            density, reading = one.expectation.density, one.expectation.reading
            evidence = density.extended(Evidence(copies.points[rows]), None)
            evidence = reading.read(density, evidence, self.columns.variables)
            variances.append(one.expectation.rough.std(evidence)[0] ** 2)
            squares.append((copies.truth[rows] - trial.corrected[rows]) ** 2)
        square, expected = (np.concatenate(each).mean(axis=0) for each in (squares, variances))
        times = np.sqrt(np.where(expected > 0, square, 1.0) / np.where(expected > 0, expected, 1.0))
        return np.clip(times, 1 / MOST_SPREAD, MOST_SPREAD)


def learn(
    expectation: Expectation,
    held_out: Sequence[HeldOutPredictions],
    dependencies: FunctionalDependencies,
    *,
    always: bool,
    patterns: Patterns | None = None,
    seed: int = 0,
) -> tuple[Correction | None, pd.DataFrame]:
    """A correction, None where there is none, and the table of what it gains.

    ``always`` keeps parts that have not been shown to gain. Of dependencies, all are taken or none.
    """
    rows = sum(len(one.usable) for one in held_out)
    if rows < TOO_FEW_TO_JUDGE:
        return None, no_correction(
            f"{rows} rows to learn from; it takes at least {TOO_FEW_TO_JUDGE}"
        )
    if max(np.abs(one.output).max(initial=0.0) for one in held_out) > LARGEST:
        return None, no_correction(f"outputs beyond {LARGEST:g} cannot be squared")
    import pandas as pd

    learner = CorrectionLearner(expectation, held_out, patterns, seed)
    parts: list[Part] = []
    table: list[dict[str, Any]] = []
    if dependencies.targets:  # by draws of its own: parts are what they would be without it
        gain, error, why = CorrectionLearner(expectation, held_out, patterns, seed).judged(
            dependencies
        )
        dependencies = FunctionalDependencies.none() if why else dependencies
        about = {"trees": 0, "share": 1.0, "kept": not why, "why": why}
        table.append({"missing": "determined by others", "gain": gain, "error": error, **about})
    for variable in [*learner.needed()[: SINGLE[learner.linear]], GENERAL]:
        general = variable == GENERAL
        count = COPIES[learner.linear] if general else min(COPIES_OF_ONE[learner.linear], rows)
        outputs = expectation.original.n_responses
        count = round(count * min(1.0, WIDE / len(learner.columns.variables), OUTPUTS / outputs))
        hide = learner.hide_some if general else learner.hide_one(variable)
        first = min(count, FIRST_COPIES if general else FIRST_COPIES_OF_ONE)
        copies = learner.copies(count if always else first, hide)
        by_fold = np.bincount(learner.fold[copies.row], minlength=FOLDS)
        if by_fold.min() < TOO_FEW_TO_JUDGE // 4:  # NaN is a value of the model there
            continue
        weight = learner.weights(copies, general)
        trial = learner.tried(copies, weight, always)
        if not always and first < count and trial.promises():
            copies = copies.joined(learner.copies(count - first, hide))
            weight = learner.weights(copies, general)
            trial = learner.tried(copies, weight)
        why = "" if always and trial.stages else trial.why_not()
        if not why:
            parts.append(learner.part(variable, copies, weight, trial))
        table += told(learner.columns, variable, trial, why)
    if not table:
        return None, no_correction("no NaN is a missing value")
    correction = Correction(tuple(parts), dependencies)
    return correction if parts or dependencies.targets else None, pd.DataFrame(table)


def told(columns: Columns, variable: int, trial: Trial, why: str) -> list[dict[str, Any]]:
    """Rows of the table: a variable that is missing, or shares of missing values."""
    trees = trial.stages * boosting.TREES * trial.corrected.shape[1]
    about = {"trees": trees, "share": trial.share, "kept": not why, "why": why}
    name = "any other" if variable == GENERAL else f"{columns.variables[variable].name} gone"
    gain, error = by_rows(trial.gains[0], trial.copies.row)
    rows = [{"missing": name, "gain": gain, "error": error, **about}]
    share = np.isnan(trial.copies.points).mean(axis=1)
    for low, high in pairwise(BANDS) if variable == GENERAL else ():
        band = (share > low) & (share <= high)
        if band.any():
            gain, error = by_rows(trial.gains[0][band], trial.copies.row[band])
            name = f"any other, {100 * low:.0f} to {100 * high:.0f} %"
            rows.append({"missing": name, "gain": gain, "error": error, **about})
    return rows


def no_correction(why: str) -> pd.DataFrame:
    """The table where nothing was learned."""
    import pandas as pd

    row = {"missing": "any", "gain": np.nan, "error": np.nan, "trees": 0, "share": 0.0}
    return pd.DataFrame([row | {"kept": False, "why": why}])


def by_rows(values: Floats, rows: Rows) -> tuple[float, float]:
    """Mean over copies and its standard error, copies of a row taken together."""
    _, which = np.unique(rows, return_inverse=True)
    mean = float(values.mean())
    beyond = np.bincount(which, values - mean)
    return mean, float(np.sqrt((beyond**2).sum()) / len(values))
