"""CatBoost: new leaf values into a copy of the model, exact to the last bit.

CatBoost's own ways do not serve: ``set_leaf_values`` refuses models that were loaded and has no
effect after a prediction, and its JSON parser does not round to the nearest float64. So the leaf
values are replaced inside the bytes of a saved model, and the copy loads those.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.catboost.cbm import parse, replace_leaf_values
from knothole.trees.readers.catboost.read import saved


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``."""
    data = saved(model)
    parts = parse(data)
    value = np.array(parts.value)
    value[parts.trees.first_leaf[ensemble.leaf_tree] + ensemble.native_leaf] = ensemble.value
    copy = model.copy()
    copy.load_model(blob=replace_leaf_values(data, value))
    # What fitting leaves on a model beside the trees, and loading does not bring back.
    copy._n_features_in = model.n_features_in_
    if getattr(copy, "_prediction_values_change", None) is not None:
        copy.get_feature_importance(type="PredictionValuesChange")  # the copy keeps the result
    copy._loss_value_change = None  # of the old leaves; it takes data to compute it for the new
    return copy
