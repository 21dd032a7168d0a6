"""Insurance in the authors' encoding: holes in training and test, one tree, leaves tuned.

``python -m tests.learning.insurance [trials]`` prints both tables of mean test RMSE. Data is found
through the environment variable ``KNOTHOLE_DATA``.
"""

import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xgboost
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from knothole.densities.mixture import Mixture
from knothole.learning.tune import tune
from knothole.reach.expectation import compile
from knothole.trees.reading import read

RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
# One tree at rate 1, and the paper's settings, which leave a single tree far too small.
FAIR = {"learning_rate": 1.0}
PAPER = {"learning_rate": 0.3, "base_score": 0.5, "reg_lambda": 1.0}


@dataclass(frozen=True)
class Insurance:
    """The authors' training rows, and their validation and test rows as one test set."""

    train: pd.DataFrame
    test: pd.DataFrame
    blocks: dict[str, list[int]]

    @classmethod
    def load(cls):
        folder = Path(os.environ["KNOTHOLE_DATA"]) / "mc2" / "insurance"
        parts = {
            name: pd.read_csv(folder / f"{name}.csv").drop(columns="row_index")
            for name in ("train", "valid", "test")
        }
        about = json.loads((folder / "meta.json").read_text())
        group = np.array(about["feature_groups"])
        blocks = {
            name: np.flatnonzero(group == i).tolist() for i, name in enumerate(about["group_names"])
        }
        return cls(parts["train"], pd.concat([parts["valid"], parts["test"]]), blocks)


def with_holes(table, rate, rng):
    """Dummies and target of a table; every dummy is missing with the same probability."""
    X = table.drop(columns="target").to_numpy(dtype=float)
    X[rng.random(X.shape) < rate] = np.nan
    return X, table["target"].to_numpy()


def trial(data, rate, seed, settings, density=None):
    """Test RMSE of XGBoost itself, and of expected predictions with old and new leaves."""
    rng = np.random.default_rng(seed)
    X, y = with_holes(data.train, rate, rng)
    X_test, y_test = with_holes(data.test, rate, rng)
    model = xgboost.XGBRegressor(n_estimators=1, max_depth=5, n_jobs=1, **settings).fit(X, y)
    ensemble = read(model)
    columns = ensemble.columns.describe(X, blocks=data.blocks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learned = Mixture(random_state=seed) if density is None else clone(density)
        learned.fit(X, columns=columns)
        given_y = tune(ensemble, learned, X, y, ridge=1.0)
    paper = tune(ensemble, learned, X, y, ridge=1.0, condition_on_target=False)
    answers = {
        "XGBoost": model.predict(X_test),
        "expected prediction": expected(ensemble, learned, X_test),
        "expected loss": expected(paper.ensemble, learned, X_test),
        "given y": expected(given_y.ensemble, learned, X_test),
        "given y, one density": expected(given_y.ensemble, given_y.density, X_test),
    }
    return {name: float(np.sqrt(np.mean((a - y_test) ** 2))) for name, a in answers.items()}


def expected(ensemble, density, X):
    return compile(ensemble, density).margin(X, "all")[0][:, 0]


def table(data, settings, trials, density=None, rates=RATES):
    """Mean RMSE by rate of holes."""
    rows = {}
    for rate in rates:
        found = pd.DataFrame([trial(data, rate, s, settings, density) for s in range(trials)])
        rows[rate] = found.mean()
    return pd.DataFrame(rows).T


if __name__ == "__main__":
    n_trials = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    insurance = Insurance.load()
    for name, options in (("learning rate 1", FAIR), ("the paper's settings", PAPER)):
        print(f"{name}, {n_trials} trials\n{table(insurance, options, n_trials).round(0)}\n")
