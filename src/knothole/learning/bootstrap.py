"""Which rows each tree of a forest was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def bootstrap_counts(model: Any, n_rows: int) -> NDArray[np.int32] | None:
    """How often each training row is in the sample of each tree, (trees, rows).

    scikit-learn's forests and bags of trees replay their samples from the trees' random states
    (``estimators_samples_``). None for models that do not, where ``n_rows`` is not the number of
    rows that the model was trained on, and where every tree was trained on all of them: then the
    whole table is every tree's sample.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> X, y = np.arange(4.0)[:, None], np.arange(4.0)
    >>> forest = RandomForestRegressor(2, random_state=0).fit(X, y)
    >>> bootstrap_counts(forest, 4).sum(axis=1).tolist()
    [4, 4]
    """
    samples = getattr(model, "estimators_samples_", None)
    trees = getattr(model, "estimators_", None)
    if samples is None or trees is None or len(samples) != len(trees):
        return None
    counts = np.zeros((len(trees), n_rows), dtype=np.int32)
    for row, sample, estimator in zip(counts, samples, trees, strict=True):
        rows = np.asarray(sample)
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        if not len(rows) or rows.max() >= n_rows:
            return None
        np.add.at(row, rows, 1)
        # The tree itself tells how many different rows it has seen.
        if np.count_nonzero(row) != estimator.tree_.n_node_samples[0]:
            return None
    return None if (counts == 1).all() else counts
