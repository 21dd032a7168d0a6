"""``knothole benchmark``: knothole and what users would pick instead, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from knothole.cli import options
from knothole.cli.console import say
from knothole.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

#: What --holes stands for, as named in :mod:`knothole.benchmark.scenarios`.
HOLES = ("deployment", "same", "changed")


@click.command(
    epilog="""
\b
Examples:
  knothole benchmark -o runs/first --datasets abalone,titanic --peers knothole,native,median
  knothole benchmark -o runs/all --repeats 5 --workers 8

The same command again continues a run that was stopped. Results are in OUTPUT/results.parquet.
"""
)
@click.option("-o", "--output", type=options.FILE, default=Path("out/benchmark"), show_default=True,
              help="Directory of the run.")  # fmt: skip
@click.option("--data", type=options.FILE, help="Directory with the data; else KNOTHOLE_DATA.")
@click.option("--datasets", metavar="NAMES", help="With commas between; by default all.")
@click.option("--peers", metavar="NAMES", help="With commas between; by default all installed.")
@click.option(
    "--holes",
    type=click.Choice(HOLES),
    default="deployment",
    show_default=True,
    help="At deployment only; in training too by the same mechanism; or by another.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True,
              help="Splits of each dataset.")  # fmt: skip
@click.option("--max-rows", type=click.IntRange(min=100), default=10_000, show_default=True,
              help="Rows of a dataset that are used at most.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True,
              help="Processes.")  # fmt: skip
def benchmark(
    output: Path,
    data: Path | None,
    datasets: str | None,
    peers: str | None,
    holes: str,
    repeats: int,
    max_rows: int,
    workers: int,
) -> None:
    """Compare errors and times of knothole and its peers on tables with holes."""
    from knothole.benchmark import runner, scenarios
    from knothole.benchmark.roster import all_peers

    known = all_peers()
    wanted = list(known) if peers is None else _names(peers)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidInput(f"--peers must be among {', '.join(known)}; got {unknown[0]!r}.")
    plan = runner.Plan(
        [known[name] for name in wanted],
        datasets=_names(datasets or ""),
        scenarios=getattr(scenarios, holes.upper()),
        repeats=repeats,
        max_rows=max_rows,
        data=None if data is None else str(data),
    )
    _summarise(runner.run(plan, output, workers))
    say(f"wrote {output / 'results.parquet'}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _summarise(results: pd.DataFrame) -> None:
    """Print ranks, duels and times."""
    from knothole.benchmark import analysis

    click.echo(analysis.overview(results).round(3).to_string())
    if results["peer"].nunique() < 2:
        return
    if len(analysis.error_table(results)) > 1:
        ranking = analysis.rank(results)
        click.echo(
            f"\nFriedman's p = {ranking.p_value:.2g} over {ranking.cells} cells; mean ranks differ "
            f"if they are {ranking.critical_difference:.2f} apart."
        )
    if "knothole" in set(results["peer"]):
        click.echo("\nknothole against each, cells by paired tests:")
        click.echo(analysis.tally(analysis.duels(results)).round(2).to_string())
