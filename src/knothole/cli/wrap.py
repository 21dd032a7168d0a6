"""``knothole wrap``: a library's model file and its training table become one robust model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from knothole.cli import options
from knothole.cli.console import bar, say
from knothole.cli.models import open_model, reading_of
from knothole.files import check_output


@click.command(
    epilog="""
\b
Examples:
  knothole wrap model.json train.csv -o model.knothole
  knothole wrap model.txt train.parquet --target price
  knothole wrap model.json train.csv --target price --calibrate held_out.csv
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
@options.calibrate_option
@options.drop_option
@options.density_option
@options.blocks_option
@click.option(
    "--holes",
    type=click.Choice(["auto", "all"]),
    default="auto",
    show_default=True,
    help="What NaN means: auto leaves it to the model in columns that had NaN in training; all "
    "integrates over every one.",
)
@options.rows_option(200_000, "learn the density from")
@options.seed_option
@options.pickle_option
def wrap(
    model: Path,
    train: Path,
    output: Path | None,
    target: str | None,
    calibration: Path | None,
    drop: tuple[str, ...],
    density: str,
    blocks: bool,
    holes: Literal["auto", "all"],
    rows: int,
    seed: int,
    allow_pickle: bool,
) -> None:
    """Learn the density of TRAIN, so that MODEL can answer rows with holes."""
    place = model.with_suffix(".knothole") if output is None else output
    check_output(place, model, train)
    opened = open_model(model, allow_pickle)
    ensemble = reading_of(opened).ensemble
    found = options.read_rows(train, ensemble, target=target, drop=drop, rows=rows, seed=seed)
    with bar(f"learning p(X) from {len(found.table):,} rows"):
        robust = options.learn(opened, found, density, blocks=blocks, seed=seed, holes=holes)
    robust = options.calibrated(robust, calibration, target, seed)
    robust.save(place)
    say(f"{robust!r}")
    say(f"wrote {place}")
