"""A table, a model and its wrapped file, for all tests of the command line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xgboost
from tests.cli.running import FEATURES, call, skip_without_levels

import knothole as kh


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    """Columns with a space in a name, a category spelled like a missing value, and an id."""
    rng = np.random.default_rng(0)
    n = 300
    common = rng.normal(size=n)
    frame = pd.DataFrame(
        {
            "id": [f"{number:04d}" for number in range(n)],
            "mean size": common + 0.3 * rng.normal(size=n),
            "weight": 2 * common + 0.4 * rng.normal(size=n),
            "age": rng.integers(1, 30, n),
            "city": pd.Categorical(rng.choice(["Graz", "Linz", "None"], n)),
        }
    )
    frame["price"] = 3 * common + 0.1 * frame["age"] + (frame["city"] == "None")
    return frame


@pytest.fixture(scope="session")
def incomplete(table) -> pd.DataFrame:
    incomplete = kh.missingness.mcar(table[FEATURES][200:], 0.3, 1)
    return incomplete.assign(id=table["id"], price=table["price"])


@pytest.fixture(scope="session")
def folder(table, incomplete, tmp_path_factory) -> Path:
    """Training table and rows with missing values, as CSV and Parquet, and an XGBoost model."""
    skip_without_levels()
    place = tmp_path_factory.mktemp("cli")
    table[:200].to_csv(place / "train.csv", index=False)
    incomplete.to_csv(place / "incomplete.csv", index=False)
    incomplete.to_parquet(place / "incomplete.parquet")
    model = xgboost.XGBRegressor(n_estimators=5, max_depth=3, enable_categorical=True, n_jobs=1)
    model.fit(table[FEATURES][:200], table["price"][:200]).save_model(place / "model.json")
    return place


@pytest.fixture(scope="session")
def wrapped(folder) -> Path:
    place = folder / "wrapped.knothole"
    arguments = ["wrap", folder / "model.json", folder / "train.csv", "-o", place]
    assert call(*arguments, "--density", "mixture") == 0
    return place
