"""The self-check: an ensemble must reproduce the library's own predictions.

The probe rows are made to expose small misreadings: random rows, rows with NaN, rows steered to a
random split and placed at its threshold or one step beside it (in float64 and in float32), and
categories never seen. Leaves must agree exactly; margins to within the rounding error of the
library's own summation.
"""

from __future__ import annotations

import numpy as np

from knothole.arrays import Floats, Integers
from knothole.errors import ReaderMismatch
from knothole.trees.ensemble import Ensemble, left_codes
from knothole.trees.libraries import ModelReading

# Larger values are infinite in float32.
_LARGEST = np.finfo(np.float32).max


def verify(reading: ModelReading, rows: int = 384, seed: int = 0) -> None:
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
    if reading.check is not None:
        reading.check(X, leaves)


_WAY_OUT = "The model was not read; please report it with the library's version and the model file."


def rounding(ensemble: Ensemble, leaves: Integers) -> Floats:
    """A bound on the difference of two sums of the same leaf values, for rows at these leaves.

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
        steer(ensemble, rng.choice(inner, rows // 2), X[: rows // 2], rng)
    missing = rng.random(X.shape) < rng.choice([0.0, 0.0, 0.1, 0.5], rows)[:, None]
    X[missing] = np.nan
    X[rows - 1] = np.nan
    return X


def _values_around(ensemble: Ensemble, column: int) -> Floats:
    """Values to try in a column: around its thresholds, or every category and an unseen one."""
    n_levels = int(ensemble.n_levels[column])
    if n_levels:
        return np.arange(n_levels + 1, dtype=np.float64)
    thresholds = np.unique(
        ensemble.threshold[(ensemble.feature == column) & (ensemble.set_start < 0)]
    )
    if not len(thresholds):
        return np.array([-1.0, 0.0, 1.0])
    between = (thresholds[1:] + thresholds[:-1]) / 2
    values = np.concatenate([steps_around(thresholds).ravel(), between, [0.0]])
    return np.asarray(values[np.abs(values) <= _LARGEST])


def steps_around(thresholds: Floats) -> Floats:
    """Thresholds and their neighbours by one float64 or float32 step, (6, thresholds)."""
    with np.errstate(over="ignore"):
        single = thresholds.astype(np.float32)
        below = np.nextafter(single, np.float32(-np.inf))
        above = np.nextafter(single, np.float32(np.inf))
    doubles = [thresholds, np.nextafter(thresholds, -np.inf), np.nextafter(thresholds, np.inf)]
    return np.stack([*doubles, single, below, above]).astype(np.float64)


def steer(ensemble: Ensemble, target: Integers, X: Floats, rng: np.random.Generator) -> None:
    """Change rows so that each arrives at its node ``target``, at or next to its threshold."""
    low, high = np.full(X.shape, -np.inf), np.full(X.shape, np.inf)
    row, node = np.arange(len(X)), target
    while len(row):
        row, node = row[ensemble.parent[node] >= 0], node[ensemble.parent[node] >= 0]
        child, node = node, ensemble.parent[node]
        column, is_left = ensemble.feature[node], child == ensemble.left[node]
        numeric = ensemble.set_start[node] < 0
        for bound, closer, side in ((high, np.fmin, is_left), (low, np.fmax, ~is_left)):
            place = row[numeric & side], column[numeric & side]
            bound[place] = closer(bound[place], ensemble.threshold[node[numeric & side]])
        for i in np.flatnonzero(~numeric).tolist():
            codes = np.flatnonzero(left_codes(ensemble, int(node[i])) == is_left[i])
            if len(codes):
                X[row[i], column[i]] = rng.choice(codes)
    _take_one(X, np.stack([low, np.nextafter(high, -np.inf)], axis=-1), rng)
    row = np.flatnonzero(ensemble.set_start[target] < 0)
    place = row, ensemble.feature[target[row]]
    near = steps_around(ensemble.threshold[target[row]]).T
    arriving = (near >= low[place][:, None]) & (near < high[place][:, None])
    X[place] = _take_one(X[place], np.where(arriving, near, np.nan), rng)


def _take_one(values: Floats, choices: Floats, rng: np.random.Generator) -> Floats:
    """Set values to one of their choices (..., choices) that is finite in float32, if any is."""
    order = np.where(np.abs(choices) <= _LARGEST, rng.random(choices.shape), -1.0)
    chosen = order.argmax(axis=-1)[..., None]
    usable = np.take_along_axis(order, chosen, axis=-1)[..., 0] >= 0
    values[usable] = np.take_along_axis(choices, chosen, axis=-1)[..., 0][usable]
    return values
