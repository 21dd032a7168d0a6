"""``python -m benchmarks.intervals``: intervals for y, knothole's and others'; a page in docs/.

It goes on where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.intervals import page
from benchmarks.intervals.job import Job
from benchmarks.intervals.tables import MISSING, TABLES
from benchmarks.workers import spawned

#: Splits of a small table for each of the others': its test rows are few.
SPLITS = {"concrete": 4}


def main() -> None:
    """Run what is asked for and write docs/results/intervals*.csv and docs/intervals.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intervals", description=__doc__)
    parser.add_argument("--splits", type=int, default=10, help="of each table; 4 times of concrete")
    parser.add_argument("--first", type=int, default=0, help="seed of the first split")
    parser.add_argument("--tables", nargs="*", default=TABLES, choices=TABLES)
    parser.add_argument("--missing", nargs="*", default=MISSING, choices=MISSING)
    parser.add_argument("--models", nargs="*", default=["mean"], choices=["mean", "quantiles"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("out/intervals"), help="kept here")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    # Split by split, so that what was done when it stops is about all tables alike.
    jobs = [
        Job(name, missing, seed, model, asked.runs)
        for number in range(asked.splits)
        for name in asked.tables
        for seed in seeds(name, asked.first, number)
        for missing in asked.missing
        for model in asked.models
    ]
    with spawned(asked.workers) as pool:
        parts = [pd.read_csv(path) for path in pool.map(Job.done, jobs)]
    page.write(asked.output, pd.concat(parts, ignore_index=True))


def seeds(name: str, first: int, number: int) -> range:
    """Seeds of a table's splits; those from 100 served for choosing the design."""
    times = SPLITS.get(name, 1)
    return range(first + times * number, first + times * (number + 1))


if __name__ == "__main__":
    main()
