"""XGBoost: new leaf values, in float32, into a copy.

The copy is made from the model's own snapshot (what it pickles), in which the leaf values are
overwritten where they stand. Everything else is the same to the bit: trees after
``best_iteration``, attributes, parameters, the state of training.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from knothole.errors import InvalidInput
from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.xgboost import ubjson
from knothole.trees.readers.xgboost.forest import vector_leaves
from knothole.trees.readers.xgboost.read import stored_trees, unwrapped


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``."""
    with np.errstate(over="ignore"):
        single = ensemble.value.astype(np.float32)
    if not np.isfinite(single).all():
        raise InvalidInput(
            f"XGBoost keeps leaf values in float32, where the largest is "
            f"{np.finfo(np.float32).max}; got {np.abs(ensemble.value).max()}."
        )
    booster, _ = unwrapped(model)
    state = booster.__getstate__()
    trees = stored_trees(ubjson.parse(state["handle"])["Model"])
    for t, tree in enumerate(trees[: ensemble.n_trees]):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        leaves, width = ensemble.native_leaf[mine].astype(np.int64), single.shape[1]
        name, row = ("split_conditions", leaves) if width == 1 else vector_leaves(tree, leaves)
        tree[name].reshape(-1, width)[row] = single[mine]  # in the buffer that it is a view of
    written = object.__new__(type(booster))
    written.__setstate__(state)
    # The memo makes the deep copy of a wrapper take the written booster for the one it has.
    return copy.deepcopy(model, {id(booster): written})
