"""A target beside the columns: one more variable of a density."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.errors import InvalidInput
from knothole.tables.columns import Kind, Variable


def describe_target(target: Any) -> Variable:
    """A target as a variable: categorical where its values are labels, continuous otherwise."""
    values = np.asarray(target)
    if values.dtype.kind in "fiu":
        return Variable("target", Kind.CONTINUOUS, (), ())
    levels: tuple[Hashable, ...] = tuple(np.unique(values[values == values]).tolist())
    return Variable("target", Kind.CATEGORICAL, levels, ())


def encode_target(variable: Variable, target: Any) -> Floats:
    """Numbers, or the codes of labels."""
    values = np.asarray(target)
    if variable.kind is not Kind.CATEGORICAL:
        return np.asarray(values, dtype=np.float64)
    codes = {level: float(code) for code, level in enumerate(variable.levels)}
    unknown = [value for value in values.tolist() if value == value and value not in codes]
    if unknown:
        raise InvalidInput(f"target: {unknown[0]!r} is not one of {list(codes)}.")
    return np.array([codes.get(value, np.nan) for value in values.tolist()])
