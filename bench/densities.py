"""Learning densities, and drawing completions."""

import tracemalloc

import numpy as np

from bench.setting import Ratio, cpu, table, wall, with_holes, xgboost_model
from knothole.densities.gaussian_mixture import GaussianMixture
from knothole.densities.latent_tree import LatentTree
from knothole.densities.mixture import Mixture
from knothole.estimators import wrap


def run(full=False):
    X, y = table(100_000)
    holes = with_holes(X, 0.2)
    training = wall(lambda: xgboost_model(holes, y, threads=2), 2)
    against = "XGBoost training 100 trees of depth 6"
    densities = {
        "Mixture(32)": (lambda: Mixture(32, random_state=0), 3.0),
        "LatentTree(16)": (lambda: LatentTree(16, random_state=0), 8.0),
    }
    for name, (make, target) in densities.items():
        make().fit(holes[:1000])  # compiled
        seconds = wall(lambda make=make: make().fit(holes), 1, warm=False)
        yield Ratio(
            "densities", f"{name} on 100,000 x 20, 20 % holes, two threads", seconds, training,
            against, target,
        )  # fmt: skip
        sizes = (10_000, 1_000_000) if full else (10_000,)
        for rows in sizes:
            part = holes[:rows] if rows <= len(holes) else np.tile(holes, (rows // len(holes), 1))
            one = wall(lambda make=make, part=part: make().fit(part), 1, warm=False)
            yield Ratio(
                "densities", f"{name}: time per row at {rows:,} rows", one / rows,
                seconds / len(holes), "time per row at 100,000 rows",
            )  # fmt: skip
        tracemalloc.start()
        make().fit(holes)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield Ratio(
            "densities", f"{name}: peak memory beside the input", peak, holes.nbytes,
            "bytes of the input", 3.0,
        )  # fmt: skip

    X, y = table(10_000)
    training = wall(lambda: xgboost_model(X, y, threads=2), 3)
    model = xgboost_model(X, y)
    yield Ratio(
        "densities", "density='auto' in wrap, 10,000 x 20, two threads",
        wall(lambda: wrap(model, X, y), 1, warm=False), training, against, 40.0,
    )  # fmt: skip

    density = GaussianMixture(16, random_state=0).fit(X)
    holes = with_holes(X, 0.3)
    native = cpu(lambda: model.get_booster().inplace_predict(holes), 9)
    evidence = density.evidence(holes)
    sampler = density.sampler()
    yield Ratio(
        "densities", "GaussianMixture(16): 64 draws of 10,000 rows, 30 % holes, one thread",
        cpu(lambda: [sampler.draw(evidence[i : i + 128], i, 0) for i in range(0, len(X), 128)], 5),
        native, "XGBoost inplace_predict of these rows", 2.0,
    )  # fmt: skip
