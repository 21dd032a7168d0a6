"""One file for a density: a zip of plain arrays (npz) with a JSON header. Nothing is unpickled.

The header names the format, its version, the class, and its parameters; what a density has
learned comes from :meth:`Density.state`. How files are written and read is in
:mod:`knothole.files`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Hashable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile, InvalidInput
from knothole.files import fitting_together, read_container, write_container
from knothole.tables.columns import Block, Column, Columns, Kind, Variable

if TYPE_CHECKING:
    from knothole.densities.base import Density

FORMAT = "knothole density"
VERSION = 1

#: Where each class that a file may name lives; a file can name no other.
CLASSES = {
    "Factorized": "knothole.densities.mixture.density",
    "Mixture": "knothole.densities.mixture.density",
    "LatentTree": "knothole.densities.latent_tree.density",
    "GaussianMixture": "knothole.densities.gaussian.density",
    "Circuit": "knothole.densities.circuit.density",
}

# Parameters that had another name in files of earlier commits.
RENAMED = {"leaves": "families"}

#: Levels that are more than a value, likewise: dataclasses of plain values.
LEVELS = {"HashedLevel": "knothole.trees.libraries.catboost.categories"}


def save(density: Density, path: str | os.PathLike[str]) -> None:
    """Write a fitted density to one file.

    A ``random_state`` that is not a whole number is not kept: the loaded density has None.
    """
    header, arrays = describe(density)
    write_container(Path(path), {"format": FORMAT, "version": VERSION, **header}, arrays)


def load(path: str | os.PathLike[str]) -> Density:
    """Read a density that :func:`save` wrote.

    Raises
    ------
    DamagedFile
        Where the file is truncated, corrupt, of another format, or from a newer version.
    """
    path = Path(path)
    header, arrays = read_container(path, FORMAT, VERSION)
    return restored(header, arrays, path)


def describe(density: Density) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A density as a dictionary for JSON, and arrays; the inverse of :func:`restored`."""
    name = type(density).__name__
    if name not in CLASSES:
        raise InvalidInput(f"a {name} cannot be saved; these can: {list(CLASSES)}.")
    state, arrays = density.state()
    return {"class": name, "parameters": _parameters(density), "state": state}, arrays


def restored(header: dict[str, Any], arrays: dict[str, NDArray[Any]], path: Path) -> Density:
    """The density that :func:`describe` described; ``path`` is for messages."""
    name = header.get("class")
    if name not in CLASSES:
        raise DamagedFile(f"{path}: holds a {name!r}, which is no density.")
    cls = getattr(importlib.import_module(CLASSES[name]), name)
    with fitting_together(path):
        parameters = {RENAMED.get(key, key): value for key, value in header["parameters"].items()}
        density: Density = cls(**parameters)
        density.restore(header["state"], arrays)
        return density


# ---- columns in JSON ----------------------------------------------------------------------------


def describe_columns(columns: Columns) -> dict[str, Any]:
    """For JSON; the inverse of :func:`columns_from`."""
    return {
        "columns": [describe_column(column) for column in columns],
        "blocks": [[block.name, list(block.columns), block.baseline] for block in columns.blocks],
        "named": columns.named,
    }


def columns_from(description: dict[str, Any]) -> Columns:
    """From JSON."""
    return Columns(
        tuple(column_from(column) for column in description["columns"]),
        tuple(
            Block(name, tuple(columns), baseline)
            for name, columns, baseline in description["blocks"]
        ),
        description["named"],
    )


def describe_column(column: Column | Variable) -> dict[str, Any]:
    """For JSON; the inverse of :func:`column_from`."""
    return {
        "name": column.name,
        "kind": column.kind.value,
        "levels": [describe_level(level, column.name) for level in column.levels],
        "nullable": column.nullable,
    }


def column_from(description: dict[str, Any]) -> Column:
    """From JSON."""
    levels = tuple(level_from(level) for level in description["levels"])
    return Column(
        description["name"], Kind(description["kind"]), levels, bool(description["nullable"])
    )


def describe_level(level: Hashable, column: str) -> list[Any]:
    """A level with the name of its type: 1, 1.0, True and "1" are different ones."""
    if isinstance(level, np.generic):
        level = level.item()
    if level is None or type(level) in (bool, int, str):
        return [type(level).__name__, level]
    if type(level) is float:
        return ["float", level.hex()]
    if type(level).__name__ in LEVELS:
        return [type(level).__name__, asdict(level)]  # type: ignore[call-overload]
    raise InvalidInput(
        f"column {column!r} has a level of type {type(level).__name__}, {level!r}; only text, "
        f"numbers, booleans and None can be stored."
    )


def level_from(description: list[Any]) -> Hashable:
    """From JSON."""
    kind, value = description
    if kind == "float":
        return float.fromhex(value)
    if kind in LEVELS:
        made: Hashable = getattr(importlib.import_module(LEVELS[kind]), kind)(**value)
        return made
    level: Hashable = value
    if type(level).__name__ != kind:
        raise DamagedFile(f"level {value!r} is not of type {kind}.")
    return level


def _parameters(density: Density) -> dict[str, Any]:
    parameters = density.get_params(deep=False)
    if not isinstance(parameters.get("random_state"), int):
        parameters["random_state"] = None
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in parameters.items()
    }
