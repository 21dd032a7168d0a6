"""LightGBM: leaf values through ``set_leaf_output``, exact in float64 but next to zero."""

from __future__ import annotations

import copy
from typing import Any

from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.lightgbm.read import ZERO, booster_of

# LightGBM itself turns a leaf value this close to zero into 0.0.
NOTHING = ZERO


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of a Booster or wrapper whose leaves hold the values of ``ensemble``."""
    original = booster_of(model)
    booster = copy.deepcopy(original)
    # What a Booster's own copy forgets.
    for name in ("best_iteration", "best_score", "params"):
        setattr(booster, name, copy.deepcopy(getattr(original, name)))
    leaves = (ensemble.leaf_tree, ensemble.native_leaf, ensemble.value[:, 0])
    for tree, leaf, value in zip(*(part.tolist() for part in leaves), strict=True):
        booster.set_leaf_output(tree, leaf, value)
    return copy.deepcopy(model, {id(original): booster})
