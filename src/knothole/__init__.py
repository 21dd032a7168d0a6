"""knothole: exact predictions from trained tree models when features are missing.

The public names are looked up when they are first used, so that ``import knothole`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers, which do not call __getattr__
    from knothole import errors, missingness
    from knothole.columns.columns import Columns
    from knothole.densities.circuit.density import Circuit
    from knothole.densities.gaussian.density import GaussianMixture
    from knothole.densities.latent_tree.density import LatentTree
    from knothole.densities.mixture.density import Factorized, Mixture
    from knothole.imputer import Imputer
    from knothole.leaves.induction import Expanded, expand
    from knothole.leaves.options import RefitOptions
    from knothole.meta import ExpectedClassifier, ExpectedRegressor
    from knothole.robust import Robust
    from knothole.storage import load
    from knothole.wrapping import wrap

    __version__: str

# Where public names are; those that are nowhere here are modules.
_HOMES = {
    "densities.circuit.density": ("Circuit",),
    "densities.gaussian.density": ("GaussianMixture",),
    "densities.latent_tree.density": ("LatentTree",),
    "densities.mixture.density": ("Factorized", "Mixture"),
    "imputer": ("Imputer",),
    "meta": ("ExpectedClassifier", "ExpectedRegressor"),
    "robust": ("Robust",),
    "storage": ("load",),
    "wrapping": ("wrap",),
    "leaves.induction": ("Expanded", "expand"),
    "leaves.options": ("RefitOptions",),
    "columns.columns": ("Columns",),
}

__all__ = [
    "Circuit",
    "Columns",
    "Expanded",
    "ExpectedClassifier",
    "ExpectedRegressor",
    "Factorized",
    "GaussianMixture",
    "Imputer",
    "LatentTree",
    "Mixture",
    "RefitOptions",
    "Robust",
    "__version__",
    "errors",
    "expand",
    "load",
    "missingness",
    "wrap",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":  # of the installed package: pyproject.toml is where it is written
        found: Any = import_module("importlib.metadata").version("knothole")
    elif name in __all__:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        module = import_module(f"knothole.{home or name}")
        found = module if home is None else getattr(module, name)
    else:
        raise AttributeError(f"module 'knothole' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
