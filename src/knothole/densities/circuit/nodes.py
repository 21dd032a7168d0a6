"""Nodes of a circuit: reading and checking them, and passes over them layer by layer.

A circuit is *smooth* if all children of a sum are over the same variables, and *decomposable* if
no two children of a product share one. Then every marginal takes one pass. A leaf is a
univariate distribution. Values are log densities, (nodes, rows); nodes of one kind that are equally
far from the leaves form a layer and are computed together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.columns.columns import Column, Kind, Variable
from knothole.densities.univariate.base import Univariate, log_of
from knothole.densities.univariate.continuous import Gaussian
from knothole.densities.univariate.discrete import Categorical
from knothole.densities.univariate.families import FAMILIES
from knothole.errors import InvalidInput

KINDS = ("leaf", "product", "sum")
# Tolerance of sums of probabilities in a JSON file, where they are rounded.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Layer:
    """Nodes of one kind with their children, one node after the other.

    Attributes
    ----------
    sums : bool
        Whether the nodes are sums; otherwise products.
    nodes : int64 (nodes,)
    children : int64 (edges,)
    starts : int64 (nodes,)
        Where each node's children begin.
    owner : int64 (edges,)
        The entry of ``nodes`` that each edge belongs to.
    edges : int64 (edges,)
        Positions of the edges among the weights of all sums; empty for products.
    """

    sums: bool
    nodes: Ints
    children: Ints
    starts: Ints
    owner: Ints
    edges: Ints


@dataclass(frozen=True, eq=False)
class Structure:
    """A checked circuit without its parameters.

    Attributes
    ----------
    names : tuple of str
        Variables, in the order of their first leaves.
    children : tuple of tuples of int
        Of each node; a leaf has none. The last node is the root.
    leaf : dict from node to (variable, state)
        Distributions of one variable are the states of one :class:`Univariate`, in the order of
        their nodes.
    leaf_nodes : tuple of int64 arrays
        The inverse: by variable, the node of each state.
    layers : tuple of Layer
        From the leaves (which are in none) to the root.
    sums : dict from node to slice
        Where the weights of each sum are.
    weights : float64 (edges of sums,)
        The given weights, equal ones where none were given.
    """

    names: tuple[str, ...]
    children: tuple[tuple[int, ...], ...]
    leaf: dict[int, tuple[int, int]]
    leaf_nodes: tuple[Ints, ...]
    layers: tuple[Layer, ...]
    sums: dict[int, slice]
    weights: Floats

    def over(self, names: Sequence[str]) -> Structure:
        """The same circuit with its variables in the order of ``names``."""
        if sorted(names) != sorted(self.names):
            raise InvalidInput(
                f"nodes: the leaves must be of the table's variables, {list(names)}, each named "
                f"once; they are of {list(self.names)}."
            )
        place = [self.names.index(name) for name in names]
        leaf = {node: (place.index(v), state) for node, (v, state) in self.leaf.items()}
        leaf_nodes = tuple(self.leaf_nodes[v] for v in place)
        return replace(
            self,
            names=tuple(names),
            leaf=leaf,
            leaf_nodes=leaf_nodes,
        )

    @property
    def n_edges(self) -> int:
        """Edges of all nodes: the cost of a pass per row."""
        return sum(map(len, self.children))


def read_nodes(nodes: Sequence[Mapping[str, Any]]) -> Structure:
    """Check nodes of the form that :class:`~knothole.densities.circuit.density.Circuit` documents.

    Raises
    ------
    InvalidInput
        Names the node that breaks a rule.
    """
    if isinstance(nodes, str | Mapping) or not isinstance(nodes, Sequence) or not nodes:
        raise InvalidInput(
            f"nodes must be a list of at least one node; got {type(nodes).__name__}."
        )
    kinds = [_kind(node, position) for position, node in enumerate(nodes)]
    children = [
        () if kind == "leaf" else _children(node[kind], kind, position)
        for position, (node, kind) in enumerate(zip(nodes, kinds, strict=True))
    ]
    names, leaf, leaf_nodes = _leaves(nodes, kinds)
    _check_scopes(kinds, children, leaf, names)
    _check_reached(children)
    sums, weights = _weights(nodes, kinds, children)
    layers = _layers(kinds, children, sums)
    return Structure(names, tuple(children), leaf, leaf_nodes, layers, sums, weights)


# ---- checks -------------------------------------------------------------------------------------


def broken(position: int, kind: str, rule: str) -> InvalidInput:
    """The error of a node that breaks a rule."""
    return InvalidInput(f"nodes[{position}] ({kind}) {rule}")


def probabilities_from(given: Any, size: int) -> Floats | None:
    """Probabilities, normalised to sum to 1 exactly; None for anything else."""
    try:
        numbers = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if numbers.shape != (size,) or not np.all(numbers >= 0):
        return None
    total = numbers.sum()
    return np.asarray(numbers / total) if abs(total - 1) <= ROUNDING else None


def _kind(node: Any, position: int) -> str:
    found = [kind for kind in KINDS if isinstance(node, Mapping) and kind in node]
    if len(found) != 1:
        raise InvalidInput(
            f"nodes[{position}] must be a mapping with one of the keys {list(KINDS)}; got {node!r}."
        )
    return found[0]


def _children(children: Any, kind: str, position: int) -> tuple[int, ...]:
    if isinstance(children, str) or not isinstance(children, Sequence) or not children:
        raise broken(position, kind, f"must have a list of at least one child; got {children!r}.")
    for child in children:
        if isinstance(child, bool) or not isinstance(child, int) or not 0 <= child < position:
            rule = f"must have children from before it, 0 to {position - 1}; got {child!r}."
            raise broken(position, kind, rule)
    if len(set(children)) != len(children):
        raise broken(position, kind, f"must have each child once; got {children}.")
    return tuple(children)


def _leaves(
    nodes: Sequence[Mapping[str, Any]], kinds: list[str]
) -> tuple[tuple[str, ...], dict[int, tuple[int, int]], tuple[Ints, ...]]:
    by_name: dict[str, list[int]] = {}
    for position, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        if kind == "leaf":
            if not isinstance(node["leaf"], str):
                raise broken(position, "leaf", f"must name a variable; got {node['leaf']!r}.")
            by_name.setdefault(node["leaf"], []).append(position)
    leaf = {
        node: (v, state) for v, own in enumerate(by_name.values()) for state, node in enumerate(own)
    }
    leaf_nodes = tuple(np.array(own, dtype=np.int64) for own in by_name.values())
    return tuple(by_name), leaf, leaf_nodes


def _check_scopes(
    kinds: list[str],
    children: list[tuple[int, ...]],
    leaf: dict[int, tuple[int, int]],
    names: tuple[str, ...],
) -> None:
    """Check that it is smooth and decomposable; a scope has one bit for each variable."""

    def listed(scope: int) -> list[str]:
        return [name for v, name in enumerate(names) if scope >> v & 1]

    scopes: list[int] = []
    for position, kind in enumerate(kinds):
        if kind == "leaf":
            scopes.append(1 << leaf[position][0])
            continue
        scope = scopes[children[position][0]]
        for child in children[position][1:]:
            if kind == "sum" and scopes[child] != scope:
                raise broken(
                    position, kind, f"is not smooth: its children must be over the same variables, "
                    f"but {children[position][0]} is over {listed(scope)} and {child} over "
                    f"{listed(scopes[child])}.",
                )  # fmt: skip
            if kind == "product" and scopes[child] & scope:
                raise broken(
                    position, kind, f"is not decomposable: its children must share no variable, "
                    f"but child {child} and one before it share {listed(scopes[child] & scope)}.",
                )  # fmt: skip
            scope |= scopes[child]
        scopes.append(scope)
    missing = listed(((1 << len(names)) - 1) & ~scopes[-1])
    if missing:
        raise InvalidInput(
            f"nodes[{len(kinds) - 1}], the last one, is the root and must be over all variables; "
            f"{missing} are not below it."
        )


def _check_reached(children: list[tuple[int, ...]]) -> None:
    reached = {len(children) - 1}
    for position in range(len(children) - 1, -1, -1):
        if position not in reached:
            raise InvalidInput(
                f"nodes[{position}] is not below the root, which is the last node; leave it out."
            )
        reached.update(children[position])


def _weights(
    nodes: Sequence[Mapping[str, Any]], kinds: list[str], children: list[tuple[int, ...]]
) -> tuple[dict[int, slice], Floats]:
    sums: dict[int, slice] = {}
    weights: list[float] = []
    for position, kind in enumerate(kinds):
        if kind == "sum":
            size = len(children[position])
            sums[position] = slice(len(weights), len(weights) + size)
            given = nodes[position].get("weights")
            own = np.full(size, 1.0 / size) if given is None else probabilities_from(given, size)
            if own is None:
                raise broken(
                    position, kind, f"must have {size} weights, one for each child, none "
                    f"negative, that add up to 1; got {given!r}.",
                )  # fmt: skip
            weights += own.tolist()
    return sums, np.array(weights, dtype=np.float64)


def _layers(
    kinds: list[str], children: list[tuple[int, ...]], sums: dict[int, slice]
) -> tuple[Layer, ...]:
    height: list[int] = []
    groups: dict[tuple[int, bool], list[int]] = {}
    for position, own in enumerate(children):
        height.append(1 + max(height[child] for child in own) if own else 0)
        if own:
            groups.setdefault((height[position], kinds[position] == "sum"), []).append(position)
    layers = []
    for (_, is_sum), nodes in sorted(groups.items()):
        sizes = np.array([len(children[node]) for node in nodes])
        parts = [sums[node] for node in nodes if is_sum]
        edges = [edge for part in parts for edge in range(part.start, part.stop)]
        layers.append(
            Layer(
                is_sum,
                np.array(nodes, dtype=np.int64),
                np.array([child for node in nodes for child in children[node]], dtype=np.int64),
                np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
                np.repeat(np.arange(len(nodes)), sizes),
                np.array(edges, dtype=np.int64),
            )
        )
    return tuple(layers)


# ---- passes -------------------------------------------------------------------------------------


def evaluate(structure: Structure, log_weights: Floats, terms: Sequence[Floats]) -> Floats:
    """Log density of every node, (nodes, rows), from terms (rows, states) of each variable."""
    values = np.empty((len(structure.children), len(terms[0])))
    for nodes, term in zip(structure.leaf_nodes, terms, strict=True):
        values[nodes] = term.T
    for layer in structure.layers:
        below = values[layer.children]
        if layer.sums:
            below += log_weights[layer.edges, None]
            peak = np.maximum.reduceat(below, layer.starts, axis=0)
            peak[np.isneginf(peak)] = 0.0  # impossible in every child: the log of 0 below
            total = np.add.reduceat(np.exp(below - peak[layer.owner]), layer.starts, axis=0)
            values[layer.nodes] = peak + log_of(total)
        else:
            values[layer.nodes] = np.add.reduceat(below, layer.starts, axis=0)
    return values


def flows(
    structure: Structure, log_weights: Floats, values: Floats, weight: Floats
) -> tuple[Floats, Floats]:
    """The flow of each row through each node, and the total flow through each weight.

    ``weight`` enters at the root. A product passes its flow on to every child; a sum divides it in
    proportion to its children's densities. (nodes, rows) and (edges of sums,).
    """
    flow = np.zeros_like(values)
    flow[-1] = np.where(np.isneginf(values[-1]), 0.0, weight)
    through = np.zeros(len(log_weights))
    for layer in reversed(structure.layers):
        down = flow[layer.nodes][layer.owner]
        if layer.sums:
            own = values[layer.nodes]
            own[np.isneginf(own)] = 0.0  # there is no flow
            edge = log_weights[layer.edges, None] + values[layer.children]
            down = down * np.exp(edge - own[layer.owner])
            through[layer.edges] = down.sum(axis=1)
        np.add.at(flow, layer.children, down)
    return flow, through


def draw_leaves(
    structure: Structure,
    weights: Floats,
    values: Floats,
    rows: Ints,
    uniform: Floats,
) -> Ints:
    """The state of every variable's leaf, drawn from the top down: (draws, variables).

    Draw i is given column ``rows[i]`` of ``values``; ``uniform[i]`` has one number for each sum.
    """
    place = {node: i for i, node in enumerate(structure.sums)}
    states = np.empty((len(rows), len(structure.names)), dtype=np.int64)
    active: list[list[Ints]] = [[] for _ in structure.children]
    active[-1].append(np.arange(len(rows)))
    for node in range(len(structure.children) - 1, -1, -1):
        if not active[node]:
            continue
        here = np.concatenate(active[node])
        own = structure.children[node]
        if not own:
            variable, state = structure.leaf[node]
            states[here, variable] = state
        elif node not in structure.sums:
            for child in own:
                active[child].append(here)
        else:
            relative = values[np.array(own)[:, None], rows[here]] - values[node, rows[here]]
            bounds = np.cumsum(weights[structure.sums[node], None] * np.exp(relative), axis=0)
            chosen = (bounds <= uniform[here, place[node]] * bounds[-1]).sum(axis=0)
            for i, child in enumerate(own):
                active[child].append(here[chosen == i])
    return states


FORMAT = "knothole circuit"
VERSION = 1
# Errors that building a distribution from inconsistent arrays can raise.
_BROKEN = (KeyError, ValueError, TypeError, IndexError, AttributeError)


def write_circuit(
    structure: Structure,
    weights: Floats,
    variables: Sequence[Variable],
    distributions: Sequence[Univariate],
) -> str:
    """A circuit as text."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "variables": [
            {
                **_describe(variable),
                "family": distribution.family,
                "arrays": _listed(distribution.arrays()),
            }
            for variable, distribution in zip(variables, distributions, strict=True)
        ],
        "nodes": weighted_nodes(structure, weights),
    }
    return json.dumps(document, allow_nan=False)


def weighted_nodes(structure: Structure, weights: Floats) -> list[dict[str, Any]]:
    """Nodes as plain mappings, with these weights."""
    nodes: list[dict[str, Any]] = []
    for node, children in enumerate(structure.children):
        if node in structure.leaf:
            nodes.append({"leaf": structure.names[structure.leaf[node][0]]})
        elif node in structure.sums:
            own = weights[structure.sums[node]].tolist()
            nodes.append({"sum": list(children), "weights": own})
        else:
            nodes.append({"product": list(children)})
    return nodes


def _describe(variable: Variable) -> dict[str, Any]:
    levels = [level.item() if isinstance(level, np.generic) else level for level in variable.levels]
    for level in levels:
        if not (level is None or isinstance(level, bool | int | float | str)):
            raise InvalidInput(
                f"variable {variable.name!r} has a level of type {type(level).__name__}, "
                f"{level!r}; only text, numbers, booleans and None have a form in JSON."
            )
    return {
        "name": variable.name,
        "kind": variable.kind.value,
        "levels": levels,
        "nullable": variable.nullable,
    }


def _listed(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Arrays as nested lists; infinite numbers, which JSON does not have, become text."""
    return {name: _json_numbers(array.tolist()) for name, array in arrays.items()}


def _json_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_numbers(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def read_circuit(
    text: str,
) -> tuple[list[dict[str, Any]], tuple[Column, ...], tuple[Univariate, ...]]:
    """Nodes with only their weights, the columns, and their distributions, from JSON."""
    try:
        document = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the text must be JSON; {error}.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidInput(f'the text must be a JSON object with "format": "{FORMAT}".')
    version = document.get("version")
    if version != VERSION:
        raise InvalidInput(
            f'"version" must be {VERSION}, which is what this knothole reads; got {version!r}.'
        )
    nodes = document.get("nodes")
    structure = read_nodes(nodes)  # type: ignore[arg-type]  # it checks what it is given
    entries = _entries(document.get("variables"), structure.names)
    columns, distributions = [], []
    for name, entry in entries.items():
        column = _column(name, entry)
        own = structure.leaf_nodes[structure.names.index(name)].tolist()
        parameters = {node: nodes[node] for node in own}  # type: ignore[index]
        columns.append(column)
        distributions.append(_distribution(column, entry, parameters))
    plain = weighted_nodes(structure, structure.weights)
    return plain, tuple(columns), tuple(distributions)


def _entries(entries: Any, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Descriptions of variables by name; there must be one for each of the circuit's variables."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput('"variables" must be a list of objects, one for each variable.')
    described = [entry.get("name") for entry in entries]
    texts = all(isinstance(name, str) for name in described)
    if not texts or len(set(described)) != len(described) or set(described) != set(names):
        raise InvalidInput(
            f'"variables" must name each variable of the leaves once, {sorted(names)}; got '
            f"{described}."
        )
    return dict(zip(described, entries, strict=True))


def _column(name: str, entry: dict[str, Any]) -> Column:
    kinds = [kind.value for kind in Kind]
    if entry.get("kind") not in kinds:
        raise InvalidInput(
            f'variable {name!r}: "kind" must be one of {kinds}; got {entry.get("kind")!r}.'
        )
    kind = Kind(entry["kind"])
    levels = entry.get("levels", [])
    if not isinstance(levels, list) or bool(levels) != (kind is Kind.CATEGORICAL):
        raise InvalidInput(
            f'variable {name!r}: "levels" must be a list, with levels where the kind is '
            f'"categorical" and none elsewhere; got {levels!r}.'
        )
    for level in levels:
        if isinstance(level, list | dict) or levels.count(level) > 1:
            raise InvalidInput(f"variable {name!r}: {level!r} must be a plain value, given once.")
    return Column(name, kind, tuple(levels), entry.get("nullable", False) is True)


def _distribution(
    column: Column, entry: dict[str, Any], nodes: dict[int, Mapping[str, Any]]
) -> Univariate:
    """The distribution of a variable, from its arrays or from its nodes' own parameters."""
    if "family" in entry:
        return _distribution_from_arrays(column, entry, len(nodes))
    if column.nullable or column.kind is Kind.INTEGER:
        raise InvalidInput(
            f'variable {column.name!r}: an integer or nullable variable must have "family" and '
            f'"arrays", as to_json writes them.'
        )
    if column.kind is Kind.CATEGORICAL:
        table = [_probabilities(node, own, column) for node, own in nodes.items()]
        probability = np.array(table).T
        return Categorical(log_of(probability), probability.mean(axis=1))
    moments = np.array([_moments(node, own) for node, own in nodes.items()])
    return Gaussian(0.0, 1.0, moments[:, 0].copy(), moments[:, 1] ** 2)


def _distribution_from_arrays(column: Column, entry: dict[str, Any], n_states: int) -> Univariate:
    family, arrays = entry["family"], entry.get("arrays")
    discrete = column.kind is Kind.CATEGORICAL
    if (
        not isinstance(family, str)
        or family not in FAMILIES
        or discrete != (family == Categorical.family)
    ):
        raise InvalidInput(
            f"variable {column.name!r} is {column.kind.value}; {family!r} is no family for it."
        )
    try:
        distribution = FAMILIES[family].from_arrays(
            {name: _array(own) for name, own in (arrays or {}).items()}
        )
        distribution.check(column.variable(0), n_states)
    except _BROKEN as error:
        raise InvalidInput(
            f'variable {column.name!r}: "arrays" do not make a {family} distribution ({error!r}).'
        ) from error
    return distribution


def _array(value: Any) -> NDArray[Any]:
    """The inverse of :func:`_listed` for one array."""
    if isinstance(value, str):
        return np.array(value)
    return np.array(value, dtype=np.float64)


def _probabilities(node: int, own: Mapping[str, Any], column: Column) -> Floats:
    size, given = len(column.levels), own.get("probabilities")
    probability = probabilities_from(given, size)
    if probability is None:
        raise broken(
            node, f"leaf of {column.name!r}", f'must have "probabilities": {size} numbers, one '
            f"for each level, none negative, that add up to 1; got {given!r}.",
        )  # fmt: skip
    return probability


def _moments(node: int, own: Mapping[str, Any]) -> tuple[float, float]:
    mean, sd = own.get("mean"), own.get("sd")
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
        for value in (mean, sd)
    )
    if mean is None or sd is None or not numbers or not sd > 0:
        rule = f'must have a finite "mean" and an "sd" above 0; got {mean!r} and {sd!r}.'
        raise broken(node, f"leaf of {own['leaf']!r}", rule)
    return float(mean), float(sd)
