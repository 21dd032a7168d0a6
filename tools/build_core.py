"""``python -m tools.build_core``: build the compiled core in place, for work in a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(*options: str) -> None:
    """Configure and build ``core/`` into ``src/knothole/_core``."""
    scripts = Path(sys.executable).parent
    folder = ROOT / "out" / "core"
    configure = [
        scripts / "cmake", "-S", ROOT / "core", "-B", folder, "-G", "Ninja",
        "-DKNOTHOLE_IN_PLACE=ON", f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", *options,
    ]  # fmt: skip
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([scripts / "cmake", "--build", folder], check=True)


if __name__ == "__main__":
    build(*sys.argv[1:])
