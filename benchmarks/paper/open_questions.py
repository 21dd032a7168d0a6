"""Two experiments that the paper leaves open, in a small form, on the data of its figure.

*Forests*: bagging and random forests whose trees are refitted by Prop. 2; ours move on to the
deployed error. *Mechanisms*: one tree,
where values go missing by one mechanism at learning and by another at deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from sklearn.ensemble import RandomForestRegressor

from benchmarks.paper.panels import (
    EXPECTED,
    FAIR,
    OURS,
    REFITTED,
    TEST_SEED,
    XGBOOST,
    Insurance,
    Record,
    candidates,
    grow,
    learn,
    mask_seed,
    refitted,
)
from benchmarks.suite.scenarios import Mechanism
from knothole.densities.mixture.density import Mixture
from knothole.wrapping import wrap

FOREST_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
#: Columns that a split may choose from, as scikit-learn takes it.
FORESTS: Mapping[str, float] = {"bagging": 1.0, "random forest": 1 / 3}
FOREST_TREES = 10
FOREST_DEPTH = 5
FOREST_COMPONENTS = 4
NATIVE = "scikit-learn"

#: At learning and at deployment.
MECHANISMS = (Mechanism("mcar", 0.3), Mechanism("mar", 0.3), Mechanism("mnar", 0.3))


def forests(data: Insurance, rate: float, trial: int) -> list[Record]:
    """Forests, missing values at the same rate at learning and deployment."""
    train, test = data.incomplete(rate, trial)
    prototype = Mixture(FOREST_COMPONENTS, n_init=1, random_state=trial)
    learned = learn(prototype, train, data.columns())
    records = []
    for name, share in FORESTS.items():
        model = RandomForestRegressor(
            FOREST_TREES, max_depth=FOREST_DEPTH, max_features=share, random_state=trial
        ).fit(train, data.y)
        robust = wrap(model, train, density=learned, nan_policy="lost")
        answers: dict[str, Any] = {
            NATIVE: model.predict(test),
            EXPECTED: robust.predict(test, n_jobs=1),
        }
        for method, options in (
            (REFITTED, {"condition_on_target": False}),
            (OURS, {"ridge": "auto"}),
        ):
            new = refitted(robust, train, data.y, **options)
            answers[method] = new.predict(test, n_jobs=1)
        records += data.records(answers, model=name, rate=rate, trial=trial)
    return records


def mechanisms(data: Insurance, density: str, learning: Mechanism, trial: int) -> list[Record]:
    """One tree with the fair settings, learned under one mechanism and deployed under each."""
    columns = list(data.train.columns)
    seed = mask_seed(learning.rate, trial)

    def incomplete(table: pd.DataFrame, mechanism: Mechanism, seed: int) -> pd.DataFrame:
        return mechanism.make_missing(table, seed, data.train, columns, mechanism=trial)

    train = incomplete(data.train, learning, seed)
    learned = learn(candidates(trial)[density], train, data.columns())
    model = grow(train, data.y, 1, FAIR)
    robust = wrap(model, train, density=learned, nan_policy="lost")
    flat = refitted(robust, train, data.y, condition_on_target=False)
    ours = refitted(robust, train, data.y)
    records = []
    for deployment in MECHANISMS:
        test = incomplete(data.test, deployment, seed + TEST_SEED)
        answers = {
            XGBOOST: model.predict(test),
            EXPECTED: robust.predict(test, n_jobs=1),
            REFITTED: flat.predict(test, n_jobs=1),
            OURS: ours.predict(test, n_jobs=1),
        }
        ways = {"learning": learning.name, "deployment": deployment.name}
        records += data.records(answers, **ways, trial=trial)
    return records
