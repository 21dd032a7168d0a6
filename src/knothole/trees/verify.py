"""The self-check: what was read must reproduce the library's own prediction.

Rows are made to tell a right reading from a nearly right one: random rows, rows with NaN, rows
steered to a random split and placed at its threshold and one step either side (in float64 and in
float32), categories never seen. Leaves must agree exactly, margins to the rounding that the
library's own summation can have.
"""

from __future__ import annotations

import numpy as np

from knothole.arrays import Floats, Integers, Mask
from knothole.compiled.bits import members
from knothole.errors import ReaderMismatch
from knothole.trees.ensemble import Ensemble
from knothole.trees.libraries.registry import Reading


def verify(reading: Reading, rows: int = 384, seed: int = 0) -> None:
    """Replay probe rows against the library; raise ``ReaderMismatch`` at the first difference."""
    ensemble = reading.ensemble
    X = probe_rows(ensemble, rows, np.random.default_rng(seed))
    if not reading.takes_nan:
        X = X[~np.isnan(X).any(axis=1)]
    native = reading.replay(X)
    leaves = ensemble.leaves(X, threads=1)
    if native.leaves is not None:
        ours = ensemble.native_leaf[leaves]
        strange = np.argwhere(ours != native.leaves)
        if len(strange):
            row, tree = strange[0]
            raise ReaderMismatch(
                f"{ensemble.library}: tree {tree} sends the row {X[row].tolist()} to leaf "
                f"{native.leaves[row, tree]}, but the reading sends it to leaf "
                f"{ours[row, tree]}. {_WAY_OUT}"
            )
    margin = ensemble.margin(X, threads=1)
    if native.margin.shape != margin.shape:
        raise ReaderMismatch(
            f"{ensemble.library}: the model gives margins of shape {native.margin.shape}, the "
            f"reading of shape {margin.shape}. {_WAY_OUT}"
        )
    wrong = ~(np.abs(margin - native.margin) <= rounding(ensemble, leaves)).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ReaderMismatch(
            f"{ensemble.library}: for the row {X[row].tolist()} the model's margin is "
            f"{native.margin[row].tolist()}, but the reading's is {margin[row].tolist()}. "
            f"{_WAY_OUT}"
        )


_WAY_OUT = "The model was not read; please report it with the library's version and the model file."


def rounding(ensemble: Ensemble, leaves: Integers) -> Floats:
    """How far apart two sums of the same leaf values can be, for rows at these leaves.

    Adding n numbers in any order, in arithmetic with unit u, errs by at most about n u sum |x|.
    """
    unit = float(np.finfo(ensemble.precision).eps)
    size = np.abs(ensemble.value).max(axis=1) * np.abs(ensemble.tree_weight)[ensemble.leaf_tree]
    total = size[leaves].sum(axis=1) + np.abs(ensemble.base).max()
    return np.asarray(unit * (ensemble.n_trees + 8) * total)[:, None]


def probe_rows(ensemble: Ensemble, rows: int, rng: np.random.Generator) -> Floats:
    """Rows that visit thresholds, NaN and unseen categories: half steered, half random."""
    pools = [_values_around(ensemble, column) for column in range(len(ensemble.columns))]
    X = np.empty((rows, len(pools)))
    for column, pool in enumerate(pools):
        X[:, column] = rng.choice(pool, rows)
    inner = np.flatnonzero(ensemble.feature >= 0)
    if len(inner):
        for row in range(rows // 2):
            _steer(ensemble, int(rng.choice(inner)), X[row], rng)
    holes = rng.random(X.shape) < rng.choice([0.0, 0.0, 0.1, 0.5], rows)[:, None]
    X[holes] = np.nan
    X[rows - 1] = np.nan
    return X


def _values_around(ensemble: Ensemble, column: int) -> Floats:
    """Values worth trying in a column: around its cuts, or every category and an unseen one."""
    n_levels = int(ensemble.n_levels[column])
    if n_levels:
        return np.arange(n_levels + 1, dtype=np.float64)
    cuts = np.unique(ensemble.cut[(ensemble.feature == column) & (ensemble.set_start < 0)])
    if not len(cuts):
        return np.array([-1.0, 0.0, 1.0])
    between = (cuts[1:] + cuts[:-1]) / 2
    return _finite_in_float32(np.concatenate([steps_around(cuts), between, [0.0]]))


def _finite_in_float32(values: Floats) -> Floats:
    return values[np.abs(values) <= np.finfo(np.float32).max]


def steps_around(cuts: Floats) -> Floats:
    """Each cut and its neighbours, one step either side in float64 and in float32."""
    with np.errstate(over="ignore"):
        single = cuts.astype(np.float32)
        below = np.nextafter(single, np.float32(-np.inf))
        above = np.nextafter(single, np.float32(np.inf))
    doubles = [cuts, np.nextafter(cuts, -np.inf), np.nextafter(cuts, np.inf)]
    return np.concatenate([*doubles, single, below, above]).astype(np.float64)


def _steer(ensemble: Ensemble, target: int, row: Floats, rng: np.random.Generator) -> None:
    """Change ``row`` so that it arrives at node ``target``, at or next to the threshold there."""
    low = np.full(len(row), -np.inf)
    high = np.full(len(row), np.inf)
    node = target
    while ensemble.parent[node] >= 0:
        child, node = node, int(ensemble.parent[node])
        column = int(ensemble.feature[node])
        is_left = child == ensemble.left[node]
        if ensemble.set_start[node] >= 0:
            codes = np.flatnonzero(left_codes(ensemble, node) == is_left)
            if len(codes):
                row[column] = rng.choice(codes)
        elif is_left:
            high[column] = min(high[column], ensemble.cut[node])
        else:
            low[column] = max(low[column], ensemble.cut[node])
    for column in np.flatnonzero(np.isfinite(low) | np.isfinite(high)).tolist():
        inside = _finite_in_float32(np.array([low[column], np.nextafter(high[column], -np.inf)]))
        if len(inside):
            row[column] = rng.choice(inside)
    column = int(ensemble.feature[target])
    if ensemble.set_start[target] < 0:
        near = _finite_in_float32(steps_around(ensemble.cut[target : target + 1]))
        arriving = near[(near >= low[column]) & (near < high[column])]
        if len(arriving):
            row[column] = rng.choice(arriving)


def left_codes(ensemble: Ensemble, node: int) -> Mask:
    """Whether each category, and last an unseen one, goes left at a categorical split."""
    n_levels = int(ensemble.n_levels[ensemble.feature[node]])
    return members(ensemble.sets[int(ensemble.set_start[node]) :], n_levels)
