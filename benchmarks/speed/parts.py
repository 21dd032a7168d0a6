"""Tables in parts: two workers and a Parquet table, beside two processes with half of it in memory.

What counts is the CPU time of all processes: whatever else the machine does is left out. The number
of rows is that of ``KNOTHOLE_ROWS``, or 1,000,000, and ``KNOTHOLE_TIMES`` as many, or twice: 20
times 1,000,000 rows take 3.4 GB of disk, and 4.3 GB once encoded. A worker may have 1.5 GB of
memory, so that encoded rows of large tables are on disk.
"""

import os
import resource
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.exceptions import ConvergenceWarning

import knothole as kh
from benchmarks.speed.setting import Ratio, table, with_missing, xgboost_model
from benchmarks.workers import spawned
from knothole.densities.base import go_on
from knothole.out_of_core.partitions import DaskPartitions, Sample
from knothole.storage import load

ROWS = int(os.environ.get("KNOTHOLE_ROWS", "1000000"))
TIMES = int(os.environ.get("KNOTHOLE_TIMES", "2"))
IN_FILE = 50_000
STEPS = 8
MISSING_RATE = 0.1
# Two processes with all in memory may have as much of the throughput more.
THROUGHPUT = 1 / 0.85
LINEAR = 1.3
MOST = 3 * 2**29


def run():
    warnings.simplefilter("ignore", ConvergenceWarning)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        X, y = table(20_000)
        names = [f"x{i}" for i in range(X.shape[1])]
        model = xgboost_model(pd.DataFrame(X, columns=names), y, trees=50)
        density = kh.Mixture(8, strength=1.0, random_state=0)
        kh.wrap(model, pd.DataFrame(X, columns=names), density=density).save(folder / "model")
        place = folder / "rows"
        written(place, TIMES * ROWS, names)
        few = sorted(map(str, place.iterdir()))[: ROWS // IN_FILE]
        all_files = sorted(map(str, place.iterdir()))
        (folder / "few").mkdir()
        for file in few:
            os.link(file, folder / "few" / Path(file).name)
        read, _ = on_workers(reading, few, folder / "model")
        for what, work in {"predicting": predicting, f"{STEPS} steps of EM": fitting}.items():
            seconds, _ = on_workers(work, few, folder / "model")
            with spawned(2) as pool:
                asked = partial(in_memory, work, few, folder / "model")
                alone, opened = map(sum, zip(*pool.map(asked, range(2)), strict=True))
            name = f"{what}, {ROWS:,} rows of Parquet on two workers"
            yield Ratio(
                "parts", name, seconds, alone, "two processes, half of the rows in memory each",
                THROUGHPUT, f"{seconds:.1f} s of CPU, reading Parquet {read:.1f} s",
            )  # fmt: skip
            yield Ratio("parts", name, seconds, alone + opened, "the same, with reading the rows")
            if work is predicting:
                with spawned(1) as pool:
                    seconds = pool.submit(of_path, folder / "few", folder / "model").result()
                yield Ratio(
                    "parts", f"{what}, {ROWS:,} rows of a path, without Dask", seconds, alone,
                    "two processes, half of the rows in memory each", THROUGHPUT,
                )  # fmt: skip
        for what, work in {"predicting": predicting, "a Mixture of 16": learning}.items():
            once, low = on_workers(work, few, folder / "model")
            often, high = on_workers(work, all_files, folder / "model")
            yield Ratio(
                "parts", f"{what}, time for each of {TIMES * ROWS:,} rows", often / TIMES, once,
                f"each of {ROWS:,} rows", LINEAR,
            )  # fmt: skip
            yield Ratio(
                "parts", f"{what}, memory of a process, {TIMES * ROWS:,} rows", high, MOST,
                "1.5 GB", 1.0, f"{high / 2**20:.0f} MB; {low / 2**20:.0f} MB for {ROWS:,}",
            )  # fmt: skip


def written(place, rows, names):
    """A table in files of a few rows each, with missing values."""
    place.mkdir()
    for number, start in enumerate(range(0, rows, IN_FILE)):
        X = with_missing(
            table(min(IN_FILE, rows - start), seed=number)[0], MISSING_RATE, seed=number
        )
        pd.DataFrame(X, columns=names).to_parquet(place / f"part.{number:05d}.parquet")


def predicting(table, robust):
    """Predictions for all rows."""
    found = robust.predict(table)
    if hasattr(found, "compute"):
        found = found.map_partitions(lambda part: part.isna().sum()).compute()
        assert not found.any()
    else:
        assert np.isfinite(found).all()


def fitting(table, robust):
    """Rows encoded, and steps of EM on all of them, from where a sample has led."""
    density = kh.Mixture(8, strength=1.0, max_iter=STEPS, tol=1e-300, random_state=0)
    density.fit(table_of_sample(robust))
    if not hasattr(table, "compute"):
        evidence = density.columns_.evidence(density.columns_.matrix(table))
        rows = density.encoded(evidence, np.ones(len(table)))
        mixture = density._parameters
        for _ in range(STEPS):
            mixture = mixture.stepped(mixture.expect(rows), 1.0)[1]
        return
    rows = len(table)
    go_on(density, Sample(DaskPartitions.of(table), None, None, None, None, rows, float(rows)))
    assert density.n_iter_ == STEPS


def learning(table, robust):
    """A density, from the sample to the last step on all rows."""
    density = kh.Mixture(16, max_iter=STEPS, tol=1e-300, random_state=0).fit(table)
    assert density.n_iter_ == STEPS


def table_of_sample(robust):
    """A few rows, which take no time."""
    return pd.DataFrame(table(2000)[0], columns=list(robust.columns_.names))


def reading(table, robust):
    """The table as it comes to the workers, and no more."""
    table.map_partitions(len).compute()


def on_workers(work, files, model):
    """CPU seconds of all processes, and bytes of the largest at its peak."""
    robust = load(model)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=MOST, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        work(dd.read_parquet(files[:8]), robust)  # everything is loaded, by both
        before = sum(client.run(time.process_time).values()) + time.process_time()
        work(dd.read_parquet(files), robust)
        after = sum(client.run(time.process_time).values()) + time.process_time()
        return after - before, max(peak(), *client.run(peak).values())


def in_memory(work, files, model, number):
    """CPU seconds for a half of the rows, and for reading them."""
    os.environ["KNOTHOLE_THREADS"] = "1"
    warnings.simplefilter("ignore", ConvergenceWarning)
    robust = load(model)
    work(pd.read_parquet(files[number]).head(1000), robust)  # everything is loaded
    start = time.process_time()
    frame = pd.concat([pd.read_parquet(file) for file in files[number::2]], ignore_index=True)
    read = time.process_time()
    work(frame, robust)
    return time.process_time() - read, read - start


def of_path(place, model):
    """CPU seconds for all rows of a directory in one process."""
    robust = load(model)
    robust.predict(pd.read_parquet(next(place.iterdir())))  # everything is loaded
    start = time.process_time()
    robust.predict(place)
    return time.process_time() - start


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
