"""One file for a density: a zip of plain arrays (npz) with a JSON header. Nothing is unpickled.

The header names the format, its version, the class and its parameters; the fitted values come
from :meth:`Density.state`. Reading and writing of files is in :mod:`knothole.files`.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile, InvalidInput
from knothole.files import fitting_together, read_container, write_container

if TYPE_CHECKING:
    from knothole.densities.base import Density

FORMAT = "knothole density"
VERSION = 1

#: Module of each class that a file may name; other classes are refused.
CLASSES = {
    "Factorized": "knothole.densities.mixture.density",
    "Mixture": "knothole.densities.mixture.density",
    "LatentTree": "knothole.densities.latent_tree.density",
    "GaussianMixture": "knothole.densities.gaussian.density",
    "Circuit": "knothole.densities.circuit.density",
}


def save(density: Density, path: str | os.PathLike[str]) -> None:
    """Write a fitted density to one file.

    A ``random_state`` that is not an integer is not stored: the loaded density has None.
    """
    header, arrays = describe_density(density)
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
    return density_from(header, arrays, path)


def describe_density(density: Density) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A density as a dictionary for JSON, and arrays; the inverse of :func:`density_from`."""
    name = type(density).__name__
    if name not in CLASSES:
        raise InvalidInput(f"a {name} cannot be saved; these can: {list(CLASSES)}.")
    state, arrays = density.state()
    return {"class": name, "parameters": _parameters(density), "state": state}, arrays


def density_from(header: dict[str, Any], arrays: dict[str, NDArray[Any]], path: Path) -> Density:
    """The density that :func:`describe_density` described; ``path`` is for messages."""
    name = header.get("class")
    if not isinstance(name, str) or name not in CLASSES:
        raise DamagedFile(f"{path}: holds a {name!r}, which is no density.")
    cls = getattr(importlib.import_module(CLASSES[name]), name)
    with fitting_together(path):
        density: Density = cls(**header["parameters"])
        density.restore(header["state"], arrays)
        density.check()
        return density


def _parameters(density: Density) -> dict[str, Any]:
    parameters = density.get_params(deep=False)
    if not isinstance(parameters.get("random_state"), int):
        parameters["random_state"] = None
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in parameters.items()
    }
