"""The library's own answer to a model *file*, from a process of its own.

A damaged file can crash the library that loads it, or hang it. Here that ends a child process, and
becomes an exception.
"""

from __future__ import annotations

import io
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile
from knothole.trees.readers import Replay

TIMEOUT = 120.0  # seconds


def replay(name: str, path: Path, X: NDArray[np.float64]) -> Replay:
    """Load ``path`` with the library of reader module ``name`` and let it answer rows ``X``."""
    rows = io.BytesIO()
    np.save(rows, X, allow_pickle=False)
    command = [sys.executable, "-W", "ignore", "-m", __name__, name, str(path)]
    try:
        child = subprocess.run(command, input=rows.getvalue(), capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise DamagedFile(f"{path}: loading it took longer than {TIMEOUT:.0f} s.") from error
    if child.returncode != 0:
        lines = child.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise DamagedFile(
            f"{path}: the library itself could not load it and predict (exit code "
            f"{child.returncode}: {lines[-1]})."
        )
    with np.load(io.BytesIO(child.stdout), allow_pickle=False) as answer:
        return Replay(answer["margin"], answer.get("leaves"))


def _main(name: str, path: str) -> None:
    rows = np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False)
    stdout, sys.stdout = sys.stdout, sys.stderr  # libraries print; the answer must stay clean
    module = import_module(f"knothole.trees.readers.{name}")
    answer = module.read(module.load(Path(path))).replay(rows)
    arrays = {"margin": answer.margin}
    if answer.leaves is not None:
        arrays["leaves"] = answer.leaves
    np.savez(stdout.buffer, **arrays)


if __name__ == "__main__":
    _main(*sys.argv[1:])
