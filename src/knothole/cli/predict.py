"""``knothole predict``: expected predictions for a table of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from numpy.typing import NDArray

from knothole.cli.answering import Answering, answering_options
from knothole.errors import InvalidInput
from knothole.out_of_core.files import CHUNK

if TYPE_CHECKING:
    import pandas as pd

    from knothole.robust import Robust


@click.command(
    epilog="""
\b
Examples:
  knothole predict model.knothole today.csv -o predictions.csv
  knothole predict model.knothole today.parquet -o predictions.parquet --std --keep id
  knothole predict model.knothole today.csv --interval 0.9 > intervals.csv
  knothole predict model.knothole today.csv --absent missing --handle-unknown missing
  zcat today.jsonl.gz | knothole predict model.knothole - > predictions.jsonl
  knothole predict model.knothole today.parquet -o out.parquet --scheduler tcp://10.0.0.1:8786

DATA is CSV, JSON lines (.jsonl; a key that a line lacks is missing there) or Parquet, or - for CSV
or JSON lines from standard input. It is read, answered and written in chunks, so it may be larger
than memory. The output has a row for each row of DATA, in the same order.
"""
)
@answering_options(CHUNK)
@click.option(
    "--interval",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="LEVEL",
    help="Add the ends of an interval that holds the true value with this confidence level; MODEL "
    "must have been conformalized (wrap --conformalize).",
)
@click.option(
    "--set",
    "classes",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="LEVEL",
    help="Add for every class whether it is in a set that holds the true one with this confidence "
    "level; likewise.",
)
@click.option("--std", is_flag=True, help="Add the spread that the missing values cause.")
@click.option("--proba", is_flag=True, help="Add the probability of every class.")
@click.option(
    "--quantile",
    "quantiles",
    type=click.FloatRange(0, 1),
    multiple=True,
    help="Add a quantile of the prediction over what the missing values could be; may be repeated. "
    "It is about the missing values alone: for the true value see --interval.",
)
def predict(
    asked: Answering,
    interval: float | None,
    classes: float | None,
    std: bool,
    proba: bool,
    quantiles: tuple[float, ...],
) -> None:
    """Expected predictions of MODEL (from knothole wrap) for the rows of DATA."""
    robust = asked.opened()
    _check_asked(robust, proba, quantiles)
    _check_conformal(robust, interval, classes)

    import pandas as pd

    from knothole.trees.classes import class_lists, label, of_label

    reading = asked.reading

    def ask(model: Robust, table: pd.DataFrame, lost: pd.DataFrame | None) -> list[pd.DataFrame]:
        rows, index, ensemble = model.encode(table, lost, **reading), table.index, model.ensemble_
        out = []
        if proba:
            answer = model.predict_proba(rows, return_std=std)
            parts = answer if std else (answer,)
            shares, *spreads = (each if isinstance(each, list) else [each] for each in parts)
            answers = [label(ensemble, shares), *(of_label(shares, each) for each in spreads)]
            for names, each in zip(class_lists(ensemble), shares, strict=True):
                out.append(pd.DataFrame(each, index, [f"probability_{name}" for name in names]))
        else:
            answer = model.predict(rows, return_std=std)
            answers = list(answer) if std else [answer]
        if quantiles:
            names = [f"quantile_{q:g}" for q in quantiles]
            out.append(pd.DataFrame(model.predict(rows, quantiles=quantiles), index, names))
        if interval is not None:
            out.append(pd.DataFrame(model.predict_interval(rows, interval), index, ["low", "high"]))
        if classes is not None:
            names = [f"set_{name}" for name in class_lists(ensemble)[0]]
            out.append(pd.DataFrame(model.predict_set(rows, classes), index, names))
        first = zip(("prediction", "std"), answers, strict=False)
        return [*(_named(each, name, index) for name, each in first), *out]

    asked.answer(robust, ("predicting", "predictions"), ask)


def _check_conformal(robust: Robust, interval: float | None, classes: float | None) -> None:
    from knothole.trees.classes import is_classifier

    classifier = is_classifier(robust.ensemble_)
    if interval is not None and classifier:
        raise InvalidInput("--interval: the model is a classifier; use --set instead.")
    if classes is not None and not classifier:
        raise InvalidInput("--set: the model is a regressor; use --interval instead.")
    if robust.conformal_ is None and (interval is not None or classes is not None):
        raise InvalidInput(
            f"--{'interval' if classes is None else 'set'}: the model has not been conformalized; "
            f"wrap or refit it with --conformalize FILE, rows with the target that it was not "
            f"trained on."
        )


def _check_asked(robust: Robust, proba: bool, quantiles: tuple[float, ...]) -> None:
    from knothole.trees.classes import is_classifier

    classifier = is_classifier(robust.ensemble_)
    if proba and not classifier:
        raise InvalidInput("--proba: the model is a regressor; leave it out.")
    if quantiles and (classifier or robust.ensemble_.n_responses > 1):
        raise InvalidInput("--quantile: for regressors with one target; use --std instead.")


def _named(values: NDArray[Any], name: str, index: pd.Index[Any]) -> pd.DataFrame:
    """One column of the name, or several that are numbered."""
    import pandas as pd

    if values.ndim == 1:
        return pd.DataFrame({name: values}, index)
    return pd.DataFrame(values, index).add_prefix(f"{name}_")
