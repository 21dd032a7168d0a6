"""The JSON form of a circuit; :class:`~knothole.densities.circuit.density.Circuit` documents it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Column, Kind, Variable
from knothole.densities.circuit.nodes import Structure, broken, distribution, read_nodes
from knothole.densities.univariate import FAMILIES, Categorical, Emission, Gaussian
from knothole.densities.univariate.table import log_of
from knothole.errors import InvalidInput

FORMAT = "knothole circuit"
VERSION = 1
# What building an emission from arrays that do not fit together can raise.
_BROKEN = (KeyError, ValueError, TypeError, IndexError, AttributeError)


@dataclass(frozen=True, eq=False)
class Document:
    """What a JSON text says: nodes with weights alone, columns, an emission for each of them."""

    nodes: list[dict[str, Any]]
    columns: tuple[Column, ...]
    emissions: tuple[Emission, ...]


def write_circuit(
    structure: Structure,
    weights: Floats,
    variables: Sequence[Variable],
    emissions: Sequence[Emission],
) -> str:
    """A circuit as text."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "variables": [
            {**_describe(variable), "family": emission.family, "arrays": _listed(emission.arrays())}
            for variable, emission in zip(variables, emissions, strict=True)
        ],
        "nodes": weighted_nodes(structure, weights),
    }
    return json.dumps(document, allow_nan=False)


def weighted_nodes(structure: Structure, weights: Floats) -> list[dict[str, Any]]:
    """Nodes as plain mappings, with these weights."""
    nodes: list[dict[str, Any]] = []
    for node, children in enumerate(structure.children):
        if node in structure.emission:
            nodes.append({"leaf": structure.names[structure.emission[node][0]]})
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
    """Arrays as nested lists; JSON has no infinite numbers, so those are text."""
    return {name: _json_numbers(array.tolist()) for name, array in arrays.items()}


def _json_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_numbers(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def read_circuit(text: str) -> Document:
    """Parse and check a circuit's text."""
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
    columns, emissions = [], []
    for name, entry in entries.items():
        column = _column(name, entry)
        own = structure.emission_nodes[structure.names.index(name)].tolist()
        parameters = {node: nodes[node] for node in own}  # type: ignore[index]
        columns.append(column)
        emissions.append(_emission(column, entry, parameters))
    plain = weighted_nodes(structure, structure.weights)
    return Document(plain, tuple(columns), tuple(emissions))


def _entries(entries: Any, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Descriptions of variables by name: each of the circuit's, and no other."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput('"variables" must be a list of objects, one for each variable.')
    described = [entry.get("name") for entry in entries]
    texts = all(isinstance(name, str) for name in described)
    if not texts or len(set(described)) != len(described) or set(described) != set(names):
        raise InvalidInput(
            f'"variables" must name each variable of the emissions once, {sorted(names)}; got '
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


def _emission(
    column: Column, entry: dict[str, Any], nodes: dict[int, Mapping[str, Any]]
) -> Emission:
    """The emission of a variable, from its arrays or from its nodes' own parameters."""
    if "family" in entry:
        return _emission_from_arrays(column, entry, len(nodes))
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


def _emission_from_arrays(column: Column, entry: dict[str, Any], n_states: int) -> Emission:
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
        emission = FAMILIES[family].from_arrays({name: _array(own) for name, own in arrays.items()})  # type: ignore[union-attr]
        emission.check(column.variable(0), n_states)
    except _BROKEN as error:
        raise InvalidInput(
            f'variable {column.name!r}: "arrays" do not make a {family} emission ({error!r}).'
        ) from error
    return emission


def _array(value: Any) -> NDArray[Any]:
    """The inverse of what :func:`_listed` does to one array."""
    if isinstance(value, str):
        return np.array(value)
    return np.array(value, dtype=np.float64)


def _probabilities(node: int, own: Mapping[str, Any], column: Column) -> Floats:
    size, given = len(column.levels), own.get("probabilities")
    probability = distribution(given, size)
    if probability is None:
        raise broken(
            node, f"emission of {column.name!r}", f'must have "probabilities": {size} numbers, one '
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
        raise broken(node, f"emission of {own['leaf']!r}", rule)
    return float(mean), float(sd)
