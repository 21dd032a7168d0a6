"""Checks of the parameters that densities share."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from knothole.errors import InvalidInput
from knothole.tables.columns import Variable


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number from ``least`` on."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise InvalidInput(f"{name} must be a whole number from {least} on; got {value!r}.")


def check_number(name: str, value: Any, below: float = np.inf) -> None:
    """Refuse what is not a number from 0 to below a bound."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 <= float(value) < below:
        end = "" if np.isinf(below) else f", below {below:g}"
        raise InvalidInput(f"{name} must be a number from 0 on{end}; got {value!r}.")


def check_names(parameter: str, names: Iterable[str], variables: Iterable[Variable]) -> None:
    """Refuse names that are no variable's."""
    known = [variable.name for variable in variables]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"{parameter}: no variable {unknown[0]!r}; there are {known}.")
