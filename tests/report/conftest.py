"""A small evaluation, made by hand: displays and pages need no model to be drawn."""

import numpy as np
import pandas as pd
import pytest

import knothole as kh
from knothole.report import Case, Evaluation
from knothole.report.evaluation import Asked, Coverage, Fit, Marginal, Outage, Pair, Robustness


@pytest.fixture(scope="session")
def evaluation() -> Evaluation:
    from sklearn.tree import DecisionTreeRegressor

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = DecisionTreeRegressor(max_depth=2, random_state=0).fit(X, X[:, 0])
    robust = kh.wrap(model, X, density=kh.Factorized())
    rates = (0.0, 0.3, 0.5, 0.9)
    base = np.array([1.0, 1.2, 1.5, 2.0])[:, None] + 0.05 * rng.random((4, 3))
    labels = {"knothole": "knothole", "native": "scikit-learn alone"}
    return Evaluation(
        case=Case.of(robust, X, X, X[:, 0]),
        robustness=Robustness(
            rates,
            {"RMSE": {"knothole": base, "native": base**2, "other": base + 0.2}},
            constant={"RMSE": 1.8},
            rows=60,
            seconds={"knothole": 0.1, "native": 0.0001},
            learning={"knothole": 2.0},
            labels=labels,
        ),
        outage=Outage(
            "RMSE",
            ("<b>pressure</b>", "temperature"),
            {"native": np.array([3.0, 2.0]), "knothole": np.array([1.3, 1.2])},
            complete=1.0,
            labels=labels,
        ),
        coverage=Coverage((0.5, 0.9), {0.1: np.array([0.52, 0.88]), 0.5: np.array([0.4, 0.8])}),
        asked=Asked(
            32,
            0.3,
            adds=pd.Series({"<b>pressure</b>": 0.5, "temperature": 0.25}),
            gains=pd.Series({"<b>pressure</b>": 0.125, "temperature": np.nan}),
        ),
        fit=Fit(
            marginals=(
                Marginal(
                    "pressure",
                    np.linspace(0, 1, 4),
                    (),
                    np.full(3, 1 / 3),
                    np.array([0.4, 0.3, 0.3]),
                ),
                Marginal(
                    "city", None, ("Graz", "Linz"), np.array([0.5, 0.5]), np.array([0.45, 0.55])
                ),
            ),
            pairs=(Pair(("pressure", "temperature"), rng.random((50, 2)), rng.random((50, 2))),),
            observed=np.array([0.1, 0.9]),
            modelled=np.array([0.15, 0.85]),
        ),
        seed=0,
    )
