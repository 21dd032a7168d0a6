"""Kernels compiled, and kept on disk, by using them: for images, wheels, and ahead of a wrap."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from knothole.densities.base import Density
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.expectation.gaussian import GaussianEngine
from knothole.expectation.warm import use_walks
from knothole.robust import Robust
from knothole.storage import load
from knothole.wrapping import wrap

#: What kernels are compiled for.
DENSITIES: tuple[type[Density], ...] = (GaussianMixture, LatentTree, Mixture)


def use(name: str, classifier: bool = False) -> None:
    """Use the kernels that ``wrap`` and predictions under a density need.

    In another order than they do (see :func:`_backwards`). "auto" is for what is compared, from
    the last to the first: what ``wrap`` begins with it compiles itself.

    Examples
    --------
    >>> use("Mixture")
    """
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    kinds = {kind.__name__: [kind(2, random_state=0)] for kind in DENSITIES}
    kinds["auto"] = [*kinds["GaussianMixture"], *kinds["LatentTree"], Factorized()]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) + rng.normal(size=(300, 1))
    y = X.sum(axis=1)
    regressor = GradientBoostingRegressor(n_estimators=5).fit(X, y)
    models = [regressor, GradientBoostingClassifier(n_estimators=5).fit(X, y > 0)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in models[::-1] if classifier else models:
            for density in kinds[name]:
                _backwards(wrap(model, X, density=density))


def use_file(path: str) -> None:
    """Use the kernels that predictions of a model in a file need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _backwards(load(path))


def _backwards(robust: Robust) -> None:
    """Ask for predictions so that what is needed last is compiled first.

    Whoever uses the kernels begins at the other end: where two meet, one waits for the other.
    """
    expectation = robust.expectation_
    if isinstance(expectation.engine, GaussianEngine):
        use_walks(expectation.ensemble, drawn=expectation.original.classes is None)
    asked = np.full((1, len(robust.columns_)), np.nan)
    robust.predict(pd.DataFrame(asked, columns=robust.columns_.names))


def use_all(density: Any) -> None:
    """Compile what any question to a model needs: numbers, levels, missing values in training.

    Parameters
    ----------
    density
        As for :func:`~knothole.wrap`.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestRegressor,
    )

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
        of_numbers = wrap(forest, numbers, density=density, random_state=0)
        _ask(of_numbers, asked[list("abc")])
        of_numbers.tune(table[list("abc")].mask(rng.random(numbers.shape) < 0.2), y)


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
