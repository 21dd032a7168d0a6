"""``knothole report``: one HTML file about a model of the user's."""

from __future__ import annotations

import math
import time
from pathlib import Path

import click

from knothole.cli import options
from knothole.cli.console import say, took
from knothole.cli.files import open_model, source
from knothole.files import check_output, whole_file
from knothole.progress import bar
from knothole.report.evaluation import PATIENCE, RATES, Comparison, evaluate, evaluation_steps
from knothole.report.methods import DRAWS, ITERATIVE, KNOTHOLE, MEDIAN, NATIVE, Case
from knothole.report.page import render

#: Methods by their names on the command line.
NAMES = {"native": NATIVE, "median": MEDIAN, "iterative": ITERATIVE, "draws": DRAWS}


@click.command(
    epilog="""
\b
Examples:
  knothole report model.knothole --train train.csv --test test.csv --target price
  knothole report model.json --train train.parquet --test test.parquet --target y -o model.html
  knothole report model.knothole --train a.csv --test b.csv --target y --method native --repeats 2

The report is one file that needs no network: error against the share of entries missing for each
method, what the outage of each column costs, whether the reported spread is calibrated, whether the
density looks like the data, and timings.
"""
)
@options.model_argument
@click.option(
    "--train",
    type=options.FILE,
    required=True,
    help="The table MODEL was trained on (or wrapped).",
)
@click.option("--test", type=options.FILE, required=True, help="Held-out rows with their target.")
@click.option("--target", metavar="COLUMN", required=True, help="The column the model predicts.")
@click.option(
    "-o", "--output", type=options.FILE, default=Path("report.html"), show_default=True,
    help="Where to write.",
)  # fmt: skip
@click.option("--title", help="The headline.")
@click.option(
    "--method",
    "methods",
    type=click.Choice(list(NAMES)),
    multiple=True,
    help="Method to compare with; may be repeated. By default all that do not take too long.",
)
@click.option(
    "--rate",
    "rates",
    type=click.FloatRange(0, 0.99),
    multiple=True,
    help=f"Share of entries to make missing; may be repeated. By default {RATES}.",
)
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=5, show_default=True, help="Masks per rate."
)
@options.learning_options(5_000, "keep of each table")
def report(
    model: Path,
    train: Path,
    test: Path,
    target: str,
    output: Path,
    title: str | None,
    methods: tuple[str, ...],
    rates: tuple[float, ...],
    repeats: int,
    learning: options.Learning,
) -> None:
    """Compare ways to answer incomplete rows, for MODEL (wrapped, or a library's own file)."""
    begun = time.perf_counter()
    check_output(output, model, train, test)
    opened = open_model(model, learning.allow_pickle, train, learning.auxiliary)
    known = target if target in source(train).names else None
    rows, y = options.read_rows(train, opened, known, learning)
    new_rows, new_y = options.read_rows(test, opened, target, learning)
    robust, seconds = opened.robust, math.nan
    if robust is None:
        start = time.perf_counter()
        robust = options.learn(opened, rows, y, learning)
        seconds = time.perf_counter() - start
    case = Case.of(robust, rows, new_rows, new_y, y, takes_nan=opened.takes_nan)
    compared = (KNOTHOLE, *(NAMES[name] for name in methods or NAMES))
    shares = tuple(sorted({0.0, *(rates or RATES)}))
    patience = None if methods else PATIENCE
    comparison = Comparison(shares, repeats, compared, learning.seed, patience)
    steps = evaluation_steps(case, comparison)
    with bar("measuring", steps, verbose=options.stages()) as advance:
        evaluation = evaluate(case, comparison, seconds, advance)
    for short, name in NAMES.items():
        if name in evaluation.robustness.left_out:
            would = evaluation.robustness.left_out[name]
            say(f"left out: {case.labels[name]}, about {would:,.0f} s; --method {short} has it")
    with whole_file(output) as temporary:
        headline = title or f"What {model.name} says when values are missing"
        temporary.write_text(render(evaluation, headline), encoding="utf-8")
    say(f"wrote {output} after {took(begun)}")
