"""Which rows each tree of a forest was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.errors import InvalidInput


def bootstrap_counts(model: Any, n_rows: int) -> NDArray[np.int32]:
    """How often each training row is in the sample of each tree, (trees, rows).

    scikit-learn's forests and bags of trees replay their samples from the trees' random states
    (``estimators_samples_``). Models that do not are refused, and so are rows that cannot be those
    that the model was trained on.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> X, y = np.arange(4.0)[:, None], np.arange(4.0)
    >>> forest = RandomForestRegressor(2, random_state=0).fit(X, y)
    >>> bootstrap_counts(forest, 4).sum(axis=1).tolist()
    [4, 4]
    """
    if model is None:
        raise InvalidInput(
            "samples='bootstrap': what was loaded from a file does not know the samples; wrap the "
            "model itself."
        )
    samples = getattr(model, "estimators_samples_", None)
    trees = getattr(model, "estimators_", None)
    if samples is None or trees is None or len(samples) != len(trees):
        raise InvalidInput(
            f"samples='bootstrap': a {type(model).__name__} does not tell which rows its trees "
            f"were trained on; use samples='whole'."
        )
    counts = np.zeros((len(trees), n_rows), dtype=np.int32)
    for row, sample, estimator in zip(counts, samples, trees, strict=True):
        rows = np.asarray(sample)
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        found = np.bincount(rows, minlength=n_rows)
        # The tree itself tells how many different rows it has seen.
        if len(found) > n_rows or np.count_nonzero(found) != estimator.tree_.n_node_samples[0]:
            raise InvalidInput(
                "samples='bootstrap': these are not the rows that the model was trained on; give "
                "it those, or use samples='whole'."
            )
        row[:] = found
    return counts
