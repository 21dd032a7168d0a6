"""Which engine integrates exactly under a density, and which one draws from it.

Exact engines are found by the density's class, or the nearest of the classes that it is derived
from. For a class of your own, add an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from knothole.densities.circuit.density import Circuit
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.gaussian.draws import fill
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.expectation.circuit import CircuitEngine
from knothole.expectation.engine import Engine
from knothole.expectation.exact import mixture, walk
from knothole.expectation.exact.latent_tree import LatentTreeEngine
from knothole.expectation.exact.mixture import MixtureEngine
from knothole.expectation.gaussian import GaussianEngine
from knothole.expectation.monte_carlo.engine import CompletionsEngine, SharedEngine
from knothole.trees.ensemble import Ensemble

EngineMaker = Callable[[Ensemble, Any], Engine]

#: Exact engines, made from an ensemble over variables and a density of the class.
ENGINES: dict[type, EngineMaker] = {
    Circuit: CircuitEngine,
    LatentTree: LatentTreeEngine,
    Mixture: MixtureEngine,
}

#: The kernel that takes longest to compile before a first prediction.
LARGEST: dict[type, Any] = {
    GaussianMixture: fill,
    LatentTree: walk.add_margin,
    Mixture: mixture.add_expected,
}


def exact_engine(density: Any) -> EngineMaker | None:
    """The exact engine for a density, if there is one.

    Examples
    --------
    >>> from knothole.densities.mixture.density import Factorized
    >>> exact_engine(Factorized()).__name__, exact_engine(GaussianMixture())
    ('MixtureEngine', None)
    """
    return next((ENGINES[base] for base in type(density).__mro__ if base in ENGINES), None)


def largest_kernel(density: Any) -> Any:
    """The largest kernel that predictions under a density need, None where none is large."""
    return next((LARGEST[base] for base in type(density).__mro__ if base in LARGEST), None)


def completions_engine(ensemble: Ensemble, density: Any, seed: int) -> CompletionsEngine:
    """The engine that draws missing values, with what is exact under the density beside it."""
    if isinstance(density, GaussianMixture):
        return GaussianEngine(ensemble, density, seed)
    if isinstance(density, Mixture):
        return SharedEngine(ensemble, density, seed)
    return CompletionsEngine(ensemble, density, seed)
