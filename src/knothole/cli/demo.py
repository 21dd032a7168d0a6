"""``knothole demo``: train, make values missing, compare, draw; on data inside scikit-learn.

The Wisconsin breast cancer table: 569 tumours, 30 measurements of their cells, benign or malignant.
A model is trained on complete rows; then the laboratory loses some.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from knothole.cli import options
from knothole.cli.console import say, stdout, took
from knothole.densities.names import name_of
from knothole.files import check_output, whole_file
from knothole.progress import bar
from knothole.report.displays import RobustnessDisplay
from knothole.report.evaluation import Comparison, Evaluation, evaluate, evaluation_steps
from knothole.report.methods import KNOTHOLE, METHODS, NATIVE, Case
from knothole.report.page import number, render

TITLE = "A trained model loses half of its measurements. What does it say?"
LEAD = (
    "A classifier learned from complete rows of scikit-learn's breast cancer table (30 "
    "measurements of a tumour's cells, benign or malignant) and is then asked about tumours that "
    "it has not seen, with some of the measurements missing. Nobody retrains it."
)
SEED = 0
METRIC = "error rate"
RATES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


@click.command(
    epilog="""
\b
Examples:
  knothole demo
  knothole demo -o demo --repeats 10
"""
)
@click.option(
    "-o", "--output", type=options.FILE, default=Path("out"), show_default=True,
    help="Directory for the plot and the report; made if need be.",
)  # fmt: skip
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=2, show_default=True, help="Masks per rate."
)
def demo(output: Path, repeats: int) -> None:
    """Train a model, make values missing, compare what people do about them, and draw it.

    No download, about a minute. Writes demo.png, demo.html and demo.knothole.
    """
    import knothole

    begun = time.perf_counter()
    # The matrices are small: more threads of the linear algebra would only wait for each other.
    threadpool_limits(limits=1)
    output.mkdir(parents=True, exist_ok=True)
    plot, page, wrapped = (output / f"demo.{end}" for end in ("png", "html", "knothole"))
    for place in (plot, page, wrapped):
        check_output(place)
    train, test, y, y_test = diagnosis()
    model = classifier()
    name = type(model).__name__
    if not name.startswith("XGB"):
        say("no XGBoost here (pip install 'knothole[xgboost]'): scikit-learn's own will do.")
    say(f"{name} learns from {len(train)} tumours, every measurement known", "1 ")
    model.fit(train, y)
    say("knothole wraps it: learns how the 30 measurements depend on one another", "2 ")
    start = time.perf_counter()
    robust = knothole.wrap(model, train, y, random_state=SEED)
    learning = time.perf_counter() - start
    say(f"   {name_of(robust.density_)} was best on held-out rows ({learning:.0f} s)")
    case = Case.of(robust, train, test, y_test, y)
    say(f"{len(test)} other tumours lose 0 to 90 % of their measurements, at random", "3 ")
    comparison = Comparison(RATES, repeats, METHODS, SEED)
    with bar("comparing", evaluation_steps(case, comparison)) as advance:
        evaluation = evaluate(case, comparison, learning, advance)
    stdout.print()
    stdout.print(_table(evaluation))
    stdout.print(_conclusion(evaluation), highlight=False)
    _draw(evaluation, plot)
    with whole_file(page) as temporary:
        temporary.write_text(render(evaluation, TITLE, LEAD), encoding="utf-8")
    stdout.print()
    stdout.print(f"plot    {plot}", highlight=False, soft_wrap=True)
    stdout.print(f"report  {page}", highlight=False, soft_wrap=True)
    robust.save(wrapped)
    stdout.print(f"ask it  {command()} whatif {wrapped}", highlight=False, soft_wrap=True)
    stdout.print(f"time    {took(begun)}, without installing", highlight=False)


def command() -> str:
    """How a shell calls knothole here: by its name where that is found, else by its place."""
    beside = Path(sys.executable).with_name("knothole")
    return "knothole" if shutil.which("knothole") else os.path.relpath(beside)


def _table(evaluation: Evaluation) -> Table:
    robustness = evaluation.robustness
    table = Table(
        title="Wrong diagnoses in %, by share of measurements missing",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("missing", no_wrap=True)
    for rate in robustness.rates:
        table.add_column(f"{rate:.0%}", justify="right", no_wrap=True)
    table.add_column("1,000 rows", justify="right", no_wrap=True, style="dim")
    for method, errors in robustness.table(METRIC).iterrows():
        cells = [f"{100 * value:.1f}" for value in errors]
        look = "bold" if method == KNOTHOLE else None
        seconds = f"{robustness.seconds[str(method)]:.2f} s"
        table.add_row(robustness.labels[str(method)], *cells, seconds, style=look)
    return table


def _conclusion(evaluation: Evaluation) -> str:
    robustness = evaluation.robustness
    place = robustness.rates.index(0.5)
    errors = robustness.errors[METRIC]
    half = {method: number(error[place].mean(), METRIC) for method, error in errors.items()}
    return (
        f"With half of the measurements gone, [red]{robustness.labels[NATIVE]} gets {half[NATIVE]} "
        f"wrong[/], [bold blue]knothole {half[KNOTHOLE]}[/] with the same model; with everything "
        f"known it is {number(errors[KNOTHOLE][0].mean(), METRIC)}, and always answering the "
        f"more frequent class {number(robustness.constant[METRIC], METRIC)}."
    )


def _draw(evaluation: Evaluation, path: Path) -> None:
    display = RobustnessDisplay(evaluation.robustness, METRIC)
    figure = display.drawn(8.8, 4.4)
    display.ax_.set_xlabel("measurements missing, %")
    display.ax_.set_ylabel("wrong diagnoses")
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=160)


def diagnosis() -> list[Any]:
    """The table of scikit-learn: three fifths to learn from, the rows held out, targets of both."""
    table, target = load_breast_cancer(return_X_y=True, as_frame=True)
    *rows, y, y_test = train_test_split(
        table, target.to_numpy(), test_size=0.4, random_state=SEED, stratify=target
    )
    return [*(part.reset_index(drop=True) for part in rows), y, y_test]


def classifier() -> Any:
    """An XGBoost model with ordinary settings; scikit-learn's own where it is not installed."""
    try:
        from xgboost import XGBClassifier
    except ImportError:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(max_iter=100, max_depth=3, random_state=SEED)
    return XGBClassifier(
        n_estimators=100, max_depth=3, learning_rate=0.1, n_jobs=1, random_state=SEED
    )
