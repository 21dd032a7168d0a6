"""Other densities as circuits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from knothole.arrays import Floats
from knothole.densities.base import EmissionDensity
from knothole.densities.circuit.density import Circuit
from knothole.densities.latent_tree.chow_liu import Tree


def mixture_to_circuit(density: EmissionDensity, weights: Floats) -> Circuit:
    """A mixture of products: a sum of products of emissions.

    ``density`` has an emission with as many states as there are ``weights`` for each variable.
    """
    names = [variable.name for variable in density.variables_]
    nodes: list[dict[str, Any]] = []
    components = []
    for _ in weights:
        emissions = [_add(nodes, {"leaf": name}) for name in names]
        components.append(_product(nodes, emissions))
    _add(nodes, {"sum": components, "weights": weights.tolist()})
    return Circuit.of(density, nodes, density.emissions_)


def tree_to_circuit(
    density: EmissionDensity, tree: Tree, prior: Floats, transition: Floats
) -> Circuit:
    """A latent tree.

    For each state of a variable's latent, a product of the variable's emission and of a sum for
    each child, over the states of the child's latent.
    """
    names = [variable.name for variable in density.variables_]
    nodes: list[dict[str, Any]] = []
    below: list[list[list[int]]] = [[[] for _ in prior] for _ in names]
    for v in tree.order[::-1].tolist():
        states = [
            _product(nodes, [_add(nodes, {"leaf": names[v]}), *children]) for children in below[v]
        ]
        if tree.parent[v] < 0:
            _add(nodes, {"sum": states, "weights": prior.tolist()})
            continue
        for i, weights in enumerate(transition[v].tolist()):
            below[tree.parent[v]][i].append(_add(nodes, {"sum": states, "weights": weights}))
    return Circuit.of(density, nodes, density.emissions_)


def _add(nodes: list[dict[str, Any]], node: dict[str, Any]) -> int:
    nodes.append(node)
    return len(nodes) - 1


def _product(nodes: list[dict[str, Any]], children: Sequence[int]) -> int:
    """A product; of one child, the child itself."""
    return children[0] if len(children) == 1 else _add(nodes, {"product": list(children)})
