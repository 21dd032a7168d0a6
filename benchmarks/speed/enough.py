"""At what size a sample is enough: held-out log p and errors against the rows learned from.

``python -m benchmarks.speed.enough 1000 1000000`` prints a line for each of these numbers of rows.
"""

import sys
import time

import numpy as np

import knothole as kh
from benchmarks.speed.setting import table, with_missing, xgboost_model

OTHERS = 5000
MISSING_RATE = 0.3
COMPONENTS = 128


def measured(rows):
    """Log p of other rows, RMSE of predictions with missing values against f(x), CPU seconds."""
    X, _ = table(rows)
    model = xgboost_model(*table(20_000), trees=50)
    start = time.process_time()
    density = kh.Mixture(COMPONENTS, random_state=0).fit(X)
    seconds = time.process_time() - start
    other, _ = table(OTHERS, seed=1)
    robust = kh.wrap(model, X[:1000], density=density)
    found = robust.predict(with_missing(other, MISSING_RATE, seed=1))
    error = float(np.sqrt(np.mean((found - model.predict(other)) ** 2)))
    return density.score(other), error, seconds


if __name__ == "__main__":
    print("| rows learned from | log p | RMSE | s of CPU |", flush=True)
    for rows in map(int, sys.argv[1:]):
        log_p, error, seconds = measured(rows)
        print(f"| {rows:,} | {log_p:.2f} | {error:.3f} | {seconds:.0f} |", flush=True)
