"""``read``: from a fitted model or a saved file to a checked ensemble."""

from __future__ import annotations

from typing import Any

from knothole.trees import verify
from knothole.trees.ensemble import Ensemble
from knothole.trees.readers import registry


def read(model: Any) -> Ensemble:
    """Read a fitted tree model, or a file that its library saved.

    Parameters
    ----------
    model : object or path
        A fitted model of a supported library (see :mod:`knothole.trees.readers`), or the path of
        a model file.

    Returns
    -------
    Ensemble
        Checked: it reproduces the library's own margins and leaves on rows made to tell them
        apart, otherwise :class:`~knothole.errors.ReaderMismatch` is raised.
    """
    reading = registry.reading_of(model)
    verify.verify(reading)
    return reading.ensemble
