"""``knothole predict``: expected predictions for a table of any size."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from knothole.cli import options
from knothole.cli.console import bar, say
from knothole.cli.matching import check_column, match
from knothole.cli.models import load_wrapped
from knothole.cli.sinks import CsvSink, Sink, check_table_name, sink
from knothole.cli.sources import BLOCK, source
from knothole.errors import InvalidInput
from knothole.files import check_output


@click.command(
    epilog="""
\b
Examples:
  knothole predict model.knothole today.csv -o predictions.csv
  knothole predict model.knothole today.parquet -o predictions.parquet --std --keep id
  knothole predict model.knothole today.csv --interval 0.9 > intervals.csv
  knothole predict model.knothole today.csv --absent hole --unseen hole

The file is read, answered and written in blocks, so it may be larger than memory. The output has a
row for each row of DATA, in the same order.
"""
)
@options.model_argument
@click.argument("data", type=options.FILE)
@click.option("-o", "--output", type=options.FILE, help="Where to write; by default CSV to stdout.")
@click.option(
    "--interval",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="COVERAGE",
    help="Add the ends of an interval that holds the true value with this probability; MODEL must "
    "have been calibrated (wrap --calibrate).",
)
@click.option("--std", is_flag=True, help="Add the spread that the holes cause.")
@click.option("--proba", is_flag=True, help="Add the probability of every class.")
@click.option(
    "--quantile",
    "quantiles",
    type=click.FloatRange(0, 1),
    multiple=True,
    help="Add a quantile of the prediction over what the holes could be; may be repeated. It is "
    "about the holes alone: for the true value see --interval.",
)
@click.option(
    "--keep", multiple=True, metavar="COLUMN", help="Column of DATA to repeat; may be repeated."
)
@click.option(
    "--holes",
    type=click.Choice(["auto", "all"]),
    help="What NaN means (see wrap); by default as MODEL was wrapped.",
)
@click.option(
    "--unseen",
    type=click.Choice(["error", "hole"]),
    default="error",
    show_default=True,
    help="What a category is that training did not have.",
)
@click.option(
    "--absent",
    type=click.Choice(["error", "hole"]),
    default="error",
    show_default=True,
    help="What a column of the model is that DATA does not have.",
)
@click.option(
    "--block", type=click.IntRange(min=1), default=BLOCK, show_default=True, help="Rows at a time."
)
def predict(
    model: Path,
    data: Path,
    output: Path | None,
    interval: float | None,
    std: bool,
    proba: bool,
    quantiles: tuple[float, ...],
    keep: tuple[str, ...],
    holes: str | None,
    unseen: str,
    absent: str,
    block: int,
) -> None:
    """Expected predictions of MODEL (from knothole wrap) for the rows of DATA."""
    if output is not None:
        check_table_name(output)
        check_output(output, model, data)
    robust = load_wrapped(model)
    _check_asked(robust, proba, quantiles, interval)
    table = source(data)
    for name in keep:
        check_column(table, name, "--keep")
    found = match(robust.columns_, table, absent=absent)
    names = list(dict.fromkeys([*found.names, *keep]))
    rows = 0
    with bar(f"predicting {data.name}", table.size) as progress, _opened(output) as out:
        for part, position in table.blocks(names, found.described, block):
            rows_of = found.table(part)
            answer = _answers(robust, rows_of, std, proba, quantiles, holes=holes, unseen=unseen)
            if interval is not None:
                ends = robust.predict_interval(rows_of, interval, holes=holes, unseen=unseen)
                answer = pd.concat([answer, ends], axis=1)
            out.write(pd.concat([part[list(keep)], answer], axis=1))
            rows += len(part)
            progress.reach(position)
        if not rows:
            raise InvalidInput(f"{data}: has no rows.")
    if output is not None:
        say(f"wrote {rows:,} predictions to {output}")


def _check_asked(
    robust: Any, proba: bool, quantiles: tuple[float, ...], interval: float | None
) -> None:
    classifier = robust.ensemble_.classes is not None
    if interval is not None and classifier:
        raise InvalidInput("--interval: the model is a classifier; use --proba instead.")
    if interval is not None and robust.calibration_ is None:
        raise InvalidInput(
            "--interval: the model has not been calibrated; wrap or tune it with --calibrate FILE, "
            "rows with the target that it was not trained on."
        )
    if proba and not classifier:
        raise InvalidInput("--proba: the model is a regressor; leave it out.")
    if quantiles and (classifier or robust.ensemble_.n_outputs > 1):
        raise InvalidInput("--quantile: for regressors with one target; use --std instead.")


def _answers(
    robust: Any,
    table: pd.DataFrame,
    std: bool,
    proba: bool,
    quantiles: tuple[float, ...],
    **how: Any,
) -> pd.DataFrame:
    """The columns of the output for some rows."""
    answer = robust.predict(table, return_std=std, **how)
    prediction, spread = answer if std else (answer, None)
    parts = [_named(prediction, "prediction", table.index)]
    if spread is not None:
        parts.append(_named(spread, "std", table.index))
    if quantiles:
        found = robust.predict(table, quantiles=list(quantiles), **how)
        parts.append(found.set_axis([f"quantile_{q:g}" for q in quantiles], axis=1))
    if proba:
        found = robust.predict_proba(table, **how)
        for each in found if isinstance(found, list) else [found]:
            parts.append(each.add_prefix("probability_"))
    return pd.concat(parts, axis=1)


def _named(values: Any, name: str, index: pd.Index[Any]) -> pd.DataFrame:
    """One column of the name, or several that are numbered."""
    array = np.asarray(values)
    if array.ndim == 1:
        return pd.DataFrame({name: array}, index=index)
    names = [f"{name}_{number}" for number in range(array.shape[1])]
    return pd.DataFrame(array, index=index, columns=names)


@contextmanager
def _opened(output: Path | None) -> Iterator[Sink]:
    if output is not None:
        with sink(output) as opened:
            yield opened
        return
    try:
        yield CsvSink(sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError as done:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from done
