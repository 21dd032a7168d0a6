"""Files that are there as a whole or not at all, and the container of knothole's own files.

A file is written beside its place and then moved there, so that there is never half a file. A
container is a zip of plain arrays (npz) with a JSON header that names the format and its version.
Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile, InvalidInput

HEADER = "header.json"

# What reading a file that is not what it should be can raise.
_BROKEN = (OSError, ValueError, KeyError, TypeError, EOFError, IndexError, zipfile.BadZipFile,
           zlib.error, NotImplementedError)  # fmt: skip


def check_output(path: Path, *inputs: Path) -> None:
    """Refuse, before any work is done, a place that cannot be written or that is an input."""
    if path.is_dir():
        raise InvalidInput(f"{path}: is a directory; give the name of a file in it.")
    folder = path.parent
    if not folder.is_dir():
        raise InvalidInput(f"{path}: there is no directory {str(folder)!r}; create it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInput(
            f"{path}: the directory {str(folder)!r} may not be written to; choose another with "
            f"--output, or change its permissions."
        )
    for other in inputs:
        if path.exists() and other.exists() and path.samefile(other):
            raise InvalidInput(f"{path}: would overwrite an input; choose another --output.")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, with the same suffixes; moved to ``path`` at the end if all went well."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_container(path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Arrays and a JSON header, with its "format" and "version", into one file."""
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    everything: dict[str, Any] = {HEADER: text, **arrays}
    try:
        with whole_file(path) as temporary, open(temporary, "xb") as file:
            np.savez_compressed(file, **everything)
    except OSError as error:
        reason = (
            f"{error.strerror or error}; save to a folder that exists and that you may write to"
        )
        raise type(error)(error.errno, reason, str(path)) from error


def read_container(
    path: Path, kind: str, version: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a container of this format and no later version."""
    if path.is_dir():
        raise DamagedFile(f"{path}: a directory. Pass the file in it that save() wrote.")
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            header = json.loads(arrays.pop(HEADER).tobytes())
        except _BROKEN as error:
            raise DamagedFile(
                f"{path}: truncated, damaged, or not a file of knothole ({error})."
            ) from error
    found = header.get("format") if isinstance(header, dict) else None
    if found != kind:
        holds = f"a {found}" if isinstance(found, str) else "something else"
        raise DamagedFile(f"{path}: not a {kind}, but {holds}.")
    written = header.get("version")
    if not isinstance(written, int) or written > version:
        raise DamagedFile(
            f"{path}: written by a newer knothole (format {written}; this one reads up to "
            f"{version}). Update knothole."
        )
    return header, arrays


@contextmanager
def fitting_together(path: Path) -> Iterator[None]:
    """Whatever goes wrong in here goes wrong because the file's parts do not fit together."""
    try:
        yield
    except DamagedFile:
        raise
    except _BROKEN as error:
        raise DamagedFile(f"{path}: its parts do not fit together ({error!r}).") from error
