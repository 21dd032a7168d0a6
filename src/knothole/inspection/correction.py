"""Corrections: what a learned model adds to E_p[f given x_o], because p is not the truth.

A correction has *parts*: ensembles of small trees over the observed values of a row and its
expected prediction under p. Some parts serve the rows in which one particular variable alone is
missing, one serves all other rows with missing values. A row without missing values is not
corrected, and a row whose missing values are all determined by observed ones (:mod:`.dependencies`)
gets the model's own prediction.

For a row that the model was trained on, f(x) carries the noise of the row's y, and a correction
that learns it makes predictions worse. So parts are learned from held-out rows: ``X_valid``, or
rows that clones of the model were not fitted to. The rows are copied with values hidden, and each
part is boosted on the copies from E_p[f given x_o] towards f(x). All copies of a row are in one
fold, and each fold is predicted by trees that were learned from the others: so the number of trees
is chosen, and which share of their step is taken. A part is used if it gains more than twice its
standard error, against f and, if y is known, against y: trees that come closer to an overconfident
f may move away from y. It is then learned again from all copies.

docs/decisions/0007 has the measured gain of each of these pieces.
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
#: Patterns (patterns, columns), or a function that draws a mask for a table: ``(X, seed)``.
Patterns = Mask | Callable[[Any, int], Any]

#: Number of the part for all rows that no other part serves.
GENERAL = -1
# Copies to learn from: for the general part, and for each of the variables with a part of their
# own, which are those that the model needs most. Where predictions are not linear in the leaves,
# every copy takes draws, and there are fewer.
COPIES = {True: 2000, False: 1200}
COPIES_OF_ONE = {True: 600, False: 400}
SINGLE = {True: 4, False: 3}
# Copies of a first trial. The other copies are made only if it gains more than a standard error.
FIRST_COPIES, FIRST_COPIES_OF_ONE = 600, 200
# With more variables or outputs there are fewer copies, since each takes longer. If there are
# many rows, only so many of the three clones are fitted.
WIDE, OUTPUTS = 100, 3
CLONES = 2
# Number of stages; boosting ends after so many without gain. Shares of their step.
STAGES = 8
PATIENCE = 2
SHARES = (0.25, 0.5, 0.75, 1.0)
# Standard errors from which a gain counts as significant: a model has several parts.
DOUBT = 2.0
# Rows to find out how much a model needs a variable; copies to estimate the spread, whose ratio to
# p's own is kept within these bounds.
PROBES = 500
SPREAD_COPIES = 400
MOST_SPREAD = 10.0
# Fraction of held-out rows that may contradict functional dependencies.
CONTRADICTED = 0.03
# The largest outputs whose squares can be summed without overflow.
LARGEST = 1e150
# Shares of missing values by which gains are reported.
BANDS = (0.0, 0.2, 0.4, 0.6, 1.0)
# What is hidden in copies: the highest rate; shares of copies with few missing variables (and how
# many), with the pattern of another row, and with the user's patterns.
HIGHEST_RATE = 0.7
FEW, NUMBERS = 0.4, (1, 1, 2, 3)
NATURAL = 0.3
GIVEN = 0.5
# Bound of probabilities from 0 and 1. Counts and other positive numbers have none.
LEAST = 1e-6
LEAST_POSITIVE = float(np.finfo(np.float64).tiny)
# The longest Newton step: where a probability is nearly 0 or 1, its curvature says little.
LONGEST = 4.0
_ADVICE = "pass X_valid, rows that the model was not trained on"


@dataclass(frozen=True)
class Space:
    """The scale on which a correction is added: predictions, their logarithms, or their logits.

    Least squares and cross-entropy have the same minimum, E[f given x_o]; each is the usual loss
    for its kind of prediction. ``name`` is "plain", "log", "logit" or "softmax"; ``sizes`` are the
    numbers of classes of a softmax, one for each target.

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
        """The space that suits a model."""
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
        """Lower bound of predictions."""
        return LEAST_POSITIVE if self.name == "log" else LEAST

    def base(self, mean: Floats) -> Floats:
        """Predictions (rows, outputs) on this scale."""
        if self.name == "plain":
            return mean
        if self.name == "logit":
            mean = np.clip(mean, LEAST, 1 - LEAST)
            return np.log(mean) - np.log1p(-mean)
        return np.log(np.maximum(mean, self.least))

    def means(self, z: Floats) -> Floats:
        """Back from this scale to predictions."""
        if self.name == "plain":
            return z
        if self.name == "log":
            return np.exp(z)
        if self.name == "logit":
            return Link("sigmoid")(z)
        targets = np.split(z, np.cumsum(self.sizes)[:-1], axis=1)
        return np.hstack([Link("softmax")(target) for target in targets])

    def newton(self, mean: Floats, truth: Floats) -> tuple[Floats, Floats]:
        """Targets of the next trees and the weights of their entries, (rows, outputs) each."""
        if self.name == "plain":
            return truth - mean, np.ones_like(mean)
        weight = np.maximum(mean if self.name == "log" else mean * (1 - mean), self.least)
        return np.clip((truth - mean) / weight, -LONGEST, LONGEST), weight

    def losses(self, mean: Floats, truth: Floats) -> Floats:
        """Losses (rows,): squared errors, or cross-entropy minus the entropy of the truth."""
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
        """Derivative of the corrected prediction with respect to the expected one."""
        if self.name == "plain":
            return np.ones_like(before)
        if self.name == "log":
            return after / np.maximum(before, self.least)
        return np.asarray(after * (1 - after) / np.maximum(before * (1 - before), LEAST))


# ---- answers --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """Trees that correct some of the rows.

    Attributes
    ----------
    variable : int
        The only missing variable of the rows it serves; :data:`GENERAL` for all other rows.
    ensemble : Ensemble
        Over :func:`inputs_of`; its margin is the correction.
    spread : float64 (outputs,)
        Factor by which standard deviations under p are multiplied.
    """

    variable: int
    ensemble: Ensemble
    spread: Floats


def inputs_of(points: Floats, base: Floats) -> Floats:
    """The inputs of the trees: variables (NaN if missing or not recorded), and the base."""
    return np.hstack([np.where(points == NOT_RECORDED, np.nan, points), base])


@dataclass(frozen=True, eq=False)
class Correction:
    """All parts, and the functional dependencies."""

    parts: tuple[Part, ...] = ()
    dependencies: FunctionalDependencies = field(default_factory=FunctionalDependencies.none)

    def check(self, columns: Columns, n_outputs: int) -> None:
        """Refuse a correction that does not fit a model of these columns and outputs."""
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
    """An expectation with corrected predictions, spreads and quantiles, but the same margins."""

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
        """The engine of the expectation itself, so that margins are the same to the last bit."""
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
        """Quantiles of the prediction and their errors, centred on the corrected prediction."""
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

        Missing values of variables that no tree uses do not make a row incomplete, but they matter
        under p.
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
        """Missing values whose cause the caller gives: no part has learned from such rows."""
        variables, reading = self.columns.variables, self.reading
        missing = np.isnan(evidence.points[:, : len(variables)])
        missing &= np.array([variable.nullable for variable in variables])
        if reading.policy == "infer" and reading.prior is None:
            lost = False if evidence.odds is None else evidence.odds[:, : len(variables)] == 0
            return np.asarray(missing & lost)
        unknown = False if evidence.hypotheses is None else evidence.hypotheses.unknown
        return np.asarray(missing & np.logical_not(unknown))


# Share of copies with nothing hidden, if rows have missing values of their own.
UNHIDDEN_SHARE = 0.2


# ---- what is hidden in copies ---------------------------------------------------------------


def masks(columns: Columns, matrix: Floats, copies: int, rng: np.random.Generator) -> Mask:
    """Entries to hide, (copies, columns): at least one in each, at many rates or few variables.

    Some copies also take over the missing values of another row.

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
    """From variables to columns: all columns of a one-hot group get the group's entry."""
    out = np.empty((len(of_variables), len(columns)), dtype=np.bool_)
    for number, variable in enumerate(columns.variables):
        out[:, list(variable.columns)] = of_variables[:, [number]]
    return out


def given_masks(patterns: Patterns, table: Any, columns: Columns, rows: int, seed: int) -> Mask:
    """The user's patterns as a mask (rows, columns) of the columns, or of those that it names."""
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
    """Rows and a model that was not trained on them: the wrapped model, or a clone.

    ``table`` is the user's, ``matrix`` the same encoded, ``y`` (rows, outputs) the targets in units
    of predictions, NaN where unknown.
    """

    expectation: Expectation
    table: Any
    matrix: Floats
    y: Floats

    def read_as(self, reading: Reading) -> HeldOutPredictions:
        """The same rows, with missing values read in another way."""
        return replace(self, expectation=self.expectation.read_as(reading))

    @cached_property
    def usable(self) -> Rows:
        """Rows that the model itself can predict: NaN only where NaN occurred in its training."""
        ensemble = self.expectation.original
        used = np.isin(np.arange(len(ensemble.columns)), ensemble.feature)
        strange = np.isnan(self.matrix) & used & ~self.expectation.columns.nullable
        return np.flatnonzero(~strange.any(axis=1))

    @cached_property
    def output(self) -> Floats:
        """The model's own predictions of the rows as they are, (rows, outputs)."""
        columns = self.expectation.columns
        return self.predicted(
            columns.evidence(self.matrix, missing_in(columns, self.matrix)).points
        )

    def predicted(self, points: Floats) -> Floats:
        """The model's own predictions for points without missing values, (rows, outputs)."""
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
    """Clones of the model with the rows they were not fitted to, or the reason for none."""
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
    except Exception as error:  # a library may refuse its own clone for any reason
        return [], f"no clone of the model could be made without some rows ({error}); {_ADVICE}"
    return parts, ""


def _under_density(model: Any, table: Any, expectation: Expectation) -> Expectation:
    """A clone under the same density; ``table`` has all rows."""
    composed = is_composed(model)  # the meaning of NaN is known already
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
    """A table as the model was trained on it: its columns, in order; all of a pipeline's columns.

    Other tables become pandas tables: LightGBM ends the process over text in a polars table.
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
    """Refuse options of :func:`knothole.wrap` that contradict each other."""
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
    """Models with rows that they were not fitted to, or the reason for none.

    Parameters
    ----------
    table, matrix : the training table, as the user has it and encoded
    y, target
        Targets as the user passed them, and (rows, outputs) in units of predictions; or None.
    always : bool
        Whether to use training rows if there are no others.
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
    """The correction of a model (None if there is none), and the table of its gains.

    ``always`` also keeps parts without a proven gain; ``matrix`` has the training rows.
    """
    columns = expectation.columns
    points, variables = columns.evidence(matrix).points, columns.variables
    dependencies = FunctionalDependencies.learned(variables, points, expectation.used)
    return learn(expectation, held_out, dependencies, always=always, patterns=patterns, seed=seed)


class Copies(NamedTuple):
    """Rows with values hidden: their origin, what is known, E_p, f(x) and y."""

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
    """How well a part predicts copies of rows that its trees were not learned from.

    ``share`` of the step of so many ``stages`` is taken. ``gains`` (2, copies) are the resulting
    reductions of the losses against f and against y (NaN if y is unknown), relative to the mean
    loss without a correction.
    """

    stages: int
    share: float
    gains: Floats
    copies: Copies
    corrected: Floats

    def promises(self) -> bool:
        """Whether the gain exceeds a standard error, so that more copies may prove it."""
        gain, error = by_rows(self.gains[0], self.copies.row)
        return gain > error

    def why_not(self) -> str:
        """The reason not to use the part; empty if there is none."""
        if not self.stages:
            return "no correction improved the held-out error"
        (gain, error), (y_gain, y_error) = (by_rows(each, self.copies.row) for each in self.gains)
        if not gain > DOUBT * error:
            return "the gain on rows held out is within two standard errors"
        if y_gain <= DOUBT * y_error:
            return "the gain against y on rows held out is within two standard errors"
        return ""


class CorrectionLearner:
    """Learns the parts of a correction."""

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
        """About ``count`` copies; ``hide`` returns the entries of rows to hide."""
        total = sum(len(one.usable) for one in self.held_out)
        parts = []
        for number, one in enumerate(self.held_out):
            left = round(count * len(one.usable) / total)
            while left > 0:  # every row once before any row twice
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
        """Hide patterns of all kinds."""
        hidden = masks(self.columns, one.matrix, len(rows), self.rng)
        if self.columns.nullable.any():  # complete rows may have some of their own
            hidden = hidden & (self.rng.random((len(rows), 1)) >= UNHIDDEN_SHARE)
        if self.patterns is not None:
            seed = int(self.rng.integers(2**31 - 1))
            given = given_masks(self.patterns, one.table, self.columns, len(one.matrix), seed)[rows]
            hidden = np.where(self.rng.random((len(rows), 1)) < GIVEN, given, hidden)
        return hidden

    def hide_one(self, variable: int) -> Callable[[HeldOutPredictions, Rows], Mask]:
        """Hide one particular variable."""
        gone = np.arange(len(self.columns.variables)) == variable
        return lambda _, rows: np.repeat(on_columns(self.columns, gone[None]), len(rows), axis=0)

    def judged(self, dependencies: FunctionalDependencies) -> tuple[float, float, str]:
        """The gain of dependencies against f, its error, and the reason to leave them out, if any.

        E_p may be better for rows that are as good as complete, since it smooths an overfitted
        model. So dependencies are left out if y is evidence against them.
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
        """Variables by how much predictions change if the variable is shuffled, largest first."""
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
        """The inputs of the trees, and their starting margins."""
        base = self.space.base(copies.mean)
        return inputs_of(copies.points, base), base

    def boost(
        self, inputs: Floats, base: Floats, truth: Floats, weight: Floats
    ) -> Iterator[boosting.Stage]:
        """Yield stages of trees that are fitted from the base towards the truth."""
        return boosting.boost(
            inputs, base, weight, lambda z: self.space.newton(self.space.means(z), truth)
        )

    def weights(self, copies: Copies, general: bool = True) -> Floats:
        """One over the expected variance of f(x), so that rows with few missing values count.

        1 if one variable alone is missing, or if the loss accounts for the variance itself.
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
        """Cross-validate a part on copies of rows that its trees were not learned from.

        It continues after the first stage only if that gains significantly, or if ``always``.
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
        """The part, learned from all copies."""
        inputs, base = self.inputs(copies)
        boost = self.boost(inputs, base, copies.truth, weight)
        stages = [next(boost) for _ in range(trial.stages)]
        names = [f"variable {number}" for number in range(copies.points.shape[1])]
        names += [f"expected {number}" for number in range(base.shape[1])]
        return Part(variable, boosting.as_ensemble(stages, names, trial.share), self.spread(trial))

    def spread(self, trial: Trial) -> Floats:
        """The error of corrected predictions relative to the spread under p, for each output."""
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
    """A correction (None if there is none), and the table of its gains.

    ``always`` also keeps parts without a proven gain. Dependencies are used all together or not.
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
    if dependencies.targets:  # with its own random numbers, so that parts do not depend on it
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
    """Rows of the table: a missing variable, or ranges of the share of missing values."""
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
    """The table if nothing was learned."""
    import pandas as pd

    row = {"missing": "any", "gain": np.nan, "error": np.nan, "trees": 0, "share": 0.0}
    return pd.DataFrame([row | {"kept": False, "why": why}])


def by_rows(values: Floats, rows: Rows) -> tuple[float, float]:
    """Mean over copies and its standard error; copies of a row are averaged first."""
    _, which = np.unique(rows, return_inverse=True)
    mean = float(values.mean())
    beyond = np.bincount(which, values - mean)
    return mean, float(np.sqrt((beyond**2).sum()) / len(values))
