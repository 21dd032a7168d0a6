"""``knothole refit``: leaf values that suit training rows with missing values."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from knothole.cli import options
from knothole.cli.console import say, took
from knothole.cli.files import check_native_path, open_model, save_native
from knothole.errors import InvalidInput
from knothole.files import check_output, whole_file
from knothole.leaves.options import CHOICES, Method, Objective, RefitOptions
from knothole.trees.pipelines.composed import is_composed


@click.command(
    epilog="""
\b
Examples:
  knothole refit model.json train.csv --target price -o refitted.knothole
  knothole refit model.txt train.csv --target price --native refitted.txt
  knothole refit model.knothole more.csv --target price -o refitted.knothole

TRAIN is the training table with its missing values. The result answers rows with missing values
through knothole predict; --native writes the same trees with the new leaves as the library's own
file.
"""
)
@options.model_argument
@click.argument("train", type=options.FILE)
@click.option("--target", metavar="COLUMN", required=True, help="The column the model predicts.")
@click.option(
    "-o",
    "--output",
    type=options.FILE,
    help="Where to write; by default MODEL with .refitted.knothole.",
)
@click.option(
    "--native", type=options.FILE, help="Also write the refitted model in the library's own format."
)
@options.choice_option(
    "--method",
    CHOICES["method"],
    "Each tree by itself, all leaves at once, or each tree given the ones before it.",
)
@click.option(
    "--ridge",
    type=click.FloatRange(min=0),
    show_default="0 for forests and single regression trees, otherwise 1",
    help="Strength of the shrinkage of leaf values, in rows.",
)
@options.choice_option(
    "--objective",
    CHOICES["objective"],
    "expected: the expected loss, as in the paper; deployed: then also the error of predictions "
    "(the default for regressions with --condition-on-target).",
)
@click.option(
    "--condition-on-target/--ignore-target",
    default=True,
    show_default=True,
    help="Whether missing values of TRAIN are drawn knowing the target.",
)
@options.conformalize_option
@options.all_option
@options.learning_options(200_000, "refit on")
def refit(
    model: Path,
    train: Path,
    target: str,
    output: Path | None,
    native: Path | None,
    method: Method,
    ridge: float | None,
    objective: Objective,
    condition_on_target: bool,
    held_out: Path | None,
    every: bool,
    learning: options.Learning,
) -> None:
    """Refit the leaves of MODEL for rows with missing values, by the expected loss on TRAIN."""
    start = time.perf_counter()
    refitting = RefitOptions(
        ridge="auto" if ridge is None else ridge,
        method=method,
        objective=objective,
        condition_on_target=condition_on_target,
        verbose=options.stages(),
    )
    place = model.with_suffix(".refitted.knothole") if output is None else output
    inputs = model, train, *([] if held_out is None else [held_out])
    check_output(place, *inputs)
    options.check_held_out(held_out, target)
    opened = open_model(model, learning.allow_pickle, train, learning.auxiliary)
    if native is not None:
        if opened.robust is not None:
            raise InvalidInput(
                f"--native: {model} does not hold the library's own model; give the file that was "
                f"wrapped as MODEL."
            )
        check_native_path(opened.native, native)
        check_output(native, *inputs)
        if native.resolve() == place.resolve():
            raise InvalidInput(
                f"--native: {native} is where the refitted model goes as well; choose another "
                f"place for one of them, by --native or --output."
            )
    table: Any
    y: Any
    if every:
        table, y = options.parts_of_file(train, opened, target, learning), None
        frame = table
    else:
        frame, y = options.read_rows(train, opened, target, learning, options.USE_ALL)
        table = frame
    robust = opened.robust
    if robust is None:
        rows = frame if is_composed(opened.native) else table  # steps take a table as it is
        robust = options.learn(opened, rows, y, learning, "lost")
    refitted = robust.refit_leaves(table, y, refitting)
    refitted = options.conformalized(refitted, held_out, target, learning)
    if native is not None:
        with whole_file(native) as temporary:
            save_native(refitted.to_native(), temporary)
        say(f"wrote {native}")
    refitted.save(place)
    say(f"{refitted!r}")
    say(f"wrote {place} after {took(start)}")
