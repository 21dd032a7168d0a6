"""``write``: an ensemble's leaf values into a copy of the model it was read from."""

from __future__ import annotations

from typing import Any

import numpy as np

from knothole.errors import InvalidInput, ReaderMismatch
from knothole.trees.ensemble import Ensemble
from knothole.trees.read import read
from knothole.trees.readers import registry


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` that predicts what ``ensemble`` predicts.

    Parameters
    ----------
    model : object
        The fitted model that ``ensemble`` was read from; it is not changed.
    ensemble : Ensemble
        The same trees with other leaf values (:meth:`Ensemble.with_values`).

    Returns
    -------
    object
        A model of the same class, read back and compared. Libraries that keep leaf values in
        float32 (XGBoost) round them: relative error at most 6e-8 per leaf. LightGBM turns those
        within 1e-35 of zero into 0.
    """
    original = read(model)
    if original.value.shape != ensemble.value.shape or not np.array_equal(
        original.feature, ensemble.feature
    ):
        raise InvalidInput("ensemble was not read from this model: its trees are others.")
    writer = registry.module_of(registry.library_of(model), "write")
    copy = writer.write(model, original.with_values(ensemble.value))
    written = read(copy)
    unit = np.finfo(ensemble.precision).eps
    nothing = getattr(writer, "NOTHING", float(np.finfo(np.float32).tiny))
    if not np.allclose(written.value, ensemble.value, rtol=unit, atol=nothing):
        difference = np.abs(written.value - ensemble.value)
        worst = np.unravel_index(difference.argmax(), difference.shape)
        raise ReaderMismatch(
            f"{ensemble.library}: leaf {worst[0]} was to hold {ensemble.value[worst]!r}, but the "
            f"written model holds {written.value[worst]!r}."
        )
    return copy
