"""``python -m tools.sealed [PYTEST ARGUMENTS]``: tests where nothing can be kept.

As in a hardened container: the package lies where nobody may write, not even root (what would be
``__pycache__`` is a file), and there is no HOME and no cache of the user's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.mutants.__main__ import copy_tree


def seal(folder: Path) -> None:
    """Let nothing be written into a tree but its own top, where tests run."""
    for cache in list(folder.rglob("__pycache__")):
        if cache.is_dir():
            shutil.rmtree(cache)
        else:  # of a tree that is sealed already
            cache.unlink()
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        (inner / "__pycache__").touch()
        inner.chmod(0o555)


def opened(folder: Path) -> None:
    """Undo it, so that the tree can be removed."""
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        inner.chmod(0o755)


def run(folder: Path, arguments: list[str]) -> int:
    """Tests in a tree that is sealed."""
    left_out = ("HOME", "XDG_", "MPLCONFIGDIR", "PYTHONPYCACHEPREFIX")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    (folder / "file").touch()
    environment |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"XDG_CACHE_HOME": str(folder / "file" / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run([*command, *arguments], cwd=folder, env=environment).returncode


def main() -> None:
    """Copy the tree, seal it, run tests there."""
    with tempfile.TemporaryDirectory(prefix="sealed-") as name:
        folder = Path(name)
        copy_tree(folder)
        seal(folder)
        try:
            code = run(folder, sys.argv[1:])
        finally:
            opened(folder)
        kept = list(folder.rglob("*.pyc"))
    if kept:
        sys.exit(f"kept in spite of all: {kept[0]}")
    sys.exit(code)


if __name__ == "__main__":
    main()
