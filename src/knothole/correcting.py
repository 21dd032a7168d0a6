"""Rows to learn a correction from: those that a model was not trained on.

f(x) of a row that the model was trained on carries the noise of that row's y, and a correction that
learns it makes answers worse. So ``X_valid`` is used, or clones of the model, each fitted without
some of the rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_choice
from knothole.columns.columns import Columns
from knothole.columns.evidence import with_nan
from knothole.columns.read import class_of, places_of
from knothole.densities.base import Density
from knothole.densities.held_out import folds, sample_rows
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.inspection.correction.corrected import Correction
from knothole.inspection.correction.determined import Determined
from knothole.inspection.correction.learn import Honest, learn, no_correction
from knothole.inspection.correction.patterns import Patterns
from knothole.leaves.induction.filling import take
from knothole.trees.classes import is_classifier
from knothole.trees.in_variables import in_levels
from knothole.trees.libraries import unfitted
from knothole.trees.pipelines.read import is_composed, read_over
from knothole.trees.read import read
from knothole.trees.readers.catboost import name_levels

if TYPE_CHECKING:
    import pandas as pd

_ADVICE = "pass X_valid, rows that the model was not trained on"


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows: as the user has them and encoded, y as it was given, and as predictions.

    ``y`` and ``target`` (rows, outputs) are None where they are not known.
    """

    table: Any
    matrix: Floats
    y: Any
    target: Floats | None


@dataclass(frozen=True, eq=False)
class Correcting:
    """What the user wants of a correction; see :func:`knothole.wrap`."""

    correct: Any
    patterns: Patterns | None
    X_valid: Any
    seed: int

    def __post_init__(self) -> None:
        check_choice("correct", self.correct, ("auto", True, False))
        if self.correct is False and (self.patterns is not None or self.X_valid is not None):
            raise InvalidInput(
                "patterns and X_valid are for the correction, and correct=False leaves it out; "
                "leave them out too, or say correct='auto'."
            )

    def learned(
        self, model: Any, rows: Rows, expectation: Expectation
    ) -> tuple[Correction | None, pd.DataFrame]:
        """The correction of a model, None where there is none, and what was found."""
        always, density = self.correct is True, cast(Any, expectation.density)
        unknown = np.full((1, expectation.original.n_responses), np.nan)
        if not isinstance(density, Density):
            return None, no_correction("the density is one of the user's own")
        if self.X_valid is not None:
            valid = expectation.columns.matrix(self.X_valid, "hole")
            valid = with_nan(valid, expectation.original.sentinel, expectation.columns)
            y, why = unknown.repeat(len(valid), axis=0), ""
            honest = [Honest(expectation, self.X_valid, valid, y)]
        else:
            honest, why = by_clones(model, rows, expectation, self.seed)
        if not honest and always:
            y = unknown.repeat(len(rows.matrix), axis=0)
            honest = [Honest(expectation, rows.table, rows.matrix, y)]
        if not honest:
            return None, no_correction(why)
        points = expectation.evidence_of(rows.matrix).points
        determined = Determined.learned(expectation.columns.variables, points, expectation.used)
        return learn(
            expectation, honest, always=always, patterns=self.patterns, determined=determined,
            seed=self.seed,
        )  # fmt: skip


def by_clones(
    model: Any, rows: Rows, expectation: Expectation, seed: int
) -> tuple[list[Honest], str]:
    """Clones of the model with the rows they were not fitted to, or why there are none."""
    if rows.y is None:
        return [], f"without y_train no row is known that the model has not learned; {_ADVICE}"
    if not (hasattr(model, "fit") and hasattr(model, "get_params")):
        return [], f"the model cannot be fitted again without some rows; {_ADVICE}"
    order = sample_rows(len(rows.matrix), seed)
    labels = np.asarray(rows.y)[order]
    stratified = is_classifier(expectation.original) and labels.ndim == 1
    unknown = np.full((len(rows.matrix), expectation.original.n_responses), np.nan)
    target = unknown if rows.target is None else rows.target
    found = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = rows.table
            if not is_composed(model):
                table = as_trained(table, expectation.columns)
            for learned, held in folds(len(order), labels if stratified else None):
                fitted = unfitted(model, quiet=True)
                fitted.fit(some_rows(table, order[learned]), labels[learned])
                own = _under(fitted, table, expectation)
                rest = order[held]
                part = some_rows(rows.table, rest)
                found.append(Honest(own, part, rows.matrix[rest], target[rest]))
    except Exception as error:  # whatever a library has against its own clone
        return [], f"no clone of the model could be made without some rows ({error}); {_ADVICE}"
    return found, ""


def _under(model: Any, table: Any, expectation: Expectation) -> Expectation:
    """A clone under the same density; ``table`` has all rows."""
    composed = is_composed(model)  # and what NaN is to it is known
    ensemble = read_over(model, table, "all") if composed else name_levels(read(model), table)
    ensemble = replace(ensemble, columns=ensemble.columns.called_as_in(table))
    ensemble = in_levels(ensemble, expectation.density.columns_)
    if ensemble.n_outputs != expectation.original.n_outputs:
        raise InvalidInput("some of the rows have not all classes")
    return Expectation.of(
        ensemble, expectation.density, tol=expectation.tol, seed=expectation.seed,
        integrate=expectation.integrate, spread=expectation.given_spread,
    )  # fmt: skip


def as_trained(table: Any, columns: Columns) -> Any:
    """A table as the model takes it: its columns, in its order.

    What is not of pandas becomes so: LightGBM ends the process over text in a table of polars.
    """
    table = table.to_pandas() if hasattr(table, "to_pandas") else table
    places = places_of(table, columns.names) if columns.named else []
    frame = class_of(table) == ("pandas", "DataFrame") and None not in places
    return table.iloc[:, places] if frame and places else table


def some_rows(table: Any, rows: NDArray[np.intp]) -> Any:
    """Some rows of a table, as a table of the same class; lists of rows stay lists."""
    return [table[row] for row in rows] if isinstance(table, list) else take(table, rows)
