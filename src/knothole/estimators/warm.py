"""Kernels compiled, and kept on disk, by using them: for images, wheels, and ahead of a wrap."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)

from knothole.densities.base import Density
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.estimators.robust import Robust
from knothole.estimators.wrapping import wrap

#: What kernels are compiled for.
DENSITIES: tuple[type[Density], ...] = (GaussianMixture, LatentTree, Mixture)


def use(name: str) -> None:
    """Have the kernels that predictions under a density need compiled by using each of them.

    Examples
    --------
    >>> use("Mixture")
    """
    density = {kind.__name__: kind for kind in DENSITIES}[name](2, random_state=0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) + rng.normal(size=(300, 1))
    y, asked = X.sum(axis=1), np.where(rng.random(X.shape) < 0.4, np.nan, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in (
            GradientBoostingRegressor(n_estimators=5).fit(X, y),
            GradientBoostingClassifier(n_estimators=5).fit(X, y > 0),
        ):
            wrap(model, X, density=density).predict(asked)


def use_all(density: Any) -> None:
    """Have what any question to a model needs compiled, for numbers, levels and holes in training.

    Parameters
    ----------
    density
        As for :func:`~knothole.estimators.wrap`.
    """
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(400, 3)) + rng.normal(size=(400, 1))
    table = pd.DataFrame(numbers, columns=list("abc"))
    table["count"] = rng.poisson(2, 400)
    table["level"] = pd.Categorical(rng.choice(["x", "y", "z"], 400))
    y = numbers.sum(axis=1) + (table["level"] == "x")
    asked = table.mask(rng.random(table.shape) < 0.4).iloc[:50]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trees: dict[str, Any] = {"max_iter": 5, "categorical_features": "from_dtype"}
        regressor = HistGradientBoostingRegressor(**trees).fit(table, y)
        two = HistGradientBoostingClassifier(**trees).fit(table, y > 0)
        three = HistGradientBoostingClassifier(**trees).fit(table, np.digitize(y, [-1, 1]))
        forest = RandomForestRegressor(5, max_depth=4).fit(numbers, y)
        robust = wrap(regressor, table, y, density=density, random_state=0, correct=True)
        _ask(robust, asked)
        robust.tune(table.mask(rng.random(table.shape) < 0.2), y).predict(asked)
        robust.calibrate(table, y).predict_interval(asked)
        for classifier in (two, three):
            _ask(wrap(classifier, table, density=density, random_state=0), asked)
        wrap(forest, numbers, density=density, random_state=0).predict(asked[list("abc")])


def _ask(robust: Robust, asked: pd.DataFrame) -> None:
    robust.predict(asked)
    if hasattr(robust, "classes_"):
        robust.predict_proba(asked, return_error=True)
    else:
        robust.predict(asked, return_std=True)
        robust.predict(asked, quantiles=[0.1, 0.9])
    robust.explain(asked[:5])
    robust.acquire(asked[:5])
    robust.impute(asked[:5], draws=2)
