"""A cache of fitted densities, for searches over the parameters of a model.

A fitted density depends on its settings, the encoded table and the row weights, not on any model.
So all models of a grid search share the densities learned from a table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.errors import InvalidInput

if TYPE_CHECKING:
    from knothole.densities.base import Density

Fit = Callable[[Evidence, Floats], None]

_memory: ContextVar[Any] = ContextVar("memory", default=None)


@contextmanager
def cached_densities(memory: Any) -> Iterator[None]:
    """Inside this context, densities that were fitted before are read from ``memory``.

    Parameters
    ----------
    memory : None, path or joblib.Memory
        As in scikit-learn's Pipeline. None for no cache.
    """
    from sklearn.utils.validation import check_memory

    if memory is not None:
        try:
            memory = check_memory(os.fspath(memory) if isinstance(memory, os.PathLike) else memory)
        except ValueError:
            raise InvalidInput(
                f"memory must be None, the path of a folder, or a joblib.Memory; got {memory!r}."
            ) from None
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)


def learn_once(density: Density, fit: Fit, evidence: Evidence, weight: Floats) -> None:
    """``fit(evidence, weight)``, or the stored result for a density with equal settings."""
    memory = _memory.get()
    if memory is None:
        fit(evidence, weight)
        return
    import joblib

    own = density.__dict__.copy()
    known = evidence.points, evidence.allowed, evidence.n_levels, evidence.odds
    settings = version("knothole"), type(density).__qualname__, density.get_params()
    key = joblib.hash((settings, repr(density.variables_), density.target_, known, weight))
    cached = memory.cache(_learned, ignore=["density", "fit", "evidence", "weight"])
    density.__dict__.update(cached(key, density, fit, evidence, weight) | own)


def _learned(
    key: str, density: Density, fit: Fit, evidence: Evidence, weight: Floats
) -> dict[str, Any]:
    """The fitted attributes of a density; ``key`` identifies them in the cache."""
    fit(evidence, weight)
    return density.__dict__
