"""Tables and missing values that intervals are tried on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from knothole.arrays import Floats, Mask
from knothole.missingness import mar_mask, mcar_mask

SUITE = {
    "concrete": "concrete.csv",
    "bike": "bike_sharing_hour.csv",
    "California": "california_housing.csv",
}
TABLES = ("linear", "curved", *SUITE)
MISSING = ("MCAR", "MAR", "outage")
# Most rows for training, calibration and test; smaller tables are halved, and halved again.
SIZES = (3000, 1000, 4000)


@dataclass(frozen=True)
class Split:
    """Rows for training, calibration and test, complete; targets with them."""

    parts: tuple[pd.DataFrame, ...]
    targets: tuple[Floats, ...]


def split(name: str, seed: int) -> Split:
    """A table's rows, shuffled by the seed."""
    X, y = made(name, seed) if name not in SUITE else read(name)
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    sizes = SIZES
    if len(y) < sum(SIZES):
        sizes = (len(y) // 2, len(y) // 4, len(y) // 4)
    places = np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])
    return Split(
        tuple(X.iloc[rows].reset_index(drop=True) for rows in places),
        tuple(y[rows] for rows in places),
    )


def read(name: str) -> tuple[pd.DataFrame, Floats]:
    """A table of the suite, complete rows only."""
    table = pd.read_csv(Path(os.environ["KNOTHOLE_DATA"]) / "suite" / SUITE[name]).dropna()
    for column in table.select_dtypes("object"):
        table[column] = table[column].astype("category")
    return table.drop(columns="target"), table["target"].to_numpy(dtype=np.float64)


def made(name: str, seed: int) -> tuple[pd.DataFrame, Floats]:
    """Made tables. "linear" is the setting of Zaffran et al. (2023): ten normal columns.

    "curved" has six columns of two factors, interactions, and noise that depends on a column.
    """
    rng = np.random.default_rng([seed, 0])
    n = sum(SIZES)
    if name == "linear":
        X = 1 + np.sqrt(0.8) * rng.normal(size=(n, 1)) + np.sqrt(0.2) * rng.normal(size=(n, 10))
        beta = np.array([1, 2, -1, 3, -0.5, -1, 0.3, 1.7, 0.4, -0.3])
        y = X @ beta + rng.normal(size=n)
    else:
        loadings = np.random.default_rng(0).normal(size=(2, 6))
        X = rng.normal(size=(n, 2)) @ loadings + 0.7 * rng.normal(size=(n, 6))
        y = 2 * X[:, 0] + 2 * np.sin(2 * X[:, 1]) + 0.7 * X[:, 2] * X[:, 3]
        y += (0.5 + 0.5 * np.abs(X[:, 4])) * rng.normal(size=n)
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]), y


def masks(name: str, missing: str, parts: Split, seed: int) -> tuple[Mask, Mask]:
    """Missing values of the calibration and of the test rows.

    "MCAR": in half of the columns, so that there are patterns with many rows; of "linear", as in
    that paper, in all. "outage": none in calibration; every test row lacks one column, any of them.
    """
    train, calibration, test = parts.parts
    if missing == "MCAR":
        columns = np.ones(test.shape[1], dtype=bool)
        if name != "linear":
            columns = np.random.default_rng(0).permutation(test.shape[1]) < test.shape[1] / 2
        return (
            mcar_mask(calibration, 0.2, 2 * seed) & columns,
            mcar_mask(test, 0.2, 2 * seed + 1) & columns,
        )
    if missing == "MAR":
        how = {"mechanism": 0, "reference": train, "observed": 0.5}
        return (
            mar_mask(calibration, 0.3, 2 * seed, **how),
            mar_mask(test, 0.3, 2 * seed + 1, **how),
        )
    gone = np.random.default_rng([seed, 2]).integers(test.shape[1], size=len(test))
    return np.zeros(calibration.shape, dtype=bool), np.eye(test.shape[1], dtype=bool)[gone]
