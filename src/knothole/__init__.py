"""knothole: exact predictions from trained tree models when features are missing.

The public names are looked up when they are first used, so that ``import knothole`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers, which do not call __getattr__
    from knothole import errors, missingness
    from knothole.columns import Columns
    from knothole.densities.circuit import Circuit
    from knothole.densities.gaussian_mixture import GaussianMixture
    from knothole.densities.latent_tree import LatentTree
    from knothole.densities.mixture import Factorized, Mixture
    from knothole.estimators import ExpectedClassifier, ExpectedRegressor, Robust, load, wrap

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

__all__ = [
    "Circuit",
    "Columns",
    "ExpectedClassifier",
    "ExpectedRegressor",
    "Factorized",
    "GaussianMixture",
    "LatentTree",
    "Mixture",
    "Robust",
    "__version__",
    "errors",
    "load",
    "missingness",
    "wrap",
]


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
