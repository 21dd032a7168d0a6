"""``read``: from a fitted model or a saved file to a checked ensemble."""

from __future__ import annotations

import os
from typing import Any

from knothole.trees import libraries, verify
from knothole.trees.ensemble import Ensemble


def read(model: Any) -> Ensemble:
    """Read a fitted tree model, or a file that its library saved.

    Parameters
    ----------
    model : object or path
        A fitted model of a supported library (see :mod:`knothole.trees.libraries`), or the path of
        a model file.

    Returns
    -------
    Ensemble
        Checked: it reproduces the library's own margins and leaves on rows made to tell them
        apart, otherwise :class:`~knothole.errors.ReaderMismatch` is raised.
    """
    reading: libraries.Reading
    if isinstance(model, (str, os.PathLike)):
        reading = libraries.read_file(model)
    else:
        reading = libraries.module_for(model, "read").read(model)
    verify.verify(reading)
    return reading.ensemble
