"""The first calls of a fresh process: wrap, load and a first answer, a command that fails."""

import os
import resource
import subprocess
import sys
import tempfile
import time

from benchmarks.speed.setting import Ratio

ROWS = """
import numpy as np
rng = np.random.default_rng(0)
X = rng.normal(size=(1000, 8)) + rng.normal(size=(1000, 1))
asked = np.where(rng.random((100, 8)) < 0.3, np.nan, X[:100])
"""
TRAINING = (
    ROWS
    + """
import sys
import xgboost
y = X.sum(axis=1) + X[:, 0] * X[:, 1]
model = xgboost.XGBRegressor(n_estimators=150, max_depth=5, n_jobs=1).fit(X, y)
"""
)
WRAPPING = (
    TRAINING
    + """
import knothole as kh
robust = kh.wrap(model, X, y)
robust.predict(asked)
robust.save(sys.argv[1])
"""
)
#: The same again in the same process: what is left over is what only a first call takes.
AGAIN = (
    WRAPPING
    + """
robust = kh.wrap(model, X, y)
robust.predict(asked)
"""
)
LOADING = """
import sys
import numpy as np
import knothole as kh
kh.load(sys.argv[1]).predict(np.array([[0.1, np.nan, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]]))
"""
#: What resource usage says of a child begins with the memory of its parent.
MEMORY = """
from pathlib import Path
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
REPEATS = 5


def run():
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.knothole")
        training, first, twice = (process("-c", each, file) for each in (TRAINING, WRAPPING, AGAIN))
        yield Ratio(
            "cold", "wrap of 1,000 x 8 and a predict, beyond the same once more",
            max(2 * first - training - twice, 0.0), 1.5, "1.5 seconds", 1.0,
        )  # fmt: skip
        numpy_alone, loading = process("-c", "import numpy"), process("-c", LOADING, file)
        told = subprocess.check_output([sys.executable, "-c", LOADING + MEMORY, file])
        yield Ratio(
            "cold", "kh.load and a first answer for one row, beyond importing numpy",
            loading - numpy_alone, 0.3, "0.3 seconds", 1.0,
        )  # fmt: skip
        yield Ratio(
            "cold",
            "the same: resident memory of the process",
            1024 * int(told) / 1e6,
            100.0,
            "100 MB",
            1.0,
        )
        failing = min(command_cpu("predict", "missing.knothole", "missing.csv") for _ in range(3))
        yield Ratio(
            "cold", "knothole predict on a missing file, CPU", failing, 0.5, "0.5 seconds", 1.0
        )


def process(*arguments):
    """Wall seconds of a Python process: the least of some."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def command_cpu(*arguments):
    """Seconds of CPU of a command that fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "knothole", *arguments], capture_output=True)
    assert done.returncode != 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
