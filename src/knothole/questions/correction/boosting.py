"""Small boosted trees, stage by stage, and the ensemble that they make together.

Each stage is a few trees of scikit-learn's HistGradientBoosting for every output, fitted to
Newton's step at what the stages before have reached (:class:`.space.Space`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from knothole.arrays import Floats
from knothole.questions.correction.space import Space
from knothole.tables.columns import Column, Columns
from knothole.trees.ensemble import Ensemble
from knothole.trees.libraries.sklearn import hist

#: A regressor for each output, and the unit of what it predicts.
Stage = list[tuple[Any, float]]

# The least variance that counts, as a share of the mean one.
LEAST_VARIANCE = 0.02
# Trees of a stage, distinct values of an input, and what trees are like.
TREES = 12
DISTINCT = 64
SHAPE: dict[str, Any] = {
    "learning_rate": 0.1, "max_leaf_nodes": 16, "min_samples_leaf": 15, "l2_regularization": 1.0,
    "max_iter": TREES, "max_bins": DISTINCT, "early_stopping": False, "random_state": 0,
}  # fmt: skip


def boost(
    inputs: Floats, base: Floats, truth: Floats, weight: Floats, space: Space
) -> Iterator[Stage]:
    """One stage after the other, without end: from the base (rows, outputs) to the truth."""
    z, few = base.copy(), coarse(inputs)
    while True:
        residual, curvature = space.newton(space.means(z), truth)
        stage = []
        for output in range(z.shape[1]):
            unit = unit_of(residual[:, output])
            model = HistGradientBoostingRegressor(**SHAPE)
            share = weight * curvature[:, output]
            model.fit(few, residual[:, output] / unit, sample_weight=share / share.mean())
            stage.append((model, unit))
        z = z + step(stage, few)
        yield stage


def coarse(inputs: Floats) -> Floats:
    """Inputs with few distinct values, each number the nearest of some quantiles.

    The library then need not look for bins, which takes long where rows have weights. It puts
    its thresholds in the middle between two values, so that numbers go where the nearest goes.
    """
    out = np.empty_like(inputs)
    for j, column in enumerate(inputs.T):
        known = ~np.isnan(column)
        if not known.any():
            out[:, j] = 0.0  # a column without a number is refused; one with a single is not split
            continue
        own = column[known]
        grid = np.unique(np.quantile(own, np.linspace(0, 1, DISTINCT), method="nearest"))
        out[:, j] = np.nan
        out[known, j] = grid[np.searchsorted((grid[1:] + grid[:-1]) / 2, own)]
    return out


def unit_of(residual: Floats) -> float:
    """The regressors compute in single precision: numbers are to be about 1."""
    return float(np.abs(residual).mean()) or 1.0


def step(stage: Stage, inputs: Floats) -> Floats:
    """What a stage adds, (rows, outputs)."""
    return np.column_stack([model.predict(inputs) * unit for model, unit in stage])


def as_ensemble(stages: list[Stage], names: Sequence[str]) -> Ensemble:
    """All stages as one ensemble over the inputs, whose margin is what they add in all."""
    return hist.added_up(stages, Columns(tuple(Column(name) for name in names)))


def precisions(inputs: Floats, squares: Floats, fold: NDArray[np.intp]) -> Floats:
    """One over what squares are expected to be, by those of other folds; their mean is 1."""
    weight, few = np.ones(len(squares)), coarse(inputs)
    for number in np.unique(fold):
        own = fold == number
        unit = float(squares[~own].mean())
        if not unit > 0:
            return np.ones(len(squares))
        model = HistGradientBoostingRegressor(loss="poisson", **SHAPE | {"max_iter": 3 * TREES})
        model.fit(few[~own], squares[~own] / unit)
        weight[own] = 1.0 / (unit * (model.predict(few[own]) + LEAST_VARIANCE))
    return np.asarray(weight / weight.mean())
