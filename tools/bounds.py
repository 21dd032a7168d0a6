"""``python -m tools.bounds [PYTEST ARGUMENTS]``: the main paths with every index checked.

numba checks the bounds of arrays if NUMBA_BOUNDSCHECK is set; kernels are compiled anew for that,
into a folder of their own. An index out of bounds is an IndexError, and fails the test.

What it cannot see: the walks of mixtures, latent trees and circuits
(:mod:`knothole.expectation.exact`, :mod:`knothole.expectation.circuit`) turn their arrays into
bare pointers,
which have no length. What is handed to them is checked: the arrays of files by ``check()``, and the
answers by enumeration.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Reading, walking, learning, drawing, tuning: one file of tests for each.
MAIN_PATHS = (
    "tests/trees/test_traverse.py",
    "tests/trees/test_regions.py",
    "tests/densities/test_density_contract.py",
    "tests/densities/test_gaussian_mixture.py",
    "tests/densities/test_latent_tree.py",
    "tests/densities/test_circuit.py",
    "tests/expectation/test_enumeration.py",
    "tests/expectation/test_edges.py",
    "tests/leaves/test_propositions.py",
    "tests/leaves/test_quantile_losses.py",
    "tests/inspection/test_conformal.py",
    "tests/test_robust_io.py",
)

# A kernel of ours that reads beyond the end: bounds are checked at all.
PROBE = """
from knothole.compiled.policy import njit

@njit
def beyond(x):
    return x[len(x)]
"""


def checked(folder: Path, environment: dict[str, str]) -> bool:
    """Whether indices are checked in kernels that are compiled by our policy."""
    (folder / "probe.py").write_text(PROBE)
    command = [sys.executable, "-c", "import numpy, probe; probe.beyond(numpy.zeros(3))"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return "IndexError" in done.stderr


def main() -> None:
    """Run the tests so."""
    with tempfile.TemporaryDirectory(prefix="bounds-") as cache:
        environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache}
        if not checked(Path(cache), environment):
            sys.exit("numba does not check bounds here")
        command = [sys.executable, "-m", "pytest", "-q", *(sys.argv[1:] or MAIN_PATHS)]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
