"""``knothole wrap``: a library's model file and its training table become one robust model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from knothole.cli import options
from knothole.cli.console import say, took
from knothole.cli.files import open_model
from knothole.errors import InvalidInput
from knothole.files import check_output
from knothole.missingness.inference import NanPolicy


@click.command(
    epilog="""
\b
Examples:
  knothole wrap model.json train.csv -o model.knothole
  knothole wrap model.txt train.parquet --target price --all
  knothole wrap model.json train.csv --target price --conformalize held_out.csv
  knothole wrap model.json train.csv --target price --auxiliary postcode --auxiliary humidity
  knothole wrap forest.joblib train.csv --allow-pickle --density mixture

MODEL is what the library itself saved: XGBoost's .json or .ubj, LightGBM's .txt, CatBoost's .cbm or
.json, scikit-learn's .joblib. TRAIN is a CSV or Parquet file with the model's columns; others are
ignored.
"""
)
@options.model_argument
@click.argument("train", type=options.FILE)
@click.option(
    "-o", "--output", type=options.FILE, help="Where to write; by default MODEL with .knothole."
)
@click.option(
    "--target",
    metavar="COLUMN",
    help="The column the model predicts: lets auto choose the density by prediction error.",
)
@options.conformalize_option
@options.choice_option(
    "--nan-policy",
    ("infer", "lost", "native"),
    "What a missing value means in a column that had missing values in training: infer by Bayes' "
    "rule, row by row, whether it was not recorded or lost; lost: every missing "
    "value was lost; native: the model's own handling.",
)
@options.all_option
@options.learning_options(200_000, "learn the density from")
def wrap(
    model: Path,
    train: Path,
    output: Path | None,
    target: str | None,
    held_out: Path | None,
    nan_policy: NanPolicy,
    every: bool,
    learning: options.Learning,
) -> None:
    """Learn the density of TRAIN, so that MODEL can answer rows with missing values."""
    start = time.perf_counter()
    place = model.with_suffix(".knothole") if output is None else output
    check_output(place, model, train, *([] if held_out is None else [held_out]))
    options.check_held_out(held_out, target)
    opened = open_model(model, learning.allow_pickle, train, learning.auxiliary)
    if opened.robust is not None:
        raise InvalidInput(f"{model}: has been wrapped already; give the library's own file.")
    table: Any
    if every:
        table, y = options.parts_of_file(train, opened, target, learning), None
    else:
        table, y = options.read_rows(train, opened, target, learning, options.USE_ALL)
    robust = options.learn(opened, table, y, learning, nan_policy)
    robust = options.conformalized(robust, held_out, target, learning)
    robust.save(place)
    say(f"{robust!r}")
    say(f"wrote {place} after {took(start)}")
