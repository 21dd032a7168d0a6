"""The loss by which densities, and meanings of NaN, are compared for a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Columns
from knothole.columns.evidence import missing_in
from knothole.densities.base import Density
from knothole.densities.held_out import HeldOut
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import Spread
from knothole.leaves.losses import Pinball
from knothole.leaves.problem import encode, in_rows, numbers
from knothole.trees.classes import is_classifier
from knothole.trees.ensemble import Ensemble

Measure = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True, eq=False)
class PredictionLoss:
    """Loss of the expected prediction of held-out rows under a density.

    Attributes
    ----------
    ensemble : Ensemble
    truth : float64 (rows, outputs)
        What predictions are compared with: y (0 or 1 for each class), or the model's own prediction
        for the complete row, for which E[f | x_o] minimises the squared error.
    measure : callable
        The losses of responses against the truth, (rows,).
    eligible : bool (rows,)
        Rows whose truth is known.
    spread : Spread
        Of the model's outputs on all rows.
    of_y : bool
        Whether the truth is y and predictions estimate its mean.
    """

    ensemble: Ensemble
    truth: Floats
    measure: Measure
    eligible: NDArray[np.bool_]
    spread: Spread
    of_y: bool = False

    @property
    def metric(self) -> str:
        """The name of the loss, for readers; for squared errors that of its root mean."""
        if self.measure is log_loss:
            return "log loss"
        if self.measure is squared:
            return "RMSE" if self.of_y else "RMSE against the model's own predictions"
        return "pinball loss"

    def __call__(self, density: Density, part: HeldOut) -> Floats:
        """Losses of the held-out rows."""
        expectation = Expectation.of(self.ensemble, density, spread=self.spread).rough
        # It is known which values were hidden: their meaning need not be inferred.
        evidence = density.extended(density.columns_.evidence(part.matrix, part.missing_mask), None)
        return self.measure(expectation.predict(evidence)[0], self.truth[part.held])


def squared(response: Floats, truth: Floats) -> Floats:
    """Squared errors."""
    return np.asarray(((response - truth) ** 2).sum(axis=1))


def log_loss(response: Floats, truth: Floats) -> Floats:
    """Minus the log probabilities of the true classes."""
    least = 1e-12  # lower bound of a probability
    loss = -truth * np.log(np.maximum(response, least))
    if response.shape[1] == 1:
        loss -= (1 - truth) * np.log(np.maximum(1 - response, least))
    return np.asarray(loss.sum(axis=1))


def pinball(levels: tuple[float, ...]) -> Measure:
    """The pinball loss, which the quantiles of these levels minimise; one level per output."""
    return Pinball(levels=levels).value


def prediction_loss(ensemble: Ensemble, matrix: Floats, columns: Columns, y: Any) -> PredictionLoss:
    """The loss to choose by, for encoded training rows and their targets (None if unknown).

    Where the model's predictions do not explain the targets at all (a ranker's margins, for
    example, have a scale of their own), the model's own predictions take the targets' place.
    """
    margin, levels = ensemble.margin(matrix), ensemble.recipe.levels
    response, spread = ensemble.link(margin), Spread.of(ensemble, margin)
    if y is not None:
        truth = _targets(ensemble, y, len(matrix))
        everyone = np.ones(len(matrix), dtype=np.bool_)
        if is_classifier(ensemble):
            return PredictionLoss(ensemble, truth, log_loss, everyone, spread, of_y=True)
        measure = pinball(levels) if levels else squared
        constant = np.quantile(truth[:, 0], levels) if levels else truth.mean(axis=0)
        if measure(response, truth).sum() < measure(constant[None], truth).sum():
            return PredictionLoss(ensemble, truth, measure, everyone, spread, of_y=not levels)
    missing = missing_in(columns, matrix) & ensemble.used
    eligible = np.asarray(~missing.any(axis=1))
    return PredictionLoss(ensemble, response, squared, eligible, spread)


def _targets(ensemble: Ensemble, y: Any, rows: int) -> Floats:
    """Y as (rows, outputs), if it is numeric and the model has as many outputs."""
    table = in_rows(y, rows, "y_train")
    if is_classifier(ensemble) or table.shape[1] != ensemble.n_responses:
        return encode(ensemble, y, rows)
    return numbers(table, "y_train")
