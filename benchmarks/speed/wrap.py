"""``wrap(model, X, y)`` against training the model that it wraps, on the suite's real tables."""

import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

from benchmarks.speed.densities import one_thread
from benchmarks.speed.setting import SEED, Ratio, cpu, process, wall, with_missing
from benchmarks.suite import datasets, models
from knothole.errors import InvalidInput
from knothole.missingness import mcar
from knothole.report.methods import Task
from knothole.wrapping import wrap

TREES, DEPTH = models.HYPERPARAMETERS["n_estimators"], models.HYPERPARAMETERS["max_depth"]
AGAINST = f"XGBoost training {TREES} trees of depth {DEPTH}"
ROWS = 10_000
# Times of training that wrap may take; tables below 1,000 rows have seconds instead.
MOST_TIMES, MOST_SECONDS, MANY = 25.0, 3.0, 1000
TABLES = (
    "abalone", "california_housing", "bike_sharing_hour", "wine_quality",
    "adult", "hypothyroid", "natural/sick", "anchors/spam",
    "credit_approval", "titanic", "heart_hungarian",
)  # fmt: skip
TARGETS = {"anchors/spam": "Outcome"}
COPIES = 8


def run():
    with one_thread():
        for name in ("heart_hungarian", "concrete"):  # compiled
            wrap(*fitted(*load(name)))
        for name in TABLES:
            yield from _on(name, *load(name))
        yield from _corrected(*fitted(*load("pima_diabetes")))
    model, X, y = fitted(*factors(2000, 500), Task.REGRESSION)
    yield Ratio(
        "wrap", "wrap(model, X, y), 2,000 x 500 continuous, two threads",
        wall(lambda: wrap(model, X, y), 1, warm=False), 30.0, "half a minute", 1.0,
    )  # fmt: skip
    model, X, y = fitted(*factors(1_000_000, 20), Task.REGRESSION)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = wall(lambda: wrap(model, X, y), 1, warm=False)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield Ratio("wrap", "wrap(model, X, y), 1,000,000 x 20", seconds, 12.0, "12 seconds", 1.0)
    yield Ratio(
        "wrap", "wrap(model, X, y), 1,000,000 x 20: memory beside the input",
        1024 * (after - before), X.nbytes, "bytes of the input", 2.0,
    )  # fmt: skip


def _on(name, X, y, task):
    """Wrapping a table, and what users would do instead."""
    size = f"{name.split('/')[-1]}, {len(X):,} x {X.shape[1]}, one thread"
    training = process(lambda: fitted(X, y, task), 3)
    model, *table = fitted(X, y, task)
    wrapping = process(partial(wrap, model, *table), 2)
    if len(X) >= MANY:
        yield Ratio("wrap", f"wrap(model, X, y), {size}", wrapping, training, AGAINST, MOST_TIMES)
    else:
        yield Ratio("wrap", f"wrap(model, X, y), {size}", wrapping, MOST_SECONDS, "3 seconds", 1.0)
    numbers = X.apply(lambda x: x.cat.codes if x.dtype == "category" else x).to_numpy(float)
    masked = with_missing(numbers, 0.3)
    yield Ratio(
        "wrap", f"IterativeImputer fitted to rows with 30 % missing values, {size}",
        process(lambda: IterativeImputer(random_state=SEED).fit(masked)), training, AGAINST,
    )  # fmt: skip
    yield Ratio(
        "wrap", f"the model trained on {COPIES} masked copies, {size}",
        process(lambda: _on_copies(X, y, task)), training, AGAINST,
    )  # fmt: skip


def _on_copies(X, y, task):
    copies = pd.concat([mcar(X, 0.3, seed) for seed in range(COPIES)], ignore_index=True)
    return fitted(copies, np.tile(y, COPIES), task)


def _corrected(model, X, y):
    """What a correction takes, when it is learned and when rows are predicted."""
    with_it, without = (
        partial(wrap, model, X, y, correction=correction) for correction in ("auto", False)
    )
    yield Ratio(
        "wrap", "wrap(model, X, y), pima_diabetes, and its correction, one thread",
        process(with_it, 3), process(without, 3), "the same with correction=False", 1.5,
    )  # fmt: skip
    incomplete, kept, plain = mcar(X, 0.3, SEED), wrap(model, X, y, correction=True), without()
    yield Ratio(
        "wrap", "predict, pima_diabetes, 30 % more missing, with a correction, one thread",
        cpu(lambda: kept.predict_proba(incomplete)),
        cpu(lambda: plain.predict_proba(incomplete)),
        "the same with correction=False", 1.5,
    )  # fmt: skip


def fitted(X, y, task):
    """The model of a table, and the table."""
    return models.xgboost_factory(task, SEED)().fit(X, y), X, y


def load(name):
    """Three quarters of a table's rows, at most 10,000 of them: X, y and the task."""
    if "/" not in name:
        train = datasets.split(datasets.load(name), SEED, max_rows=ROWS).train
        return train.table, train.target, train.task
    folder = os.environ.get(datasets.FOLDER)
    if folder is None:
        raise InvalidInput(f"{name} is looked for in the folder that {datasets.FOLDER} names.")
    table = pd.read_csv(Path(folder, f"{name}.csv"))
    y = pd.factorize(table.pop(TARGETS.get(name, "target")))[0]
    words = [c for c in table if not pd.api.types.is_numeric_dtype(table[c])]
    table[words] = table[words].astype("category")
    kept = np.random.default_rng(SEED).permutation(len(table))[: 3 * len(table) // 4]
    task = Task.BINARY if y.max() == 1 else Task.MULTICLASS
    return table.iloc[kept].reset_index(drop=True), y[kept], task


def factors(rows, columns):
    """Skewed and bent columns that five factors drive, and a target of the factors.

    For tables of a size that no table of the suite has.
    """
    rng = np.random.default_rng(SEED)
    factor = rng.normal(size=(rows, 5))
    X = factor @ np.random.default_rng(99).normal(size=(5, columns))
    X += 0.5 * rng.normal(size=X.shape)
    X[:, ::3] = np.exp(0.5 * X[:, ::3])
    X[:, 1::3] += 0.3 * X[:, 1::3] ** 2
    y = factor @ [3.0, 2.0, 1.5, 1.0, 0.5] + factor[:, 0] * factor[:, 1]
    return X, y + 0.3 * rng.normal(size=rows)
