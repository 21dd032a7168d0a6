"""Files that are there as a whole or not at all: written beside their place, then moved there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from knothole.errors import InvalidInput


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
        temporary.unlink(missing_ok=True)
        raise
