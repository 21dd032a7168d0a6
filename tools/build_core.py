"""``python -m tools.build_core [CMAKE OPTIONS]``: build the compiled core in a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(root: Path = ROOT, *options: str) -> None:
    """Configure and build the core of a tree into its ``src/knothole/_core``."""
    scripts = Path(sys.executable).parent
    folder = root / "out" / "core"
    configure = [
        scripts / "cmake", "-S", root / "core", "-B", folder, "-G", "Ninja",
        "-DKNOTHOLE_IN_PLACE=ON", f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", *options,
    ]  # fmt: skip
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([scripts / "cmake", "--build", folder], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    build(ROOT, *sys.argv[1:])
