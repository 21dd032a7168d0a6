"""Kernels compiled, and kept on disk, by using them: for images, for CI, and ahead of a wrap."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

from knothole.densities.base import Density
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.estimators.wrapping import wrap

#: What kernels are compiled for.
DENSITIES: tuple[type[Density], ...] = (GaussianMixture, LatentTree, Mixture)


def use(name: str) -> None:
    """Have the kernels of a density compiled by using each of them.

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
