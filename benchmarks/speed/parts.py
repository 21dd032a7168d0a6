"""Tables in parts: two workers and a Parquet table, beside two processes with half of it in memory.

What counts is the CPU time of all processes: whatever else the machine does is left out. The number
of rows is that of ``KNOTHOLE_ROWS``, or 1,000,000, and twice as many.
"""

import os
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import knothole as kh
from benchmarks.speed.setting import Ratio, table, with_holes, xgboost_model
from benchmarks.workers import spawned
from knothole.estimators import load
from knothole.parts import sample

ROWS = int(os.environ.get("KNOTHOLE_ROWS", "1000000"))
IN_FILE = 50_000
HOLES = 0.1
# Two processes with all in memory may have as much of the throughput more.
THROUGHPUT = 1 / 0.85
LINEAR = 1.3
MOST = 1.5 * 2**30


def run():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        X, y = table(20_000)
        names = [f"x{i}" for i in range(X.shape[1])]
        model = xgboost_model(pd.DataFrame(X, columns=names), y, trees=50)
        density = kh.Mixture(8, strength=1.0, random_state=0)
        kh.wrap(model, pd.DataFrame(X, columns=names), density=density).save(folder / "model")
        each = {"predicting": predicting, "a fit": fitting}
        costs = {}
        for rows in (ROWS, 2 * ROWS):
            place = folder / str(rows)
            written(place, rows, names)
            for what, work in each.items():
                costs[what, rows] = on_workers(work, place, folder / "model")
        for what, work in each.items():
            with spawned(2) as pool:
                asked = partial(in_memory, work, folder / str(ROWS), folder / "model")
                alone = list(pool.map(asked, range(2)))
            seconds, peak, unit = costs[what, ROWS]
            own = sum(cpu for cpu, _ in alone) / sum(units for _, units in alone)
            yield Ratio(
                "parts", f"{what}, {ROWS:,} rows of Parquet on two workers", seconds / unit, own,
                "two processes, half of the rows in memory each", THROUGHPUT,
                f"{ROWS / seconds * unit:,.0f} rows a CPU second",
            )  # fmt: skip
            twice, high, units = costs[what, 2 * ROWS]
            yield Ratio(
                "parts", f"{what}, time for each of {2 * ROWS:,} rows", twice / units / 2,
                seconds / unit, f"each of {ROWS:,} rows", LINEAR,
            )  # fmt: skip
            yield Ratio(
                "parts", f"{what}, memory of a worker, {2 * ROWS:,} rows", high, MOST, "1.5 GB",
                1.0, f"{high / 2**20:.0f} MB; {peak / 2**20:.0f} MB for {ROWS:,} rows",
            )  # fmt: skip


def written(place, rows, names):
    """A table in files of a few rows each, with holes."""
    place.mkdir()
    for number, start in enumerate(range(0, rows, IN_FILE)):
        X = with_holes(table(min(IN_FILE, rows - start), seed=number)[0], HOLES, seed=number)
        pd.DataFrame(X, columns=names).to_parquet(place / f"part.{number:05d}.parquet")


def predicting(table, robust, place):
    """Predictions for all rows; returns 1, the passes it took."""
    found = robust.predict(table) if place is None else robust.predict(table, threads=1)
    if place is None:
        assert np.isfinite(found.mean().compute())
    else:
        assert np.isfinite(found).all()
    return 1


def fitting(table, robust, place):
    """A density; returns how many steps of EM were made on all rows, and two passes before."""
    density = kh.Mixture(8, strength=1.0, random_state=0)
    if place is None:
        return density.fit(table).n_iter_ + 2
    drawn = sample.sample(kh.parts.base.LocalParts.of(lambda: iter([(table, None)])), 0)
    density.fit(drawn.table)
    matrix = density.columns_.matrix(table)
    rows = density.encoded(density.columns_.evidence(matrix))
    mixture, steps = density._mixture, 8
    for _ in range(steps):
        mixture = kh.densities.mixture.em.step(rows, mixture, 1.0)[1]
    return steps + 2


def on_workers(work, place, model):
    """CPU seconds of all processes, bytes of the larger worker at its peak, and passes."""
    robust = load(model)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        little = dd.read_parquet(place).partitions[:2]
        work(little, robust, None)  # everything is loaded
        before = sum(client.run(time.process_time).values()) + time.process_time()
        units = work(dd.read_parquet(place), robust, None)
        after = sum(client.run(time.process_time).values()) + time.process_time()
        return after - before, max(client.run(peak).values()), units


def in_memory(work, place, model, number):
    """CPU seconds for a half of the rows, and passes over them."""
    os.environ["KNOTHOLE_THREADS"] = "1"
    robust = load(model)
    files = sorted(place.iterdir())
    half = files[number::2]
    frame = pd.concat([pd.read_parquet(file) for file in half], ignore_index=True)
    work(frame.head(1000), robust, place)
    start = time.process_time()
    units = work(frame, robust, place)
    return time.process_time() - start, units / 2


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
