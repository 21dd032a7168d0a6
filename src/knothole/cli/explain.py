"""``knothole explain``: why the answers to a file's rows are what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from knothole.cli import options
from knothole.cli.answering import Answering, answering_options

if TYPE_CHECKING:
    import pandas as pd

    from knothole.robust import Robust


@click.command(
    epilog="""
\b
Examples:
  knothole explain model.knothole today.csv -o why.csv
  knothole explain model.knothole today.csv --keep id --errors --group "blood=glucose,insulin"

The output has a row for each row of DATA: the prediction when no value is known (base), and what
each column adds to it (value_COLUMN; 0 for missing values that carry no information). They add up
to the expected prediction under the density. With several classes there is a column for each class
(value_COLUMN_CLASS). Where a missing value may mean "not recorded", lost_COLUMN is the probability
that it was recorded and then lost.
"""
)
@answering_options(1000)
@options.group_option
@options.choice_option(
    "--of",
    ("prediction", "margin"),
    "What to explain: predictions (for a classifier, probabilities), or margins before the link.",
)
@click.option(
    "--tol",
    type=click.FloatRange(min=0, min_open=True),
    default=0.02,
    show_default=True,
    help="Largest standard error of a value, as a share of the spread of the model's outputs.",
)
@click.option("--errors", is_flag=True, help="Add the standard error of each value.")
def explain(
    asked: Answering,
    groups: tuple[str, ...],
    of: Literal["prediction", "margin"],
    tol: float,
    errors: bool,
) -> None:
    """Why MODEL (from knothole wrap) answers the rows of DATA as it does: Shapley values."""
    together = options.groups_of(groups)
    robust = asked.opened()

    import pandas as pd

    reading = asked.reading
    inferred = [v.name for v in robust.columns_.variables if v.nullable]

    def ask(model: Robust, table: pd.DataFrame, lost: pd.DataFrame | None) -> list[pd.DataFrame]:
        found = model.explain(table, together, of=of, tol=tol, lost=lost, **reading)
        several = found.values.ndim == 3
        ends = [f"_{label}" for label in found.outputs] if several else [""]
        base = np.tile(np.atleast_1d(found.base), (len(table), 1))
        columns = [
            pd.DataFrame(base, table.index, [f"base{end}" for end in ends]),
            _columns("value", found.values, found.data, ends),
        ]
        if errors:
            columns.append(_columns("error", found.errors, found.data, ends))
        chance = found.lost_probability
        columns.append(chance[[n for n in chance if n in inferred]].add_prefix("lost_"))
        return columns

    asked.answer(robust, ("explaining", "explanations"), ask)


def _columns(what: str, values: Any, data: pd.DataFrame, ends: list[str]) -> pd.DataFrame:
    """Values (rows, players) or (rows, players, outputs) as columns, a player after the other."""
    import pandas as pd

    names = [f"{what}_{player}{end}" for player in data.columns for end in ends]
    return pd.DataFrame(values.reshape(len(data), -1), data.index, names)
