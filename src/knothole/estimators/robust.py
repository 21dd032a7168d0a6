"""``Robust``: a tree model and a density, answering rows with holes as the model would."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from knothole.columns import Columns
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.estimators import answers
from knothole.reach.expectation import Expectation, Holes
from knothole.trees.ensemble import Ensemble

Floats = NDArray[np.float64]


class Robust:
    """A fitted tree model that integrates over what it does not know; made by :func:`wrap`.

    Attributes
    ----------
    ensemble_ : Ensemble
        The model's trees.
    density_ : Density
        p(X).
    columns_ : Columns
        What the training table showed of the columns.
    """

    def __init__(self, expectation: Expectation, model: Any = None, selection: Any = None) -> None:
        self.expectation_ = expectation
        self.selection_ = selection
        self._model = model

    @property
    def ensemble_(self) -> Ensemble:
        """The model's trees."""
        return self.expectation_.original

    @property
    def density_(self) -> Density:
        """The density the holes are integrated under."""
        return self.expectation_.density

    @property
    def columns_(self) -> Columns:
        """The columns, as the training table showed them."""
        return self.expectation_.columns

    def predict(self, X: Any, holes: Holes = "auto", *, threads: int | None = None) -> Any:
        """Expected prediction: shape and meaning of the model's own ``predict``."""
        response, _ = self.expectation_.predict(X, holes, threads=threads)
        if answers.is_classifier(self.ensemble_):
            return answers.like(X, answers.labels(self.ensemble_, response))
        return answers.like(X, answers.flat(response))

    def predict_proba(self, X: Any, holes: Holes = "auto", *, threads: int | None = None) -> Any:
        """Expected probabilities of the classes."""
        if not answers.is_classifier(self.ensemble_):
            raise InvalidInput("predict_proba: the model is no classifier; use predict.")
        response, _ = self.expectation_.predict(X, holes, threads=threads)
        tables = [
            answers.like(X, probability, names)
            for names, probability in zip(
                answers.class_lists(self.ensemble_),
                answers.probabilities(self.ensemble_, response),
                strict=True,
            )
        ]
        return tables[0] if len(tables) == 1 else tables

    def margin(
        self,
        X: Any,
        holes: Holes = "auto",
        *,
        return_error: bool = False,
        threads: int | None = None,
    ) -> Any:
        """Expected margin (Prop. 1), and if asked its standard error."""
        mean, error = self.expectation_.margin(X, holes, threads=threads)
        margin = answers.like(X, answers.flat(mean))
        return (margin, answers.like(X, answers.flat(error))) if return_error else margin

    def reach(
        self, X: Any, holes: Holes = "auto", *, threads: int | None = None
    ) -> sparse.csr_matrix:
        """Probability that each row reaches each leaf, sparse (rows, leaves)."""
        return self.expectation_.reach(X, holes, threads=threads)
