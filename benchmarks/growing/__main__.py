"""``python -m benchmarks.growing``: trees grown under the expected loss; the pictures of a page.

It goes on where it stopped.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import pandas as pd

from benchmarks.growing import page
from benchmarks.growing.run import TABLES, Job
from benchmarks.paper.panels import RATES
from benchmarks.workers import spawned


def main() -> None:
    """Run what is asked for; write docs/results/growing_*.csv and docs/induction.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growing", description=__doc__)
    parser.add_argument("--trials", type=int, default=10, help="of Insurance, 0 for none")
    parser.add_argument("--repeats", type=int, default=3, help="splits for shifts, 0 for none")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("out/growing"), help="kept here")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    experiments = {
        "insurance": [
            Job("insurance", trial, rate, asked.runs)
            for trial, rate in product(range(asked.trials), RATES)
        ],
        "shifts": [
            Job(table, repeat, 0.3, asked.runs)
            for repeat, table in product(range(asked.repeats), TABLES)
        ],
        "times": [Job("times", repeat, 0.3, asked.runs) for repeat in range(asked.repeats)],
    }
    with spawned(asked.workers) as pool:
        for name, jobs in experiments.items():
            parts = [pd.read_csv(path) for path in pool.map(Job.done, jobs)]
            if parts:
                results = pd.concat(parts, ignore_index=True)
                place = asked.output / "results" / f"growing_{name}.csv"
                results.to_csv(place, index=False, float_format="%.5f")
    print(f"wrote {page.write(asked.output)}")


if __name__ == "__main__":
    main()
