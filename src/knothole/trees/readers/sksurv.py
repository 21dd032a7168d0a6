"""Survival trees and forests of scikit-survival, from the live object.

Their trees are scikit-learn's (:mod:`knothole.trees.readers.sklearn`), with a cumulative hazard
(Nelson-Aalen) and a survival function (Kaplan-Meier) at every leaf. A forest averages both over its
trees. The margin is the risk that ``predict`` gives: the sum of the cumulative hazard over the
times at which training rows had events. Models that were fitted with ``low_memory=True`` have that
alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from joblib import parallel_config
from scipy import sparse

from knothole.arrays import Floats, Integers
from knothole.errors import InvalidInput, ReaderMismatch
from knothole.trees.curves import HAZARD, SURVIVAL, Curves, reached
from knothole.trees.ensemble import Ensemble, Recipe
from knothole.trees.libraries import ModelReading, Replay, require_fitted
from knothole.trees.readers.sklearn import StoredTree, as_fitted, averaged

LIBRARY = "scikit-survival"
WAY_OUT = "Fit the model again."
FUNCTIONS = {
    SURVIVAL: "predict_survival_function",
    HAZARD: "predict_cumulative_hazard_function",
}


def read(model: Any) -> ModelReading:
    """Read a fitted SurvivalTree, RandomSurvivalForest or ExtraSurvivalTrees."""
    require_fitted(model)
    trees = [tree.tree_ for tree in getattr(model, "estimators_", [model])]
    columns, first = np.arange(model.n_features_in_), np.zeros(1, dtype=np.intp)
    members = [StoredTree(tree, columns, first, first) for tree in trees]
    plain = averaged(model, members, LIBRARY)
    value = np.stack(
        [trees[t].value[leaf] for t, leaf in plain.leaf_keys()]
    )  # (leaves, times, hazard and survival), or (leaves, 1, 1) of risks
    recipe = Recipe.of(loss="log-rank", task="survival")
    if model.low_memory:
        ensemble = replace(plain, value=value[:, :, 0], recipe=recipe)
    else:
        risk = value[:, model.is_event_time_, 0].sum(axis=1, keepdims=True)
        ensemble = replace(plain, value=risk, recipe=recipe, curves=_curves(model, value, trees))

    def replay(X: Floats) -> Replay:
        # ``apply`` of a single tree refuses float64.
        leaves = np.column_stack([tree.apply(X.astype(np.float32)) for tree in trees])
        with parallel_config("sequential"):
            return Replay(model.predict(as_fitted(model, X))[:, None], leaves)

    def check(X: Floats, leaves: Integers) -> None:
        for name, curves in ensemble.curves.items():
            with parallel_config("sequential"):
                native = getattr(model, FUNCTIONS[name])(as_fitted(model, X), return_array=True)
            jumps = reached(leaves, ensemble.n_leaves) @ curves.jumps
            ours = curves.at(sparse.csr_matrix(jumps), np.arange(len(curves.grid)))
            if not np.allclose(ours, native, rtol=1e-9, atol=1e-9):
                raise ReaderMismatch(
                    f"{LIBRARY}: the {name} of what was read is not the model's own. Please report "
                    f"it with the library's version."
                )

    return ModelReading(ensemble, replay, takes_nan=_takes_nan(model), check=check)


def write(model: Any, ensemble: Ensemble) -> Any:
    """Refused: the leaves' curves would not be those of other risks."""
    raise InvalidInput(
        f"to_native: the leaves of a {type(model).__name__} are survival curves, which knothole "
        f"does not change; use the model itself."
    )


def _curves(model: Any, value: Floats, trees: list[Any]) -> dict[str, Curves]:
    """What each leaf adds to the averages over trees."""
    times = np.asarray(model.unique_times_, dtype=np.float64)

    def of(values: Floats, start: float) -> Curves:
        jumps = np.diff(values, axis=1, prepend=start) / len(trees)
        return Curves(times, sparse.csr_matrix(jumps), start)

    return {SURVIVAL: of(value[:, :, 1], 1.0), HAZARD: of(value[:, :, 0], 0.0)}


def _takes_nan(model: Any) -> bool:
    """Whether the model answers rows with NaN."""
    try:
        model.predict(as_fitted(model, np.full((1, model.n_features_in_), np.nan)))
    except ValueError:
        return False
    return True
