"""New leaf values into a copy of a document."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.trees.ensemble import Ensemble


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``; no leaf is hard then."""
    trees = []
    for t, tree in enumerate(model["trees"]):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        ordered = ensemble.value[mine][np.argsort(ensemble.native_leaf[mine])]
        trees.append({**tree, "root": _with(tree["root"], iter(ordered))})
    return copy.deepcopy({**model, "trees": trees})


def _with(node: dict[str, Any], values: Iterator[Floats]) -> dict[str, Any]:
    """A node like this with the next values; one that is in two places becomes two."""
    if "column" in node:
        return {**node, "branches": [_with(branch, values) for branch in node["branches"]]}
    value = next(values)
    return {"value": float(value[0]) if len(value) == 1 else value.tolist()}
