"""The first calls on a new machine: kernels are compiled, on two cores, into an empty folder."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.kernels import compile_into

import knothole
from benchmarks.speed.setting import Ratio, wall

PACKAGE = Path(knothole.__file__).parent

SETTING = """
import sys
import numpy as np
import knothole as kh
from benchmarks.speed.setting import with_holes
from benchmarks.speed.wrap import continuous, fitted
model, X, y = fitted(continuous(1000, 8))
file, holes = sys.argv[1], with_holes(X[:100], 0.3)
"""
WRAPPING = SETTING + "robust = kh.wrap(model, X, y); robust.predict(holes); robust.save(file)"
ASKING = SETTING + "kh.load(file).predict(holes)"


def run():
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.knothole")
        # What the process does before, compiled or not.
        before = wall(lambda: process(SETTING, file, folder, PACKAGE.parent), 1)
        wheel = Path(folder, "wheel")
        shutil.copytree(PACKAGE, wheel / "knothole", ignore=shutil.ignore_patterns("__pycache__"))
        compile_into(wheel / "knothole" / "compiled" / "kernels")
        for place, origin in ((wheel, "the wheel's kernels"), (PACKAGE.parent, "nothing compiled")):
            for what, script, seconds in (
                ("wrap of 1,000 x 8 and a predict", WRAPPING, 15.0),
                ("the first predict of a loaded model", ASKING, 4.0),
            ):
                with tempfile.TemporaryDirectory() as kernels:
                    taken = wall(
                        lambda s=script, k=kernels, p=place: process(s, file, k, p), 1, warm=False
                    )
                yield Ratio(
                    "cold", f"{what}, {origin}, two cores", taken - before, seconds,
                    f"{seconds:g} seconds", 1.0,
                )  # fmt: skip


def process(script, file, kernels, package):
    """Run a script in a process that finds kernels in this folder only, and those of a wheel.

    Python's own bytecode is kept, as an installation leaves it; only kernels are not there.
    """
    environment = {
        **os.environ, "NUMBA_CACHE_DIR": str(kernels), "KNOTHOLE_THREADS": "2",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPATH": f"{package}{os.pathsep}{PACKAGE.parent.parent}",
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", script, file], env=environment, check=True)
