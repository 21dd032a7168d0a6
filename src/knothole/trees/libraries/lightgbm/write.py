"""LightGBM: leaf values through ``set_leaf_output``, exact in float64 but next to zero."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.trees.libraries.lightgbm import read as reader

# LightGBM itself turns a leaf value this close to zero into 0.0.
NOTHING = reader.ZERO


def write(model: Any, value: NDArray[np.float64]) -> Any:
    """A copy of a Booster or wrapper whose leaves hold ``value``."""
    original = reader.booster_of(model)
    booster = _copy_of(original)
    ensemble = reader.read(original).ensemble
    changed = np.flatnonzero(ensemble.value[:, 0] != value[:, 0])
    trees = ensemble.leaf_tree[changed].tolist()
    leaves = ensemble.native_leaf[changed].tolist()
    for tree, leaf, new in zip(trees, leaves, value[changed, 0].tolist(), strict=True):
        booster.set_leaf_output(tree, leaf, new)
    return copy.deepcopy(model, {id(original): booster})


def _copy_of(booster: Any) -> Any:
    """A Booster's own copy, with the attributes that it forgets."""
    clone = copy.deepcopy(booster)
    clone.best_iteration = booster.best_iteration
    clone.best_score = copy.deepcopy(booster.best_score)
    clone.params = copy.deepcopy(booster.params)
    return clone
