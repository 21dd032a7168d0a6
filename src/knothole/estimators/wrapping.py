"""``wrap``: from a fitted model and its training table to a :class:`Robust`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from knothole.columns import Blocks, Columns
from knothole.densities.mixture import Mixture
from knothole.estimators.robust import Robust
from knothole.reach.expectation import compile
from knothole.trees.blocks import with_nan
from knothole.trees.reading import read
from knothole.trees.readers.catboost_categories import name_levels


def wrap(
    model: Any,
    X_train: Any,
    y_train: Any = None,
    density: Any = "auto",
    *,
    columns: Columns | None = None,
    blocks: Blocks | None = None,
    random_state: Any = 0,
) -> Robust:
    """Make a fitted tree model answer rows with holes by its expected prediction."""
    ensemble = name_levels(read(model), X_train)
    described = ensemble.columns.describe(X_train, blocks) if columns is None else columns
    matrix = with_nan(ensemble, described, described.matrix(X_train))
    described = described.with_nullable(np.isnan(matrix).any(axis=0))
    chosen = Mixture(random_state=random_state) if density == "auto" else density
    if not hasattr(chosen, "columns_"):
        chosen = clone(chosen).fit_matrix(matrix, described)
    return Robust(compile(ensemble, chosen), model)
