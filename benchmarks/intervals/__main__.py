"""``python -m benchmarks.intervals``: intervals for y, knothole and its rivals; a page in docs/."""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd

from benchmarks.intervals import page
from benchmarks.intervals.run import run
from benchmarks.intervals.tables import HOLES, TABLES

SPLITS = {"concrete": 40}  # it is small
KEYS = ["table", "holes", "model", "method"]


def main() -> None:
    """Run what is asked for and write docs/results/intervals.csv and docs/intervals.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intervals", description=__doc__)
    parser.add_argument("--splits", type=int, default=10, help="of each table (concrete: 4 times)")
    parser.add_argument("--tables", nargs="*", default=TABLES, choices=TABLES)
    parser.add_argument("--holes", nargs="*", default=HOLES, choices=HOLES)
    parser.add_argument("--models", nargs="*", default=["mean", "quantiles"])
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    parser.add_argument("--page-only", action="store_true", help="from the results that are there")
    asked = parser.parse_args()
    results = asked.output / "results" / "intervals.csv"
    if not asked.page_only:
        jobs = [
            (name, holes, seed, kind)
            for name in asked.tables
            for holes in asked.holes
            for kind in asked.models
            for seed in seeds(name, asked.splits, asked.first_seed)
        ]
        with ProcessPoolExecutor(asked.workers) as pool:
            parts = list(pool.map(one, jobs))
        results.parent.mkdir(parents=True, exist_ok=True)
        summed(pd.concat(parts)).to_csv(results, index=False, float_format="%.6g")
    page.write(asked.output / "intervals.md", pd.read_csv(results))


def seeds(name: str, splits: int, first: int) -> range:
    """Seeds of the splits; those of 100 and above served for choosing the design."""
    return range(first, first + splits * SPLITS.get(name, 10) // 10)


def one(job: tuple[str, str, int, str]) -> pd.DataFrame:
    """One run, announced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # imputers say that they stopped early
        found = run(*job)
    print(*job, f"{found['seconds'].sum():.0f} s", flush=True)
    return found


def summed(runs: pd.DataFrame) -> pd.DataFrame:
    """Over splits, by pattern; patterns with fewer than 200 test rows together, by their holes."""
    by = [*KEYS, "pattern"]
    total = runs.groupby(by, sort=False)[["rows", "covered", "width"]].sum().reset_index()
    holes = total["pattern"].str.count(r"\?")
    rare = total["rows"] < page.FREQUENT
    total.loc[rare, "pattern"] = "rare, " + holes[rare].astype(str) + " holes"
    total = total.groupby(by, sort=False)[["rows", "covered", "width"]].sum().reset_index()
    seconds = runs.groupby([*KEYS, "seed"])["seconds"].first().groupby(KEYS).mean()
    return total.merge(seconds.reset_index(), on=KEYS)


if __name__ == "__main__":
    main()
