"""Rows to learn a correction from: those that a model was not trained on.

f(x) of a row that the model was trained on carries the noise of that row's y, and a correction that
learns it makes answers worse. So ``X_valid`` is used, or clones of the model, each fitted without
some of the rows.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
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
from knothole.leaves.induction import take
from knothole.trees.classes import is_classifier
from knothole.trees.in_variables import in_levels
from knothole.trees.libraries import unfitted
from knothole.trees.pipelines.composed import is_composed, read_over
from knothole.trees.read import read
from knothole.trees.readers.catboost import name_levels

if TYPE_CHECKING:
    import pandas as pd

_ADVICE = "pass X_valid, rows that the model was not trained on"


def check_options(correct: Any, patterns: Patterns | None, X_valid: Any) -> None:
    """Refuse what the user says of a correction where it makes no sense; see ``wrap``."""
    check_choice("correct", correct, ("auto", True, False))
    if correct is False and (patterns is not None or X_valid is not None):
        raise InvalidInput(
            "patterns and X_valid are for the correction, and correct=False leaves it out; "
            "leave them out too, or say correct='auto'."
        )


def learn_correction(
    model: Any,
    expectation: Expectation,
    table: Any,
    matrix: Floats,
    y: Any,
    target: Floats | None,
    *,
    always: bool,
    patterns: Patterns | None,
    X_valid: Any,
    seed: int,
) -> tuple[Correction | None, pd.DataFrame]:
    """The correction of a model, None where there is none, and what was found.

    Parameters
    ----------
    model, expectation
        What was wrapped, and its expectation.
    table, matrix
        Training rows as the user has them, and encoded.
    y, target
        Their targets as given, and as predictions (rows, outputs); None where not known.
    always : bool
        Whether to correct in any case, on training rows if there are no others.
    patterns, X_valid
        See :func:`knothole.wrap`.
    """
    unknown = np.full((1, expectation.original.n_responses), np.nan)
    if not isinstance(cast(Any, expectation.density), Density):
        return None, no_correction("the density is one of the user's own")
    if X_valid is not None:
        valid = expectation.columns.matrix(X_valid, "hole")
        valid = with_nan(valid, expectation.original.sentinel, expectation.columns)
        honest, why = [Honest(expectation, X_valid, valid, unknown.repeat(len(valid), axis=0))], ""
    else:
        honest, why = by_clones(model, expectation, table, matrix, y, target, seed)
    if not honest and always:
        honest = [Honest(expectation, table, matrix, unknown.repeat(len(matrix), axis=0))]
    if not honest:
        return None, no_correction(why)
    points = expectation.evidence_of(matrix).points
    determined = Determined.learned(expectation.columns.variables, points, expectation.used)
    return learn(
        expectation, honest, always=always, patterns=patterns, determined=determined, seed=seed
    )


def by_clones(
    model: Any,
    expectation: Expectation,
    table: Any,
    matrix: Floats,
    y: Any,
    target: Floats | None,
    seed: int,
) -> tuple[list[Honest], str]:
    """Clones of the model with the rows they were not fitted to, or why there are none."""
    if y is None:
        return [], f"without y_train no row is known that the model has not learned; {_ADVICE}"
    if not (hasattr(model, "fit") and hasattr(model, "get_params")):
        return [], f"the model cannot be fitted again without some rows; {_ADVICE}"
    order = sample_rows(len(matrix), seed)
    labels = np.asarray(y)[order]
    stratified = is_classifier(expectation.original) and labels.ndim == 1
    if target is None:
        target = np.full((len(matrix), expectation.original.n_responses), np.nan)
    clones = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            to_fit = table if is_composed(model) else as_trained(table, expectation.columns)
            for learned, held in folds(len(order), labels if stratified else None):
                fitted = unfitted(model, quiet=True)
                fitted.fit(some_rows(to_fit, order[learned]), labels[learned])
                under, rest = _under(fitted, to_fit, expectation), order[held]
                rows = some_rows(table, rest)
                clones.append(Honest(under, rows, matrix[rest], target[rest]))
    except Exception as error:  # whatever a library has against its own clone
        return [], f"no clone of the model could be made without some rows ({error}); {_ADVICE}"
    return clones, ""


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
