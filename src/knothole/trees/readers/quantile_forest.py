"""Quantile regression forests of quantile-forest, from the live object.

They are scikit-learn's forests (:mod:`knothole.trees.readers.sklearn`) whose leaves also keep
targets of training rows, one of them by default (``max_samples_leaf``). ``predict`` pools the
targets of the leaves that a row reaches, and takes quantiles of them, by default
(``weighted_quantile=True``, ``weighted_leaves=False``, ``aggregate_leaves_first=True``) all with
the same weight. That is what is read; other ways to take quantiles are not.

Margins are those of the forest as one of means: the average of its trees' own leaf values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.ensemble._forest import ForestRegressor

from knothole.arrays import Floats, Integers
from knothole.errors import InvalidInput, ReaderMismatch, UnsupportedModel
from knothole.trees.curves import SAMPLES, Curves, reached, sample_quantiles
from knothole.trees.ensemble import Ensemble, Recipe
from knothole.trees.libraries import ModelReading, Replay, require_fitted
from knothole.trees.readers.sklearn import answers_nan, as_fitted, averaged, members_of_forest

LIBRARY = "quantile-forest"
WAY_OUT = "Fit the model again."
# Quantiles that a reading is compared at, between samples and at them.
COMPARED = [0.0, 0.05, 0.25, 0.5, 0.77, 0.95, 1.0]


def read(model: Any) -> ModelReading:
    """Read a fitted RandomForestQuantileRegressor or ExtraTreesQuantileRegressor."""
    require_fitted(model)
    forest = averaged(model, members_of_forest(model), LIBRARY)
    default = model.default_quantiles
    quantiles = [] if default is None else default if isinstance(default, list) else [default]
    recipe = Recipe.of(task="quantiles", quantiles=[] if quantiles == ["mean"] else quantiles)
    ensemble = forest.trained_by(recipe).with_curves(_samples(model, forest))

    def replay(X: Floats) -> Replay:
        rows = as_fitted(model, X)
        margin = ForestRegressor.predict(model, rows).reshape(len(X), -1)
        return Replay(margin, model.apply(rows).reshape(len(X), -1))

    def check(X: Floats, leaves: Integers) -> None:
        probabilities = reached(leaves, ensemble.n_leaves)
        for levels in (COMPARED, "mean"):
            native = model.predict(as_fitted(model, X), quantiles=levels)
            asked = np.array([] if levels == "mean" else levels)
            ours = sample_quantiles(ensemble.curves, probabilities, asked)
            if not np.allclose(
                ours, native.reshape(ours.shape), rtol=1e-9, atol=1e-9 * _size(ours)
            ):
                raise ReaderMismatch(
                    f"{LIBRARY}: quantiles of what was read are not the model's own. Please report "
                    f"it with the library's version."
                )

    return ModelReading(ensemble, replay, takes_nan=answers_nan(model), check=check)


def write(model: Any, ensemble: Ensemble) -> Any:
    """Refused: the leaves' samples would not be those of other values."""
    raise InvalidInput(
        f"to_native: the leaves of a {type(model).__name__} are samples of y, which knothole does "
        f"not change; use the model itself."
    )


def _samples(model: Any, forest: Ensemble) -> dict[str, Curves]:
    """The targets that each leaf keeps, output by output."""
    stored = np.asarray(model.forest_.y_train_leaves)  # (trees, nodes, outputs, places), from 1
    targets = np.asarray(model.forest_.y_train)  # (outputs, rows), ascending
    curves = {}
    for output, y in enumerate(targets):
        kept = stored[forest.leaf_tree, forest.native_leaf, output]
        # The library takes 1.0, for all samples, as 1, and 0, for no sample, as the last row.
        if model.max_samples_leaf == 1:
            leaf, values = np.arange(len(kept)), y[kept[:, 0] - 1]
            if model.monotonic_cst is not None:
                bounds = np.asarray(model.forest_.y_bound_leaves)
                bounds = bounds[forest.leaf_tree, forest.native_leaf]
                values = np.clip(values, bounds[:, 0], bounds[:, 1])
        else:
            leaf, place = np.nonzero(kept)
            values = y[kept[leaf, place] - 1]
        if len(np.unique(leaf)) < len(kept):
            raise UnsupportedModel(
                f"{type(model).__name__}: a leaf has kept no sample of y, so that some rows have "
                f"no quantiles. Fit it without rows whose sample_weight is 0."
            )
        grid, point = np.unique(values, return_inverse=True)
        shape = forest.n_leaves, len(grid)
        jumps = sparse.csr_matrix((np.ones(len(leaf)), (leaf, point)), shape=shape)
        curves[f"{SAMPLES} {output}"] = Curves(grid, jumps)
    return curves


def _size(values: Floats) -> float:
    return float(np.abs(values).max(initial=0.0))
