"""Strict reading: a number is a number, nothing is missing, and what is said twice agrees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Ints
from knothole.errors import DamagedFile


@dataclass(frozen=True)
class Strict:
    """What a model of one library must be like to be read; whatever is not is damaged.

    Examples
    --------
    >>> Strict("XGBoost", "Save it again.").require(False, "a tree without nodes")
    Traceback (most recent call last):
    knothole.errors.DamagedFile: XGBoost: a tree without nodes. Save it again.
    """

    library: str
    way_out: str = ""

    def require(self, holds: Any, problem: str) -> None:
        """Refuse the model unless something holds."""
        if not holds:
            raise self.damage(problem)

    def damage(self, problem: str) -> DamagedFile:
        """The exception for a model that is not as it must be."""
        return DamagedFile(f"{self.library}: {problem}. {self.way_out}".rstrip())

    def count(self, what: str, found: int, *said: int) -> None:
        """Refuse a model that has another number of something than is said elsewhere."""
        self.require(found in said, f"{found} {what}, not {' or '.join(map(str, said))}")

    def within(self, numbers: NDArray[Any], stop: int, problem: str) -> None:
        """Refuse numbers that are not all from 0 on and below ``stop``."""
        self.require(not len(numbers) or (numbers.min() >= 0 and numbers.max() < stop), problem)

    def field(self, document: Any, *path: str) -> Any:
        """What a document holds under these keys, one in the other."""
        for depth, key in enumerate(path):
            if not isinstance(document, dict) or key not in document:
                raise self.damage(f"the model has no field {'.'.join(path[: depth + 1])!r}")
            document = document[key]
        return document

    def of(self, kind: type, item: Any) -> Any:
        """An item of a document, which must be of a type; a bool is no number."""
        if isinstance(item, kind) and not (kind is int and isinstance(item, bool)):
            return item
        raise self.damage(f"expected {kind.__name__}, found {type(item).__name__}")

    def integers(self, values: Any, name: str) -> Ints:
        """A list or array of whole numbers."""
        array = np.asarray(values)
        whole = array.dtype.kind in "ib" or (array.dtype.kind == "u" and array.dtype.itemsize < 8)
        fits = array.ndim == 1 and (whole or not len(array))
        self.require(fits, f"{name} must be a list of whole numbers")
        return array.astype(np.int64)

    def numbers(self, values: Any, name: str) -> NDArray[Any]:
        """A list or array of numbers; text that looks like a number is none, nor is a bool."""
        array = np.asarray(values)
        mixed = isinstance(values, list) and not set(map(type, values)) <= {int, float}
        fits = array.ndim == 1 and not mixed and (array.dtype.kind in "fiu" or not len(array))
        self.require(fits, f"{name} must be a list of numbers")
        return array
