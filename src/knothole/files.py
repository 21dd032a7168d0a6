"""Files that are written completely or not at all, and the container of knothole's own files.

A file is written under a temporary name beside its place and then moved, so there is never half a
file. A container is a zip of plain arrays (npz) with a JSON header that names the format and its
version. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from knothole.errors import DamagedFile, InvalidInput

try:
    import fcntl
except ImportError:  # pragma: no cover: Windows, where nobody can delete an open file
    fcntl = None  # type: ignore[assignment]

HEADER = "header.json"

# Limits of what a file may unpack to: so many bytes, and beyond that a multiple of its own size.
# Deflate can reach a thousand; trees and densities are far from that.
ALWAYS_FINE = 2**26
MOST_RATIO = 100
# The same for the header, in bytes and in values: once parsed, a value takes a hundred bytes. A
# category has three values, and takes three bytes of a file.
HEADER_BYTES, HEADER_BYTES_RATIO = 2**24, 32
HEADER_VALUES, HEADER_VALUES_RATIO = 2**20, 2
# Kinds of arrays in files: flags, numbers, text. Objects would have to be unpickled.
KINDS = "biufU"


def check_output(path: Path, *inputs: Path) -> None:
    """Refuse, before any work is done, an output path that is unwritable or that is an input."""
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
    """A temporary path with the same suffixes, moved to ``path`` at the end if all went well.

    Links are followed, and a replaced file's permissions are preserved. Temporary files left by a
    process that was killed are removed: a file is locked only while it is being written.
    """
    place = Path(os.path.realpath(path))
    _sweep(place.parent, path.name)
    temporary, descriptor = _locked(place.parent, path.name)
    try:
        yield temporary
        _synchronize(temporary)  # otherwise a power loss could leave an empty file under the name
        with suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(place.stat().st_mode))
        os.replace(temporary, place)
        with suppress(OSError):  # a folder cannot be opened on Windows
            _synchronize(place.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(descriptor)


def _synchronize(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that it survives a power loss."""
    # Windows synchronizes only what is open for writing.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(folder: Path, name: str) -> tuple[Path, int]:
    """A new file, locked until its descriptor is closed."""
    while True:
        temporary = folder / f".{uuid.uuid4().hex}.{name}"
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        _lock(descriptor, wait=True)
        if temporary.exists():  # otherwise another process removed it before it was locked
            return temporary, descriptor
        os.close(descriptor)


def _sweep(folder: Path, name: str) -> None:
    """Remove temporary files of :func:`whole_file` for this name whose processes have ended."""
    with suppress(OSError):
        beside = [one for one in os.listdir(folder) if one.endswith(f".{name}")]
        for left in beside:
            if re.fullmatch(r"\.[0-9a-f]{32}", left.removesuffix(f".{name}")):
                with suppress(OSError):
                    _remove_unlocked(folder / left)


def _remove_unlocked(path: Path) -> None:
    """Remove a regular file that is not locked; a pipe of that name is not opened."""
    flags = (getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW"))
    descriptor = os.open(path, sum(flags, os.O_RDONLY))
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and _lock(descriptor, wait=False):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    """Lock a file until it is closed; False if it is locked, or if locks are not supported."""
    with suppress(OSError):
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return True
    return False


def write_container(path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays and a JSON header, which has "format" and "version", to one file."""
    text = json.dumps(header).encode()
    everything: dict[str, Any] = {HEADER: np.frombuffer(text, dtype=np.uint8), **arrays}
    try:
        with whole_file(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **everything)
            _check_header(text, file.tell())  # what could not be read back is not written
    except OSError as error:
        reason = (
            f"{error.strerror or error}; save to a folder that exists and that you may write to"
        )
        raise type(error)(error.errno, reason, str(path)) from error


def read_container(
    path: Path, kind: str, version: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a container of this format, up to this version."""
    check_regular(path)
    with (
        open(path, "rb") as file,
        _as_damage(path, "truncated, damaged, or not a file of knothole"),
    ):
        arrays = _arrays(file)
        text = arrays.pop(HEADER).tobytes()
        _check_header(text, os.fstat(file.fileno()).st_size)
        header = json.loads(text, object_pairs_hook=without_doubles)
    found = header.get("format") if isinstance(header, dict) else None
    if found != kind:
        holds = f"a {found}" if isinstance(found, str) else "something else"
        raise DamagedFile(f"{path}: not a {kind}, but {holds}.")
    written = header.get("version")
    if type(written) is not int or written < 1:
        raise DamagedFile(f"{path}: there is no version {written!r} of this format.")
    if written > version:
        raise DamagedFile(
            f"{path}: written by a newer knothole (format {written}; this one reads up to "
            f"{version}). Update knothole."
        )
    return header, arrays


def check_regular(path: Path) -> None:
    """Refuse anything but a regular file before opening it: a pipe or device may never end."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise DamagedFile(f"{path}: a directory. Pass the file in it that save() wrote.")
    if not stat.S_ISREG(mode):
        raise DamagedFile(f"{path}: a pipe or device, not a file. Copy it to a file first.")


def fitting_together(path: Path) -> Any:
    """Report any error inside as parts of the file that do not fit together."""
    return _as_damage(path, "its parts do not fit together")


@contextmanager
def _as_damage(path: Path, problem: str) -> Iterator[None]:
    """Report any error inside as a damaged file, which can cause errors of every kind."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DamagedFile as error:
        already = str(error).startswith(f"{path}: ")
        raise error if already else DamagedFile(f"{path}: {problem} ({error}).") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFile(f"{path}: {problem} ({reason}).") from error


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; duplicate names are refused, of which Python would take the last."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise DamagedFile("an entry is there twice")
    return entries


def _check_header(text: bytes, length: int) -> None:
    """Refuse, before it is parsed, a header that would use far more memory than its file.

    Every value except the first of an object or a list follows a comma; commas within texts are
    counted too.
    """
    n_values = sum(map(text.count, (b",", b"{", b"[")))
    for n, what, always_fine, ratio in (
        (len(text), "bytes", HEADER_BYTES, HEADER_BYTES_RATIO),
        (n_values, "values", HEADER_VALUES, HEADER_VALUES_RATIO),
    ):
        if n > max(always_fine, ratio * length):
            raise DamagedFile(f"its header has {n:,} {what}, far more than its length makes likely")


def _arrays(file: Any) -> dict[str, NDArray[Any]]:
    """All arrays of an archive, none larger than its header says or than the file makes likely."""
    room = max(ALWAYS_FINE, MOST_RATIO * os.fstat(file.fileno()).st_size)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(set(names)) < len(names):
            raise DamagedFile("a member is there twice")
        if sum(member.file_size for member in members) > room:
            raise DamagedFile("it would unpack to far more than its length makes likely")
        return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, in this machine's byte order and C order; nothing is unpickled."""
    if not member.filename.endswith(".npy") or member.flag_bits & 1:
        raise DamagedFile(f"{member.filename!r} is encrypted, or no array")
    with archive.open(member) as content:
        major, _ = npy.read_magic(content)
        read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, by_column, dtype = read(content)
        length = math.prod(shape) * dtype.itemsize
        sound = dtype.kind in KINDS and min(shape, default=0) >= 0
        if not sound or length != member.file_size - content.tell():
            raise DamagedFile(f"{member.filename!r} does not hold {dtype} of shape {shape}")
        flat = np.frombuffer(content.read(length), dtype)
        if len(flat) != math.prod(shape):
            raise DamagedFile(f"{member.filename!r} ends too early")
    array = flat.reshape(shape, order="F" if by_column else "C")
    return np.array(array, dtype=dtype.newbyteorder("="), order="C")
