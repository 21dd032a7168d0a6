"""``python -m benchmarks.auxiliary``: what auxiliary columns are worth, table by table.

It goes on where it stopped. ``--cost`` measures the time of predictions instead, on a quiet
machine.
"""

from __future__ import annotations

import argparse
import os
from itertools import product
from pathlib import Path

import pandas as pd

from benchmarks.auxiliary import page
from benchmarks.auxiliary.run import REPEATS, Draw, cost
from benchmarks.suite import datasets


def main() -> None:
    """Run what is not done yet; write docs/results/auxiliary*.csv and docs/auxiliary.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auxiliary", description=__doc__)
    parser.add_argument("--tables", nargs="*", default=list(datasets.names()))
    parser.add_argument("--repeats", nargs="*", type=int, default=list(REPEATS))
    parser.add_argument("--cost", action="store_true", help="the time of predictions instead")
    parser.add_argument("--runs", type=Path, default=Path("out/auxiliary"), help="kept here")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    os.environ["KNOTHOLE_THREADS"] = "1"
    asked.runs.mkdir(parents=True, exist_ok=True)
    results = asked.output / "results"
    if asked.cost:
        times = pd.DataFrame([row for name in asked.tables for row in cost(name, REPEATS[0])])
        times.to_csv(results / "auxiliary_times.csv", index=False, float_format="%.6f")
    else:
        draws = [Draw(name, repeat) for repeat, name in product(asked.repeats, asked.tables)]
        rows = [row for draw in draws for row in _said(draw, asked.runs)]
        page.keep(results, pd.DataFrame(rows))
    print(f"wrote {page.write(asked.output)}")


def _said(draw: Draw, runs: Path) -> list[dict[str, object]]:
    rows = draw.done(runs)
    print(f"{draw.dataset}, repeat {draw.repeat}", flush=True)
    return rows


if __name__ == "__main__":
    main()
