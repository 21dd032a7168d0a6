"""Random trees, densities and rows that fit together, small enough to enumerate."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from tests.trees.generate import random_ensemble

from knothole.columns.columns import Columns, OneHotGroup
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.trees.ensemble import Ensemble
from knothole.trees.links import Link


class ByCircuit:
    """Fits a mixture or a latent tree and hands out its circuit."""

    def __init__(self, seed):
        self.density = EXACT["Mixture" if seed % 2 else "LatentTree"](seed)

    def fit(self, table, columns):
        return self.density.fit(table, columns=columns).to_circuit()


EXACT = {
    "Circuit": ByCircuit,
    "Factorized": lambda seed: Factorized(random_state=seed),
    "LatentTree": lambda seed: LatentTree(3, strength=0.5, max_iter=3, tol=10.0, random_state=seed),
    "Mixture": lambda seed: Mixture(
        3, strength=0.5, n_init=1, max_iter=5, tol=10.0, random_state=seed
    ),
}


@dataclass(frozen=True)
class Case:
    """An ensemble, a density over its columns, and rows with missing values."""

    ensemble: Ensemble
    density: Any
    rows: np.ndarray
    missing_mask: np.ndarray


def random_case(
    seed, density="Mixture", n_rows=6, rate=0.5, n_trees=3, depth=3, width=1, n_outputs=1,
    link="identity", numeric=True,
):  # fmt: skip
    """Two numeric columns (one nullable), two categorical ones and a one-hot group of three."""
    rng = np.random.default_rng(seed)
    levels = (3, 0, 2, 0, 0, 0, 0) if numeric else (3, 4, 2, 3, 0, 0, 0)
    ensemble = random_ensemble(
        seed=seed, n_trees=n_trees, depth=depth, levels=levels, width=width, n_outputs=n_outputs
    )
    ensemble = replace(ensemble, link=Link(link))
    X = training_matrix(levels, 60, rng)
    columns = ensemble.columns.describe(as_table(ensemble.columns, X))
    columns = replace(columns, one_hot=(OneHotGroup("group", (4, 5, 6)),))
    nullable = np.zeros(len(columns), dtype=np.bool_)
    nullable[[1, 2]] = True
    columns = columns.with_nullable(nullable)
    X[rng.random(len(X)) < 0.2, 1] = np.nan  # "not recorded", a value of the model's own
    X[rng.random(len(X)) < 0.2, 2] = np.nan
    with warnings.catch_warnings():
        # Few steps are enough here; some tables gain more with each of them.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = EXACT[density](seed).fit(as_table(columns, X), columns=columns)
    rows = training_matrix(levels, n_rows, rng)
    missing_mask = rng.random(rows.shape) < rate
    rows[missing_mask] = np.nan
    absent = rng.random(len(rows)) < 0.3
    rows[absent, 1] = np.nan
    missing_mask[absent, 1] = False
    return Case(ensemble, fitted, rows, missing_mask)


def training_matrix(levels, n, rng):
    """Codes and numbers that depend on each other a little."""
    group = rng.integers(0, 3, n)
    X = np.empty((n, len(levels)))
    for column, count in enumerate(levels):
        if count:
            X[:, column] = (group + rng.integers(0, 2, n)) % count
        else:
            X[:, column] = rng.normal(size=n) + group - 1
    X[:, 4:7] = np.eye(3)[(group + (rng.random(n) < 0.3)) % 3]
    return X


def as_table(columns: Columns, X):
    """A matrix of codes as the table it encodes."""
    table = {}
    for i, column in enumerate(columns):
        if column.levels:
            levels = [level for level in column.levels if level is not None]
            codes = np.where(np.isnan(X[:, i]), -1, X[:, i]).astype(int)
            table[column.name] = pd.Categorical.from_codes(codes, categories=levels)
        else:
            table[column.name] = X[:, i]
    return pd.DataFrame(table)


def asked(expectation, question, table, lost=None):
    """What an expectation answers ("margin", "leaf_probabilities", ...) of a table."""
    return getattr(expectation, question)(expectation.evidence(table, lost))
