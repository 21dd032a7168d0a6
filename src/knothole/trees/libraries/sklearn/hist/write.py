"""New leaf values into a copy of a scikit-learn HistGradientBoosting model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.trees.libraries.sklearn.hist import read as reader


def write(model: Any, value: NDArray[np.float64]) -> Any:
    """A copy of ``model`` whose leaves hold ``value``; exact, the library keeps float64."""
    ensemble = reader.read(model).ensemble
    written = copy.deepcopy(model)
    for t, predictor in enumerate(reader.predictors_of(written)):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        predictor.nodes["value"][ensemble.native_leaf[mine]] = value[mine, 0]
    return written
