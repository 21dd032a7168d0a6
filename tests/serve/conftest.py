"""A served model: numbers, levels with markup, a one-hot group, NaN that is a value."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from starlette.testclient import TestClient

import knothole as kh
from knothole.serve.app import application
from knothole.serve.questions import Questions

MARKUP = "<b>Linz</b> & 'co'"


def made_table(rows=240):
    rng = np.random.default_rng(0)
    city = rng.choice(["Graz", MARKUP], rows)
    hue = rng.integers(3, size=rows)
    table = pd.DataFrame(
        {
            "size <m2>": rng.normal(60, 20, rows),
            "rooms": rng.integers(1, 6, rows).astype(float),
            "city": pd.Categorical(city),
            "hue_red": (hue == 0).astype(float),
            "hue_blue": (hue == 1).astype(float),
            "hue_grey": (hue == 2).astype(float),
            "income": rng.normal(size=rows),
        }
    )
    y = table["size <m2>"] / 10 + table["rooms"] + 2 * table["hue_red"] + (city == "Graz")
    table.loc[rng.random(rows) < 0.3, "income"] = np.nan
    return table, y.to_numpy() + 3 * table["income"].isna().to_numpy()


@pytest.fixture(scope="session")
def robust():
    table, y = made_table()
    model = HistGradientBoostingRegressor(max_iter=20, categorical_features=[2], random_state=0)
    model.fit(table, y)
    density = kh.Mixture(4, random_state=0)
    wrapped = kh.wrap(model, table, density=density, one_hot={"hue": [3, 4, 5]})
    return wrapped.conformalize(*made_table(300))


@pytest.fixture(scope="session")
def classifier():
    table, y = made_table()
    model = HistGradientBoostingClassifier(max_iter=10, categorical_features=[2], random_state=0)
    model.fit(table, np.where(y > np.median(y), "dear", "cheap"))
    return kh.wrap(model, table, density=kh.Mixture(4, random_state=0))


@pytest.fixture(scope="session")
def client(robust):
    app = application(Questions(robust, {"rooms": 2.0}))
    return TestClient(app, base_url="http://127.0.0.1")
