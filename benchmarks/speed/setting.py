"""What every benchmark shares: data, models, and a fair clock.

Times mean nothing on a shared machine; ratios in one run do. A measured call runs several times
and its best time counts. Single-threaded work is timed by the thread's own CPU clock, so that
whatever else the machine does is left out; work on several threads by the wall clock.
"""

import time
from dataclasses import dataclass

import numpy as np
import xgboost

SEED = 0
COLUMNS = 20


@dataclass(frozen=True)
class Ratio:
    """One line of the table."""

    section: str
    what: str
    ours: float
    reference: float
    against: str
    target: float | None = None
    note: str = ""

    @property
    def ratio(self):
        return self.ours / self.reference

    @property
    def verdict(self):
        if self.target is None:
            return ""
        return "met" if self.ratio <= self.target else "**missed**"


def cpu(call, repeats=5):
    """Best CPU time of this thread, in seconds, after one call to warm up."""
    return _best(call, repeats, time.thread_time)


def side_by_side(*calls, repeats=9):
    """:func:`cpu` of each of several calls in turn: what slows the machine down slows all."""
    best = [cpu(call, 1) for call in calls]
    for _ in range(repeats - 1):
        best = [min(one, _best(call, 1, time.thread_time, warm=False))
                for one, call in zip(best, calls, strict=True)]  # fmt: skip
    return best


def process(call, repeats=1):
    """Best CPU time of the whole process, in seconds."""
    return _best(call, repeats, time.process_time, warm=False)


def wall(call, repeats=3, warm=True):
    """Best wall time, in seconds."""
    return _best(call, repeats, time.perf_counter, warm)


def _best(call, repeats, clock, warm=True):
    if warm:
        call()
    best = np.inf
    for _ in range(repeats):
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


def table(rows, seed=SEED):
    """Twenty columns driven by five Gaussian factors, and a target of the factors."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(rows, 5))
    loadings = np.random.default_rng(99).normal(size=(5, COLUMNS))
    X = factors @ loadings + 0.5 * rng.normal(size=(rows, COLUMNS))
    y = factors @ [3.0, 2.0, 1.5, 1.0, 0.5] + 0.5 * factors[:, 0] * factors[:, 1]
    return X, y + 0.3 * rng.normal(size=rows)


def with_missing(X, rate, seed=SEED + 1):
    """A copy with entries missing completely at random."""
    X = X.copy()
    X[np.random.default_rng(seed).random(X.shape) < rate] = np.nan
    return X


def xgboost_model(X, y, trees=100, depth=6, threads=1):
    """The reference model: 100 trees of depth 6."""
    model = xgboost.XGBRegressor(n_estimators=trees, max_depth=depth, n_jobs=threads)
    model.fit(X, y)
    model.get_booster().set_param({"nthread": threads})
    return model
