"""One run: a table, a kind of holes and a seed; all methods on the same rows."""

from __future__ import annotations

import warnings
from time import perf_counter

import numpy as np
import pandas as pd
import xgboost as xgb

import knothole as kh
from benchmarks.intervals import peers, tables
from knothole.errors import FewCalibrationRows
from knothole.missingness import apply_mask

COVERAGE = 0.9
PEERS = {"CP-MDA-Exact": peers.exact, "CP-MDA-Nested": peers.nested, "once": peers.once}


def model_of(kind: str, X: pd.DataFrame, y: np.ndarray) -> xgb.XGBRegressor:
    """XGBoost for the mean, or for the 5, 50 and 95 % quantiles."""
    quantiles = {"objective": "reg:quantileerror", "quantile_alpha": [0.05, 0.5, 0.95]}
    return xgb.XGBRegressor(
        n_estimators=150, max_depth=5, learning_rate=0.1, n_jobs=1, random_state=0,
        enable_categorical=True, **(quantiles if kind == "quantiles" else {}),
    ).fit(X, y)  # fmt: skip


def run(name: str, holes: str, seed: int, kind: str = "mean") -> pd.DataFrame:
    """Coverage and width of every method, by pattern."""
    parts = tables.split(name, seed)
    train, calibration, test = (codes(X) for X in parts.parts)
    y_train, y, y_test = parts.targets
    mask, mask_test = tables.masks(holes, parts, seed)
    model = model_of(kind, train, y_train)
    robust = kh.wrap(model, train, density=kh.GaussianMixture(8, random_state=0))
    found: dict[str, tuple[np.ndarray, float]] = {}
    start = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewCalibrationRows)
        calibrated = robust.calibrate(apply_mask(calibration, mask), y)
        ends = calibrated.predict_interval(apply_mask(test, mask_test), COVERAGE).to_numpy()
    found["knothole"] = ends, perf_counter() - start
    rows = peers.Rows(calibration.to_numpy(float), mask, y, test.to_numpy(float), mask_test)
    imputed = peers.imputing(train.to_numpy(float), lambda X: model.predict(X))
    for label, method in PEERS.items():
        start = perf_counter()
        found[label] = method(imputed, rows, COVERAGE), perf_counter() - start
    start = perf_counter()

    def expected(X: np.ndarray) -> np.ndarray:
        answer = np.asarray(robust.predict(X)).reshape(len(X), -1)
        return np.stack([answer.min(axis=1), answer.max(axis=1)], axis=1)

    found["once, knothole's predictions"] = (
        peers.once(expected, rows, COVERAGE), perf_counter() - start
    )  # fmt: skip
    most = float(np.ptp(y))  # an interval without end is as good as all of y
    patterns = ["".join("?" if hole else "." for hole in row) for row in mask_test]
    results = []
    for label, (ends, seconds) in found.items():
        width = np.minimum(ends[:, 1] - ends[:, 0], most)
        covered = (ends[:, 0] <= y_test) & (y_test <= ends[:, 1])
        results.append(
            pd.DataFrame({"method": label, "pattern": patterns, "covered": covered, "width": width})
            .groupby(["method", "pattern"])
            .agg(rows=("covered", "size"), covered=("covered", "sum"), width=("width", "sum"))
            .reset_index()
            .assign(seconds=seconds)
        )
    table = pd.concat(results, ignore_index=True)
    table.insert(0, "table", name)
    table.insert(1, "holes", holes)
    table.insert(2, "model", kind)
    table.insert(3, "seed", seed)
    return table


def codes(X: pd.DataFrame) -> pd.DataFrame:
    """Categories as numbers: imputation and trees take them alike."""
    return X.apply(lambda c: c.cat.codes.astype(float) if c.dtype == "category" else c.astype(float))
