"""The first calls on a new machine: kernels are compiled, on two cores, into an empty folder."""

import os
import subprocess
import sys
import tempfile

from benchmarks.speed.setting import Ratio, wall

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
        before = wall(lambda: process(SETTING, file, folder), 1)
        for what, script, seconds in (
            ("wrap of 1,000 x 8 and a predict", WRAPPING, 15.0),
            ("the first predict of a loaded model", ASKING, 4.0),
        ):
            with tempfile.TemporaryDirectory() as kernels:
                taken = wall(lambda s=script, k=kernels: process(s, file, k), 1, warm=False)
            yield Ratio(
                "cold", f"{what}, nothing compiled, two cores", taken - before, seconds,
                f"{seconds:g} seconds", 1.0,
            )  # fmt: skip


def process(script, file, kernels):
    """Run a script in a process that finds kernels in this folder only."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": kernels, "KNOTHOLE_THREADS": "2"}
    subprocess.run([sys.executable, "-c", script, file], env=environment, check=True)
