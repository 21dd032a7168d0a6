"""Versions of the libraries that results depend on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("knothole", "numpy", "scipy", "scikit-learn", "pandas")
_MODELS = ("xgboost", "xgboost-cpu", "lightgbm", "miceforest", "MissForest", "ydf")
#: Those that results of other methods than knothole's depend on.
OF_RIVALS = (*_LIBRARIES[1:], *_MODELS)


def versions() -> dict[str, str]:
    """Versions of those that are installed."""
    found = {}
    for name in (*_LIBRARIES, *_MODELS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
