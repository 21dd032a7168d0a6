"""Made-up tables that several tests of densities learn from."""

import numpy as np
import pandas as pd

from knothole.columns.columns import Columns


def mixed_table(rows, rng):
    """Continuous, categorical, integer, and continuous with many zeros; dependent and complete."""
    group = rng.integers(0, 2, rows)
    return pd.DataFrame({
        "size": rng.normal(3.0 * group, 1.0),
        "kind": pd.Categorical(np.where(rng.random(rows) < 0.9, group, 1 - group)),
        "number": rng.poisson(2 + 3 * group).astype(float),
        "rain": np.where(rng.random(rows) < 0.4, 0.0, rng.exponential(1 + group)),
    })  # fmt: skip


def one_hot_table(rows=200, seed=0):
    """A one-hot group, often observed in part, and a number that goes with it."""
    rng = np.random.default_rng(seed)
    colour = rng.integers(0, 4, rows)
    X = np.column_stack([np.eye(4)[colour], colour + rng.normal(size=rows)])
    columns = Columns.infer(X, one_hot={"colour": [0, 1, 2, 3]})
    X[rng.random(X.shape) < 0.3] = np.nan
    return X, columns
