"""New leaf values into a copy of a scikit-learn tree, forest, bag of trees or GradientBoosting."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.errors import InvalidInput
from knothole.trees.libraries.sklearn.forests import read as reader


def write(model: Any, value: NDArray[np.float64]) -> Any:
    """A copy of ``model`` whose leaves hold ``value``; exact, these libraries keep float64.

    A classifier's values are taken as they are: scikit-learn does not make them sum to one.
    """
    ensemble = reader.read(model).ensemble
    written = copy.deepcopy(model)
    for t, member in enumerate(reader.members_of(written)):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        _require_representable(value[mine], member, t)
        # Inner nodes keep their values: no prediction uses them.
        places = np.ix_(ensemble.native_leaf[mine], member.source)
        member.flat_value[places] = value[mine][:, member.target]
    return written


def _require_representable(value: NDArray[np.float64], member: reader.Member, tree: int) -> None:
    """A bagged tree that never saw a class has nowhere to keep a value for it."""
    unknown = np.setdiff1d(np.arange(value.shape[1]), member.target)
    if value[:, unknown].any():
        raise InvalidInput(
            f"value: tree {tree} was bagged without any row of class {unknown.tolist()} (by "
            f"position), so its leaves can only hold 0 there. Set those values to 0, or fit the "
            f"bag with max_samples large enough that every tree sees every class."
        )
