"""scikit-learn's tree models, from the live object."""

from __future__ import annotations

from typing import Any

from knothole.trees.readers.registry import Reading
from knothole.trees.readers.sklearn import forests, hist


def read(model: Any) -> Reading:
    """Read a fitted tree, forest, bag of trees, or gradient boosting of either kind."""
    return hist.read(model) if isinstance(model, hist.KINDS) else forests.read(model)
