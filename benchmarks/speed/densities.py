"""Learning densities, and drawing draws."""

import os
import tracemalloc
from contextlib import contextmanager

import numpy as np

from benchmarks.speed.setting import Ratio, cpu, table, wall, with_missing, xgboost_model
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.wrapping import wrap

# Why a row of a table of 10,000 costs more than one of 100,000.
WHY = {
    "Mixture(32)": "below 32,000 rows three strengths of the prior are tried, above one",
    "LatentTree(16)": "the first steps are made on 8,192 rows and 32,768, whatever their number",
}
# Starts that learning is timed with.
SEEDS = range(3)


def run():
    X, y = table(100_000)
    incomplete = with_missing(X, 0.2)
    training = wall(lambda: xgboost_model(incomplete, y, threads=2), 2)
    against = "XGBoost training 100 trees of depth 6"
    densities = {
        "Mixture(32)": (lambda seed=0: Mixture(32, random_state=seed), 3.0),
        "LatentTree(16)": (lambda seed=0: LatentTree(16, random_state=seed), 8.0),
    }
    for name, (make, target) in densities.items():
        make().fit(incomplete[:4000])  # compiled: as many rows as take the same way
        # How many steps it takes depends on the start: the mean over a few.
        times = [wall(lambda make=make, s=s: make(s).fit(incomplete), 1, warm=False) for s in SEEDS]
        seconds = float(np.mean(times))
        yield Ratio(
            "densities", f"{name} on 100,000 x 20, 20 % missing values, two threads", seconds,
            training,
            against, target,
        )  # fmt: skip
        for rows, limit, note in ((10_000, None, WHY[name]), (1_000_000, 1.3, "")):
            part = (
                incomplete[:rows]
                if rows <= len(incomplete)
                else np.tile(incomplete, (rows // len(incomplete), 1))
            )
            one = wall(lambda make=make, part=part: make().fit(part), 1, warm=False)
            yield Ratio(
                "densities", f"{name}: time per row at {rows:,} rows", one / rows,
                seconds / len(incomplete), "time per row at 100,000 rows", limit, note,
            )  # fmt: skip
        tracemalloc.start()
        make().fit(incomplete)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield Ratio(
            "densities", f"{name}: peak memory beside the input", peak, incomplete.nbytes,
            "bytes of the input", 3.0,
        )  # fmt: skip

    X, y = table(10_000)
    training = wall(lambda: xgboost_model(X, y, threads=2), 3)
    model = xgboost_model(X, y)
    wrap(model, X[:1000], y[:1000])  # compiled
    yield Ratio(
        "densities", "density='auto' in wrap, 10,000 x 20, two threads",
        wall(lambda: wrap(model, X, y), 1, warm=False), training, against, 40.0,
    )  # fmt: skip

    density = GaussianMixture(16, random_state=0).fit(X)
    incomplete = with_missing(X, 0.3)
    native = cpu(lambda: model.get_booster().inplace_predict(incomplete), 9)
    with one_thread():
        seconds = cpu(lambda: density.complete(incomplete, draws=64), 5)
    yield Ratio(
        "densities",
        "GaussianMixture(16).complete: 64 draws of 10,000 rows, 30 % missing values, one thread",
        seconds, native, "XGBoost inplace_predict of these rows", 2.0,
    )  # fmt: skip


@contextmanager
def one_thread():
    """Draws on the calling thread, whose clock is read."""
    before = os.environ.get("KNOTHOLE_THREADS")
    os.environ["KNOTHOLE_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["KNOTHOLE_THREADS"]
        if before is not None:
            os.environ["KNOTHOLE_THREADS"] = before
