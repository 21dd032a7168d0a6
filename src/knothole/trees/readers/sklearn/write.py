"""New leaf values into a copy of a scikit-learn model; exact, they are kept in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from knothole.arrays import Floats, Integers
from knothole.errors import InvalidInput
from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.sklearn import forests, hist


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``.

    A classifier's values are taken as they are: scikit-learn does not make them sum to one.
    """
    written = copy.deepcopy(model)
    is_hist = isinstance(model, hist.KINDS)
    trees = hist.predictors_of(written) if is_hist else forests.members_of(written)
    for t, tree in enumerate(trees):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        leaves, value = ensemble.native_leaf[mine], ensemble.value[mine]
        if is_hist:
            tree.nodes["value"][leaves] = value[:, 0]
        else:
            _put(tree, leaves, value, t)
    return written


def _put(member: forests.Member, leaves: Integers, value: Floats, tree: int) -> None:
    # A bagged tree that never saw a class has nowhere to keep a value for it.
    unknown = np.setdiff1d(np.arange(value.shape[1]), member.target)
    if value[:, unknown].any():
        raise InvalidInput(
            f"value: tree {tree} was bagged without any row of class {unknown.tolist()} (by "
            f"position), so its leaves can only hold 0 there. Set those values to 0, or fit the "
            f"bag with max_samples large enough that every tree sees every class."
        )
    # Inner nodes keep their values: no prediction uses them.
    member.flat_value[np.ix_(leaves, member.source)] = value[:, member.target]
