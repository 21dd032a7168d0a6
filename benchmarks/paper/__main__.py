"""``python -m benchmarks.paper``: the paper's figure, and what goes with it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.paper import page as pages
from benchmarks.paper.reproduce import reproduce
from knothole.cli import options
from knothole.cli.app import prepare, run
from knothole.cli.console import say


@click.command(
    epilog="""
\b
Examples:
  python -m benchmarks.paper
  python -m benchmarks.paper -o docs --data ~/knothole-data
  python -m benchmarks.paper --trials 3 --open-trials 0

Writes reproduce.md, and the CSV files, the figure, versions and seeds in results/. Insurance is
downloaded unless --data or KNOTHOLE_DATA names a folder with insurance.csv; the published masks
are left out where that folder does not have them.
"""
)
@click.option(
    "-o", "--output", type=options.FILE, default=Path("out"), show_default=True,
    help="Directory for the page and its results; made if need be.",
)  # fmt: skip
@click.option("--data", type=options.FILE, help="Directory with the data.")
@click.option(
    "--trials", type=click.IntRange(min=2), default=10, show_default=True, help="Of the figure."
)
@click.option(
    "--open-trials",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Of the experiments that the paper leaves open: 0 for none, else at least 2.",
)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True,
              help="Processes.")  # fmt: skip
@click.option("--page-only", is_flag=True, help="Only write page and figure anew, from results.")
def paper(
    output: Path,
    data: Path | None,
    trials: int,
    open_trials: int,
    workers: int,
    page_only: bool,
) -> None:
    """Run Figure 1 of Khosravi et al. (2020), both panels, and the published masks."""
    if page_only:
        page = pages.write(output)
    else:
        page = reproduce(output, data, trials=trials, open_trials=open_trials, workers=workers)
    say(f"wrote {page}")


if __name__ == "__main__":
    prepare()
    sys.exit(run(sys.argv[1:], paper, "python -m benchmarks.paper"))
