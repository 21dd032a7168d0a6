"""``wrap(model, X, y)`` against training the model that it wraps."""

import resource
from functools import partial

import numpy as np
import pandas as pd
import xgboost

from benchmarks.speed.densities import one_thread
from benchmarks.speed.setting import SEED, Ratio, cpu, process, wall, with_holes
from knothole.wrapping import wrap

TREES, DEPTH = 150, 5
AGAINST = f"XGBoost training {TREES} trees of depth {DEPTH}"


def run():
    with one_thread():
        wrap(*fitted(with_nan(600, 12)))  # compiled
        wrap(*fitted(mixed(600, 12)))
        for what, made, target in (
            ("3,500 x 18 continuous", continuous(3500, 18), 20),
            ("3,500 x 30 with NaN that mean something", with_nan(3500, 30), 25),
            ("2,000 x 80 mixed", mixed(2000, 80), 40),
            ("50,000 x 9 continuous", continuous(50_000, 9), 8),
        ):
            training = process(lambda made=made: fitted(made), 3)
            wrapping = process(partial(wrap, *fitted(made)))
            yield Ratio(
                "wrap", f"wrap(model, X, y), {what}, one thread", wrapping, training, AGAINST,
                target,
            )  # fmt: skip
        yield from _corrected(*fitted(with_nan(2000, 12)))
    model, X, y = fitted(continuous(2000, 500))
    yield Ratio(
        "wrap", "wrap(model, X, y), 2,000 x 500 continuous, two threads",
        wall(lambda: wrap(model, X, y), 1, warm=False), 60.0, "a minute", 1.0,
    )  # fmt: skip
    model, X, y = fitted(continuous(1_000_000, 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = wall(lambda: wrap(model, X, y), 1, warm=False)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield Ratio("wrap", "wrap(model, X, y), 1,000,000 x 20", seconds, 120.0, "two minutes", 1.0)
    yield Ratio(
        "wrap", "wrap(model, X, y), 1,000,000 x 20: memory beside the input",
        1024 * (after - before), X.nbytes, "bytes of the input", 2.0,
    )  # fmt: skip


def _corrected(model, X, y):
    """What a correction takes, when it is learned and when rows are predicted."""
    with_it, without = (partial(wrap, model, X, y, correct=correct) for correct in ("auto", False))
    yield Ratio(
        "wrap", "wrap(model, X, y), 2,000 x 12 with NaN, and its correction, one thread",
        process(with_it, 3), process(without, 3), "the same with correct=False", 1.5,
    )  # fmt: skip
    holes, kept, plain = with_holes(X, 0.3), wrap(model, X, y, correct=True), without()
    yield Ratio(
        "wrap", "predict, 2,000 x 12, 30 % more holes, with a correction, one thread",
        cpu(lambda: kept.predict(holes)),
        cpu(lambda: plain.predict(holes)),
        "the same with correct=False", 1.5,
    )  # fmt: skip


def fitted(made):
    """The model of a table, and the table."""
    X, y = made
    model = xgboost.XGBRegressor(
        n_estimators=TREES, max_depth=DEPTH, n_jobs=1, enable_categorical=True
    )
    return model.fit(X, y), X, y


def factors(rows, columns, rng):
    """Columns that five factors drive, some of them bent, and a target of the factors."""
    factor = rng.normal(size=(rows, 5))
    X = factor @ np.random.default_rng(99).normal(size=(5, columns))
    X += 0.5 * rng.normal(size=X.shape)
    X[:, ::3] = np.exp(0.5 * X[:, ::3])
    X[:, 1::3] += 0.3 * X[:, 1::3] ** 2
    y = factor @ [3.0, 2.0, 1.5, 1.0, 0.5] + factor[:, 0] * factor[:, 1]
    return X, y + 0.3 * rng.normal(size=rows)


def continuous(rows, columns):
    """Skewed and bent numbers."""
    return factors(rows, columns, np.random.default_rng(SEED))


def with_nan(rows, columns):
    """The same, rounded; NaN in every other column, the more likely the larger the target."""
    rng = np.random.default_rng(SEED)
    X, y = factors(rows, columns, rng)
    X = np.round(X, 1)
    for j in range(0, columns, 2):
        rate = rng.uniform(0.02, 0.3)
        X[rng.random(rows) < rate * 2 / (1 + np.exp(-y / y.std())), j] = np.nan
    return X, y


def mixed(rows, columns):
    """Half of the columns are categories, 2 to 20 levels each; the others whole or with zeros."""
    rng = np.random.default_rng(SEED)
    X, y = factors(rows, columns, rng)
    frame = {}
    for j in range(columns):
        name, x = f"x{j}", X[:, j]
        if j % 2 == 0:
            levels = int(rng.integers(2, 21))
            cuts = np.quantile(x, np.sort(rng.random(levels - 1)))
            code = np.where(rng.random(rows) < 0.1, 0, np.searchsorted(cuts, x))
            frame[name] = pd.Categorical.from_codes(code, [f"level {i}" for i in range(levels)])
        elif j % 4 == 1:
            frame[name] = np.round(20 * x)
        else:
            frame[name] = np.where(rng.random(rows) < 0.3, 0.0, x)
    return pd.DataFrame(frame), y
