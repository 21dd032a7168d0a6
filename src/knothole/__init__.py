"""knothole: exact predictions from trained tree models when features are missing.

The public names are looked up when they are first used, so that ``import knothole`` costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> its module; None for a module of that name.
_HOMES = {
    "wrap": "knothole.estimators",
    "load": "knothole.estimators",
    "Robust": "knothole.estimators",
    "ExpectedRegressor": "knothole.estimators",
    "ExpectedClassifier": "knothole.estimators",
    "Factorized": "knothole.densities.mixture",
    "Mixture": "knothole.densities.mixture",
    "LatentTree": "knothole.densities.latent_tree",
    "GaussianMixture": "knothole.densities.gaussian_mixture",
    "Circuit": "knothole.densities.circuit",
    "Columns": "knothole.columns",
    "missingness": None,
    "errors": None,
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'knothole' has no attribute {name!r}")
    home = _HOMES[name]
    module = import_module(f"knothole.{name}" if home is None else home)
    found = module if home is None else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
