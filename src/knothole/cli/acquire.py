"""``knothole acquire``: what to find out next about a file's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from knothole.cli import options
from knothole.cli.answering import Answering, answering_options

if TYPE_CHECKING:
    import pandas as pd

    from knothole.robust import Robust


@click.command(
    epilog="""
\b
Examples:
  knothole acquire model.knothole today.csv -o next.csv
  knothole acquire model.knothole today.csv --cost "blood sample=30" --cost age=1 --budget 31
  knothole acquire model.knothole today.csv --keep id --stop 0.95

The output has a row for each row of DATA: the most informative missing value (best), and the gain
of knowing each missing value (gain_COLUMN, empty where the value is known). The gain is how much
lower the variance of the prediction is expected to be; for a classifier, the Brier score or the
entropy of its probabilities.
"""
)
@answering_options(1000)
@options.group_option
@options.cost_option
@click.option(
    "--criterion",
    type=click.Choice(["brier", "entropy"]),
    help="For classifiers: what the gain lowers, the Brier score (the default) or the entropy.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    help="Add a plan: which values to find out for this total cost, the best first.",
)
@click.option(
    "--stop",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="For classifiers: skip rows whose predicted label stays the same with this probability.",
)
@click.option("--errors", is_flag=True, help="Add the standard error of each gain.")
def acquire(
    asked: Answering,
    groups: tuple[str, ...],
    costs: tuple[str, ...],
    criterion: Literal["brier", "entropy"] | None,
    budget: float | None,
    stop: float | None,
    errors: bool,
) -> None:
    """What to find out next about the rows of DATA, for MODEL (from knothole wrap)."""
    cost, together = options.costs_of(costs), options.groups_of(groups)
    robust = asked.opened()

    reading = asked.reading

    def ask(model: Robust, table: pd.DataFrame, lost: pd.DataFrame | None) -> list[pd.DataFrame]:
        found = model.acquire(
            table,
            cost,
            together,
            criterion=criterion,
            budget=budget,
            stop=stop,
            lost=lost,
            **reading,
        )
        columns = [found.best.astype("string").to_frame()]
        if found.change is not None:
            columns.append(found.change.to_frame())
        if found.plan is not None:
            columns.append(found.plan.map(", ".join).astype("string").to_frame())
        columns.append(found.gain.add_prefix("gain_"))
        return [*columns, found.error.add_prefix("error_")] if errors else columns

    asked.answer(robust, ("acquiring", "rows of gains"), ask)
