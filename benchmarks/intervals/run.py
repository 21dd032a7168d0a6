"""One run: a table, a kind of missing values and a seed; all methods on the same rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
import pandas as pd
import xgboost as xgb

import knothole as kh
from benchmarks.intervals import peers, tables
from knothole.arrays import Floats
from knothole.errors import FewCalibrationRows
from knothole.missingness import apply_mask

LEVEL = 0.9
OWN = "knothole"


def model_of(kind: str, X: pd.DataFrame, y: Floats) -> xgb.XGBRegressor:
    """XGBoost for the mean, or for the 5, 50 and 95 % quantiles."""
    quantiles = {"objective": "reg:quantileerror", "quantile_alpha": [0.05, 0.5, 0.95]}
    return xgb.XGBRegressor(
        n_estimators=150, max_depth=5, learning_rate=0.1, n_jobs=1, random_state=0,
        enable_categorical=True, **(quantiles if kind == "quantiles" else {}),
    ).fit(X, y)  # fmt: skip


def run(
    name: str, missing: str, seed: int, kind: str = "mean", rivals: bool = True
) -> pd.DataFrame:
    """Coverage and width of every method, by pattern."""
    parts = tables.split(name, seed)
    train, calibration, test = (codes(X) for X in parts.parts)
    y_train, y, y_test = parts.targets
    mask, mask_test = tables.masks(name, missing, parts, seed)
    model = model_of(kind, train, y_train)
    robust = kh.wrap(model, train, density=kh.GaussianMixture(8, random_state=0))
    hidden, asked = apply_mask(calibration, mask), apply_mask(test, mask_test)
    methods: dict[str, Callable[[], Floats]] = {OWN: lambda: _own(robust, hidden, y, asked)}
    if rivals:
        rows = peers.Rows(calibration.to_numpy(float), mask, y, test.to_numpy(float), mask_test)
        predictors = {
            "expected": peers.expecting(robust),
            "imputed": peers.imputing(train.to_numpy(float), model),
        }
        methods |= {
            f"{label}, {predictor}": partial(way, ends, rows, LEVEL)
            for predictor, ends in predictors.items()
            for label, way in peers.CALIBRATIONS.items()
        }
    most = float(np.ptp(y))  # an interval without end is as good as all of y
    patterns = np.array(["".join("?" if missing else "." for missing in row) for row in mask_test])
    found = [_answered(label, method, y_test, most) for label, method in methods.items()]
    own = found[0]["width"]
    table = pd.concat([_by_pattern(rows, own, patterns) for rows in found], ignore_index=True)
    return table.assign(table=name, missing=missing, model=kind, seed=seed)


def _own(robust: kh.Robust, X: pd.DataFrame, y: Floats, asked: pd.DataFrame) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewCalibrationRows)
        ends = robust.conformalize(X, y).predict_interval(asked, LEVEL)
    return np.asarray(ends, dtype=np.float64)


def _answered(label: str, method: Callable[[], Floats], y: Floats, most: float) -> pd.DataFrame:
    """Whether each row is covered, and how wide its interval is."""
    start = perf_counter()
    low, high = method().T
    seconds = perf_counter() - start
    covered = (low <= y) & (y <= high)
    width = np.minimum(high - low, most)
    return pd.DataFrame({"method": label, "covered": covered, "width": width, "seconds": seconds})


def _by_pattern(rows: pd.DataFrame, own: pd.Series[float], patterns: Floats) -> pd.DataFrame:
    """Rows, rows covered and sums of widths by pattern: the method's, and ours on its rows."""
    answered = rows.assign(pattern=patterns, own=own)[rows["width"].notna()]
    by = answered.groupby(["method", "pattern", "seconds"], as_index=False)
    return by.agg(
        rows=("covered", "size"),
        covered=("covered", "sum"),
        width=("width", "sum"),
        own=("own", "sum"),
    )


def codes(X: pd.DataFrame) -> pd.DataFrame:
    """Categories as numbers: imputation and trees take them alike."""
    coded = {
        name: column.cat.codes if column.dtype == "category" else column
        for name, column in X.items()
    }
    return pd.DataFrame(coded).astype(float)
