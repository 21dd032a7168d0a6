"""Kernels that a process is compiling: others that want them wait, and take them from disk.

A claim is a lock on one byte of a file beside the kernels. It ends with the process, however that
ends. Where there are no such locks, both compile, as if there were no claims.
"""

from __future__ import annotations

import os
import time
import zlib
from contextlib import suppress
from functools import cache
from typing import Any

locks: Any = None
with suppress(ImportError):  # there are none on Windows
    import fcntl

    locks = fcntl

#: What is locked, a byte a kernel and its types.
FILE = ".claims"
BYTES = 2**31
# How long another is waited for, which may have been stopped, and how often it is looked at.
LONGEST, PAUSE = 60.0, 0.01


def claim(folder: str, kernel: str) -> None:
    """Have a kernel to oneself, once whoever has it now has compiled it."""
    end = time.monotonic() + LONGEST
    with suppress(OSError):
        while not _locked(folder, kernel) and time.monotonic() < end:
            time.sleep(PAUSE)


def release(folder: str, kernel: str) -> None:
    """Let others have it."""
    with suppress(OSError):
        if locks is not None:
            locks.lockf(_file(folder), locks.LOCK_UN, 1, _place(kernel))


def _locked(folder: str, kernel: str) -> bool:
    if locks is None:
        return True
    try:
        locks.lockf(_file(folder), locks.LOCK_EX | locks.LOCK_NB, 1, _place(kernel))
    except (BlockingIOError, PermissionError):  # both are words for a lock of another's
        return False
    return True


@cache
def _file(folder: str) -> int:
    """Open for as long as the process lives: to close it would end all claims in it."""
    return os.open(os.path.join(folder, FILE), os.O_RDWR | os.O_CREAT, 0o600)


def _place(kernel: str) -> int:
    return zlib.crc32(kernel.encode()) % BYTES
