"""``knothole tune``: leaf values that suit training rows with holes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from knothole.cli import options
from knothole.cli.console import bar, say
from knothole.cli.models import (
    check_native_path,
    is_wrapped,
    load_wrapped,
    open_model,
    reading_of,
    save_native,
)
from knothole.errors import InvalidInput
from knothole.files import check_output, whole_file


@click.command(
    epilog="""
\b
Examples:
  knothole tune model.json train.csv --target price -o tuned.knothole
  knothole tune model.txt train.csv --target price --native tuned.txt
  knothole tune model.knothole more.csv --target price -o tuned.knothole

TRAIN is the training table with its holes. The result answers rows with holes through knothole
predict; --native writes the same trees with the new leaves as the library's own file.
"""
)
@options.model_argument
@click.argument("train", type=options.FILE)
@click.option("--target", metavar="COLUMN", required=True, help="The column the model predicts.")
@click.option(
    "-o",
    "--output",
    type=options.FILE,
    help="Where to write; by default MODEL with .tuned.knothole.",
)
@click.option(
    "--native", type=options.FILE, help="Also write the tuned model in the library's own format."
)
@click.option(
    "--method",
    type=click.Choice(["auto", "tree", "forest", "boosting"]),
    default="auto",
    show_default=True,
    help="Each tree by itself, all leaves at once, or each tree given the ones before it.",
)
@click.option(
    "--ridge",
    type=click.FloatRange(min=0),
    show_default="0 for forests and single regression trees, otherwise 1",
    help="Weight, in rows, of what leaves are drawn to.",
)
@click.option(
    "--objective",
    type=click.Choice(["auto", "expected", "deployed"]),
    default="auto",
    show_default=True,
    help="The expected loss, as in the paper, or going on to the error of predictions; by default "
    "the latter for regressions that know the target.",
)
@click.option(
    "--condition-on-target/--ignore-target",
    default=True,
    show_default=True,
    help="Whether training holes are filled knowing the target.",
)
@options.calibrate_option
@options.drop_option
@options.density_option
@options.blocks_option
@options.rows_option(200_000, "tune on")
@options.seed_option
@options.pickle_option
def tune(
    model: Path,
    train: Path,
    target: str,
    output: Path | None,
    native: Path | None,
    method: Literal["auto", "tree", "forest", "boosting"],
    ridge: float | None,
    objective: Literal["auto", "expected", "deployed"],
    condition_on_target: bool,
    calibration: Path | None,
    drop: tuple[str, ...],
    density: str,
    blocks: bool,
    rows: int,
    seed: int,
    allow_pickle: bool,
) -> None:
    """Refit the leaves of MODEL for rows with holes, over every completion of TRAIN's."""
    place = model.with_suffix(".tuned.knothole") if output is None else output
    check_output(place, model, train)
    wrapped = is_wrapped(model)
    opened = None if wrapped else open_model(model, allow_pickle)
    if native is not None:
        if wrapped:
            raise InvalidInput(
                f"--native: {model} does not hold the library's own model; give the file that was "
                f"wrapped as MODEL."
            )
        check_native_path(opened, native)
        check_output(native, model, train)
    robust = load_wrapped(model) if wrapped else None
    found = options.read_rows(
        train,
        reading_of(opened).ensemble if robust is None else robust.ensemble_,
        columns=None if robust is None else robust.columns_,
        target=target,
        drop=drop,
        rows=rows,
        seed=seed,
    )
    with bar("learning p(X)") as progress:
        if robust is None:
            robust = options.learn(opened, found, density, blocks=blocks, seed=seed, holes="all")
        progress.say("tuning leaves")
        tuned = robust.tune(
            found.table,
            found.target,
            ridge="auto" if ridge is None else ridge,
            method=method,
            objective=objective,
            condition_on_target=condition_on_target,
        )
    if native is not None:
        with whole_file(native) as temporary:
            save_native(tuned.to_native(), temporary)
        say(f"wrote {native}")
    options.calibrated(tuned, calibration, target, seed).save(place)
    say(f"{tuned!r}")
    say(f"wrote {place}")
