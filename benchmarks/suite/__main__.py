"""``python -m benchmarks.suite``: knothole and what users would pick instead, side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks import pictures
from benchmarks.suite import page as pages
from benchmarks.suite import results, runner
from benchmarks.suite.peers.base import Peer
from benchmarks.suite.peers.roster import all_peers, idle
from benchmarks.suite.results import Suite
from benchmarks.suite.scenarios import SETTINGS
from benchmarks.suite.verdicts import verdicts
from knothole.cli import options
from knothole.cli.app import INTERRUPTED, prepare, run
from knothole.cli.console import say
from knothole.errors import InvalidInput


@click.command(
    epilog="""
\b
Examples:
  python -m benchmarks.suite -o runs/first --datasets abalone,titanic --peers knothole,native,median
  python -m benchmarks.suite -o runs/same --missing same --repeats 5 --workers 8 --page docs
  python -m benchmarks.suite -o runs/same --page docs --page-only

The same command again continues a run that was stopped. Results are in OUTPUT/results.parquet,
pictures beside them. A page (suite.md, and what it is written from in results/) has a section for
each kind of --missing: run them one after the other, each in a directory of its own.
"""
)
@click.option("-o", "--output", type=options.FILE, default=Path("out/suite"), show_default=True,
              help="Directory of the run.")  # fmt: skip
@click.option("--data", type=options.FILE, help="Directory with the data; else KNOTHOLE_DATA.")
@click.option("--datasets", metavar="NAMES", help="With commas between; by default all.")
@click.option("--peers", metavar="NAMES", help="With commas between; by default all installed.")
@click.option(
    "--missing",
    type=click.Choice(list(SETTINGS)),
    default="deployment",
    show_default=True,
    help="At deployment only; in training too by the same mechanism; or by another.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True,
              help="Splits of each dataset.")  # fmt: skip
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True,
              help="The first repeat: 0 to 3 served design, 4 and more judge.")  # fmt: skip
@click.option("--max-rows", type=click.IntRange(min=100), default=10_000, show_default=True,
              help="Rows of a dataset that are used at most.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True,
              help="Processes.")  # fmt: skip
@click.option("--rivals", type=options.FILE,
              help="Directory of a page: rivals are taken from there, not run.")  # fmt: skip
@click.option("--page", type=options.FILE, help="Directory whose suite.md is to show the results.")
@click.option("--page-only", is_flag=True, help="Run nothing: only show what OUTPUT has.")
def suite(
    output: Path,
    data: Path | None,
    datasets: str | None,
    peers: str | None,
    missing: str,
    repeats: int,
    first: int,
    max_rows: int,
    workers: int,
    rivals: Path | None,
    page: Path | None,
    page_only: bool,
) -> None:
    """Compare errors and times of knothole and its peers on tables with missing values."""
    if page_only and page is None:
        raise click.UsageError("--page-only needs --page, the directory of the page.")
    if not page_only:
        plan = runner.Plan(
            _peers(peers, missing),
            datasets=_names(datasets or ""),
            scenarios=SETTINGS[missing],
            repeats=repeats,
            first=first,
            max_rows=max_rows,
            data=None if data is None else str(data),
        )
        if rivals is not None:
            say(f"{results.take_rivals(plan, output, rivals)} cells of rivals are from {rivals}")
        try:
            runner.run(plan, output, workers)
        except KeyboardInterrupt:
            say("interrupted; what is finished is kept, and the same command continues.")
            raise click.exceptions.Exit(INTERRUPTED) from None
    found = results.gather(output)
    if not page_only:
        _draw(found, output)
        _summarise(found)
        say(f"wrote {output / 'results.parquet'}")
    if page is not None:
        results.save(found, page)
        say(f"wrote {pages.write(page)}")


def _peers(names: str | None, missing: str) -> list[Peer]:
    """The peers asked for, by default all that have something to do."""
    known = all_peers()
    if names is None:
        return [peer for name, peer in known.items() if name not in idle(missing)]
    wanted = _names(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidInput(f"--peers must be among {', '.join(known)}; got {unknown[0]!r}.")
    return [known[name] for name in wanted]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _draw(found: Suite, folder: Path) -> None:
    for name, figure in pages.figures(found).items():
        (folder / f"{name}.png").write_bytes(pictures.png(figure))


def _summarise(found: Suite) -> None:
    """Print ranks, duels and times."""
    click.echo(found.overview.round(3).to_string())
    if found.ranking is not None:
        click.echo(
            f"\nFriedman's p = {found.ranking.p_value:.2g} over {found.ranking.cells} cells; mean "
            f"ranks differ if they are {found.ranking.critical_difference:.2f} apart."
        )
    for own, tally in found.tallies.items():
        click.echo(f"\n{own} against each, cells by paired tests:")
        click.echo(tally.round(2).to_string())
    click.echo()
    for verdict in verdicts(
        found.setting, found.ranking, found.tallies, found.by_dataset, found.corrections
    ):
        click.echo(str(verdict).replace("**", ""))


if __name__ == "__main__":
    prepare()
    sys.exit(run(sys.argv[1:], suite, "python -m benchmarks.suite"))
