"""Some trees of an ensemble, as an ensemble of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Ints
from knothole.trees.ensemble import Ensemble


def some_trees(ensemble: Ensemble, trees: NDArray[np.intp]) -> tuple[Ensemble, NDArray[np.intp]]:
    """The ensemble of some trees, and the numbers that its leaves have in the whole one.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> from knothole.trees.read import read
    >>> forest = RandomForestRegressor(3, max_depth=1, random_state=0)
    >>> ensemble = read(forest.fit([[0.0], [1.0], [2.0]], [0, 1, 2]))
    >>> part, leaves = some_trees(ensemble, np.array([2]))
    >>> bool((part.value == ensemble.value[leaves]).all()), part.n_trees
    (True, 1)
    """
    if len(trees) == ensemble.n_trees:
        return ensemble, np.arange(ensemble.n_leaves)
    node_start = np.append(ensemble.roots, len(ensemble.feature)).astype(np.int64)
    nodes, roots = _ranges(node_start, trees)
    leaves, leaf_start = _ranges(ensemble.leaf_start, trees)
    # What is subtracted from the numbers of nodes and of leaves in each tree.
    counts = np.diff(roots)
    node_shift = np.repeat(node_start[trees] - roots[:-1], counts)
    leaf_shift = np.repeat(ensemble.leaf_start[trees] - leaf_start[:-1], counts)
    is_leaf = ensemble.feature[nodes] < 0
    left = ensemble.left[nodes] - np.where(is_leaf, leaf_shift, node_shift)
    part = replace(
        ensemble,
        roots=roots[:-1].astype(np.int32),
        feature=ensemble.feature[nodes],
        cut=ensemble.cut[nodes],
        left=left.astype(np.int32),
        missing_left=ensemble.missing_left[nodes],
        set_start=ensemble.set_start[nodes],
        leaf_start=leaf_start,
        value=ensemble.value[leaves],
        native_leaf=ensemble.native_leaf[leaves],
        tree_output=ensemble.tree_output[trees],
        tree_weight=ensemble.tree_weight[trees],
    )
    return part, leaves


def _ranges(start: Ints, trees: NDArray[np.intp]) -> tuple[NDArray[np.intp], Ints]:
    """The numbers from ``start[t]`` to ``start[t + 1]`` of each tree, and where each begins."""
    counts = np.diff(start)[trees]
    begins = np.append(0, np.cumsum(counts))
    return np.arange(begins[-1]) + np.repeat(start[trees] - begins[:-1], counts), begins
