"""Large tables: time and memory grow with levels, rows and columns, no faster."""

import resource
import tempfile
import time
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd

from benchmarks.speed.setting import Ratio, table, with_missing, xgboost_model
from benchmarks.workers import spawned
from knothole.storage import load
from knothole.wrapping import wrap

# What a table ten times as large may cost, per level or row.
LINEAR = 1.3
#: What grows, and the sizes that are compared; columns are 2,000 rows long.
SIZES = {"levels": (100_000, 1_000_000), "rows": (100_000, 1_000_000), "columns": (250, 500)}
GB = 2**30


def run():
    for what, sizes in SIZES.items():
        # Each in a process of its own: memory is that process's peak.
        costs = []
        for size in sizes:
            with spawned(1) as pool:
                costs.append(pool.submit(cost, what, size).result())
        (small, _, _), (seconds, peak, given) = costs
        few, many = sizes
        yield Ratio(
            "scale", f"wrap, save, load, predict: time for each of {many:,} {what}",
            seconds / many, small / few, f"time for each of {few:,} {what}", LINEAR,
            f"{seconds:.0f} s on one thread",
        )  # fmt: skip
        limit, against = (GB, "1 GB") if what == "levels" else (given, "bytes of the table")
        yield Ratio(
            "scale", f"wrap, save, load, predict: memory for {many:,} {what}", peak, limit, against,
            1.0 if what == "levels" else None, f"{peak / 2**20:.0f} MB beside the table",
        )  # fmt: skip


def cost(what, size):
    """CPU seconds, bytes beside the table and the model at the peak, and bytes of the table."""
    X, y = made(what, 200)
    used(trained(what, X, y), X, y)  # compiled
    X, y = made(what, size)
    model = trained(what, X, y)
    before, start = now(), time.process_time()
    used(model, X, y)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    given = X.memory_usage(deep=True).sum() if isinstance(X, pd.DataFrame) else X.nbytes
    return time.process_time() - start, peak - before, float(given)


def used(model, X, y):
    """The main path once: p(X) is chosen, the file written and read, incomplete rows answered."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.knothole"
        wrap(model, X, y).save(path)
        robust = load(path)
    if isinstance(X, pd.DataFrame):
        rows = X.head(10_000).copy()
        rows.loc[::2, "level"] = None
        rows.loc[1::2, "number"] = np.nan
    else:
        rows = with_missing(X[:10_000], 0.3)
    assert np.isfinite(np.asarray(robust.predict(rows))).all()


def made(what, size):
    """A table with so many levels, rows or columns, and its target."""
    if what == "rows":
        return table(size)
    rng = np.random.default_rng(0)
    if what == "columns":
        factors = rng.normal(size=(2_000, 5))
        X = factors @ rng.normal(size=(5, size)) + rng.normal(size=(2_000, size))
        return X, factors @ [3.0, 2.0, 1.5, 1.0, 0.5]
    codes = rng.integers(size, size=max(2_000, size // 50))
    levels = pd.Categorical.from_codes(codes, categories=np.arange(size))
    X = pd.DataFrame({"number": rng.normal(size=len(codes)), "level": levels})
    return X, (X["number"] + codes % 3).to_numpy()


def trained(what, X, y):
    """A model: of levels LightGBM's, which counts none that rows do not have."""
    if what != "levels":
        return xgboost_model(X, y)
    return lightgbm.LGBMRegressor(n_estimators=20, n_jobs=1, verbose=-1).fit(X, y)


def now():
    """Bytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
