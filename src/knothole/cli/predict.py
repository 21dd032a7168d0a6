"""``knothole predict``: expected predictions for a table of any size."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click
import pandas as pd

from knothole.cli import options
from knothole.cli.console import say
from knothole.cli.matching import check_column, match
from knothole.cli.models import load_wrapped
from knothole.cli.sinks import CsvSink, Sink, check_table_name, sink
from knothole.cli.sources import CHUNK, source
from knothole.errors import InvalidInput
from knothole.estimators import Robust
from knothole.estimators.answers import Answers, is_classifier
from knothole.files import check_output
from knothole.progress import bar


@click.command(
    epilog="""
\b
Examples:
  knothole predict model.knothole today.csv -o predictions.csv
  knothole predict model.knothole today.parquet -o predictions.parquet --std --keep id
  knothole predict model.knothole today.csv --interval 0.9 > intervals.csv
  knothole predict model.knothole today.csv --absent hole --unseen hole

The file is read, answered and written in chunks, so it may be larger than memory. The output has a
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
@options.choice_option(
    "--unseen", ("error", "hole"), "What to make of a category that training did not have."
)
@options.choice_option(
    "--absent", ("error", "hole"), "What to make of a column of the model that DATA does not have."
)
@click.option(
    "--chunk", type=click.IntRange(min=1), default=CHUNK, show_default=True, help="Rows at a time."
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
    holes: Literal["auto", "all"] | None,
    unseen: Literal["error", "hole"],
    absent: Literal["error", "hole"],
    chunk: int,
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
    with bar(f"predicting {data.name}", table.size) as advance, _opened(output) as out:
        for part, amount in table.chunks(names, found.described, chunk):
            answers = robust.answers(found.table(part), holes, unseen=unseen)
            columns = [part[list(keep)], *_columns(answers, std, proba, quantiles)]
            if interval is not None:
                columns.append(answers.interval(interval))
            out.write(pd.concat(columns, axis=1))
            rows += len(part)
            advance(amount=amount)
        if not rows:
            raise InvalidInput(f"{data}: has no rows.")
    if output is not None:
        say(f"wrote {rows:,} predictions to {output}")


def _check_asked(
    robust: Robust, proba: bool, quantiles: tuple[float, ...], interval: float | None
) -> None:
    classifier = is_classifier(robust.ensemble_)
    if interval is not None and classifier:
        raise InvalidInput("--interval: the model is a classifier; use --proba instead.")
    if interval is not None and robust.calibration_ is None:
        raise InvalidInput(
            "--interval: the model has not been calibrated; wrap or tune it with --calibrate FILE, "
            "rows with the target that it was not trained on."
        )
    if proba and not classifier:
        raise InvalidInput("--proba: the model is a regressor; leave it out.")
    if quantiles and (classifier or robust.ensemble_.n_responses > 1):
        raise InvalidInput("--quantile: for regressors with one target; use --std instead.")


def _columns(
    answers: Answers, std: bool, proba: bool, quantiles: tuple[float, ...]
) -> Iterator[pd.DataFrame]:
    """What was asked for."""
    yield _named(answers.prediction, "prediction")
    if std:
        yield _named(answers.std, "std")
    if quantiles:
        names = [f"quantile_{q:g}" for q in quantiles]
        yield answers.quantiles(quantiles)[0].set_axis(names, axis=1)
    if proba:
        found = answers.probabilities
        for each in found if isinstance(found, list) else [found]:
            yield each.add_prefix("probability_")


def _named(found: Any, name: str) -> pd.DataFrame:
    """One column of the name, or several that are numbered."""
    named: pd.DataFrame = found.to_frame(name) if found.ndim == 1 else found.add_prefix(f"{name}_")
    return named


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
