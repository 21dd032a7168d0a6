"""Rows to learn a correction from: those that a model was not trained on.

f(x) of a row that the model was trained on carries the noise of that row's y, and a correction that
learns it makes answers worse. So ``X_valid`` is used, or clones of the model, each fitted without
some of the rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.estimators.answers import is_classifier
from knothole.questions.correction.corrected import Correction
from knothole.questions.correction.learn import Honest, learn, no_correction
from knothole.questions.correction.patterns import Patterns
from knothole.reach.expectation import Expectation
from knothole.tables.holes import with_nan
from knothole.trees.libraries.catboost.categories import name_levels
from knothole.trees.read import read

if TYPE_CHECKING:
    import pandas as pd

# Clones, and the rows that they are made with at most.
FOLDS = 3
ROWS = 4000


@dataclass(frozen=True, eq=False)
class Correcting:
    """What the user wants of a correction.

    Attributes
    ----------
    correct : {"auto", True, False}
    patterns : see :mod:`knothole.questions.correction.patterns`
    X_valid : table, optional
        Rows that the model was not trained on.
    seed : int
    """

    correct: Any
    patterns: Patterns | None
    X_valid: Any
    seed: int

    def __post_init__(self) -> None:
        if self.correct not in ("auto", True, False):
            raise InvalidInput(f"correct must be 'auto', True or False; got {self.correct!r}.")
        if self.correct is False and (self.patterns is not None or self.X_valid is not None):
            raise InvalidInput(
                "patterns and X_valid are for the correction, and correct=False leaves it out; "
                "leave them out too, or say correct='auto'."
            )

    def learned(
        self, model: Any, table: Any, matrix: Floats, y: Any, expectation: Expectation
    ) -> tuple[Correction | None, pd.DataFrame]:
        """The correction of a model, None where there is none, and what was found.

        ``table`` and ``matrix`` are the training rows, ``y`` their targets: as the model is
        fitted to them, and in units of predictions (None for both where they are not known).
        """
        always = self.correct is True
        density: Any = expectation.density
        if not isinstance(density, Density):
            return None, no_correction("the density is one of the user's own")
        if self.X_valid is not None:
            valid = expectation.columns.matrix(self.X_valid, "hole")
            valid = with_nan(valid, expectation.original.sentinel, expectation.columns)
            honest, why = [Honest(expectation, self.X_valid, valid)], ""
        else:
            honest, why = by_clones(model, table, matrix, y, expectation, self.seed)
        if not honest and always:
            honest = [Honest(expectation, table, matrix)]
        if not honest:
            return None, no_correction(why)
        return learn(expectation, honest, always=always, patterns=self.patterns, seed=self.seed)


def by_clones(
    model: Any, table: Any, matrix: Floats, y: Any, expectation: Expectation, seed: int
) -> tuple[list[Honest], str]:
    """Clones of the model with the rows they were not fitted to, or why there are none."""
    given, numbers = y
    advice = "pass X_valid, rows that the model was not trained on"
    if given is None:
        return [], f"without y_train no row is known that the model has not learned; {advice}"
    if not (hasattr(model, "fit") and hasattr(model, "get_params")):
        return [], f"the model cannot be fitted again without some rows; {advice}"
    rows = np.random.default_rng(seed).permutation(len(matrix))[:ROWS]
    labels = np.asarray(given)[rows]
    stratified = is_classifier(expectation.original) and labels.ndim == 1
    folds = (StratifiedKFold if stratified else KFold)(FOLDS)
    found = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for learned, held in folds.split(rows, labels if stratified else None):
                again = clone(model).fit(some_rows(table, rows[learned]), labels[learned])
                own = _under(again, expectation, some_rows(table, rows[learned]))
                held_y = None if numbers is None else numbers[rows[held]]
                part = some_rows(table, rows[held])
                found.append(Honest(own, part, matrix[rows[held]], held_y))
    except Exception as error:  # whatever a library has against its own clone
        return [], f"a clone of the model could not be fitted ({error}); {advice}"
    return found, ""


def _under(model: Any, expectation: Expectation, table: Any) -> Expectation:
    """A clone under the same density."""
    ensemble = name_levels(read(model), table)
    if ensemble.n_outputs != expectation.original.n_outputs:
        raise InvalidInput("some rows have not all classes")
    own = Expectation.of(
        ensemble, expectation.density, tol=expectation.tol, seed=expectation.seed,
        integrate=expectation.integrate, spread=expectation.given_spread,
    )  # fmt: skip
    return replace(own, exact_engine=expectation.exact_engine)


def some_rows(table: Any, rows: NDArray[np.intp]) -> Any:
    """Some rows of a table, as a table of the same class.

    Examples
    --------
    >>> some_rows(np.array([[1.0], [2.0]]), np.array([1]))
    array([[2.]])
    """
    if hasattr(table, "iloc"):
        return table.iloc[rows]
    if hasattr(table, "take"):
        return table.take(rows, axis=0) if isinstance(table, np.ndarray) else table.take(rows)
    return table[rows] if hasattr(table, "columns") else [table[row] for row in rows]
