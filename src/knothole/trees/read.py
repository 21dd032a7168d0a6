"""``read`` and ``write``: between a library's model or model file and a checked ensemble."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from knothole.errors import DamagedFile, InvalidInput, KnotholeError, ReaderMismatch
from knothole.trees import quarantine, verify
from knothole.trees.ensemble import Ensemble
from knothole.trees.libraries import ModelReading, library_of, reader_of

# Libraries whose models do not store the names of categories as tables have them.
NAMED_BY_TABLES = ("catboost", "interpret")
# What a parser can raise on a damaged file, while it indexes, converts and reshapes.
_SYMPTOMS = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip


def read(model: Any) -> Ensemble:
    """Read a fitted tree model, or a file that its library saved.

    Parameters
    ----------
    model : object or path
        A fitted model of a supported library (see :mod:`knothole.trees.readers`), or the path of
        a model file.

    Returns
    -------
    Ensemble
        Checked: it reproduces the library's own margins and leaves on probe rows; otherwise
        :class:`~knothole.errors.ReaderMismatch` is raised.
    """
    reading = reading_of(model)
    verify.verify(reading)
    return reading.ensemble


def reading_of(model: Any) -> ModelReading:
    """Read a model, or a file at a path, without checking it.

    The replay of a file runs the library in a separate process.
    """
    library = library_of(model)
    reader = reader_of(library)
    is_file = isinstance(model, (str, os.PathLike))
    where = str(Path(model)) if is_file else reader.LIBRARY
    try:
        if is_file and library != "own":
            path = Path(model)
            ensemble: Ensemble = reader.read_file(path)
            return ModelReading(ensemble, lambda X: quarantine.replay(library, path, X))
        # Files of user-defined trees involve no library that they could crash.
        reading: ModelReading = reader.read(reader.load(Path(model)) if is_file else model)
        return reading
    except DamagedFile as error:
        if str(error).startswith(f"{where}: "):
            raise
        raise DamagedFile(f"{where}: {error}. {reader.WAY_OUT}") from error
    except KnotholeError:
        raise  # some of ours are ValueErrors and TypeErrors too, and say more
    except _SYMPTOMS as error:
        if not is_file:
            raise
        raise DamagedFile(
            f"{where}: the file is damaged or not of a format this version reads "
            f"({type(error).__name__}: {error}). {reader.WAY_OUT}"
        ) from error


def name_levels(ensemble: Ensemble, table: Any) -> Ensemble:
    """The ensemble with its categories named as in its training table.

    For libraries that do not store the names: CatBoost stores hashes, interpret texts.
    """
    if ensemble.library not in NAMED_BY_TABLES:
        return ensemble
    named: Ensemble = reader_of(ensemble.library).name_levels(ensemble, table)
    return named


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` that predicts what ``ensemble`` predicts.

    Parameters
    ----------
    model : object
        The fitted model that ``ensemble`` was read from; it is not changed.
    ensemble : Ensemble
        The same trees with other leaf values (:meth:`Ensemble.with_values`).

    Returns
    -------
    object
        A model of the same class, read back and compared. Libraries that keep leaf values in
        float32 (XGBoost) round them: relative error at most 6e-8 per leaf. LightGBM turns those
        within 1e-35 of zero into 0.
    """
    original = read(model)
    if original.value.shape != ensemble.value.shape or not np.array_equal(
        original.feature, ensemble.feature
    ):
        raise InvalidInput("ensemble was not read from this model: its trees are others.")
    reader = reader_of(library_of(model))
    copy = reader.write(model, original.with_values(ensemble.value))
    written = read(copy)
    unit = np.finfo(ensemble.precision).eps
    nothing = getattr(reader, "ROUNDED_TO_ZERO", float(np.finfo(np.float32).tiny))
    if not np.allclose(written.value, ensemble.value, rtol=unit, atol=nothing):
        difference = np.abs(written.value - ensemble.value)
        worst = np.unravel_index(difference.argmax(), difference.shape)
        raise ReaderMismatch(
            f"{ensemble.library}: leaf {worst[0]} was to hold {ensemble.value[worst]!r}, but the "
            f"written model holds {written.value[worst]!r}."
        )
    return copy
