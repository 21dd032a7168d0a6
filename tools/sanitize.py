"""``python -m tools.sanitize [PYTEST ARGUMENTS]``: tests on a core with ASan and UBSan in it.

The tree is copied and its core built anew with the compiler's address and undefined behaviour
sanitizers: an access beyond an array, a leak of one into another or an overflow ends the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.build_core import build
from tools.mutants.__main__ import copy_tree

#: The bindings under attack, and every path of the kernels: one file of tests for each.
MAIN_PATHS = (
    "tests/core",
    "tests/trees/test_traverse.py",
    "tests/trees/test_regions.py",
    "tests/densities/test_density_contract.py",
    "tests/densities/test_gaussian_mixture.py",
    "tests/densities/test_latent_tree.py",
    "tests/densities/test_circuit.py",
    "tests/expectation/test_enumeration.py",
    "tests/expectation/test_edges.py",
    "tests/expectation/test_leaf_sets.py",
    "tests/leaves/test_propositions.py",
    "tests/inspection/test_boosting.py",
)


def library(name: str) -> str:
    """Where the compiler has a library of its own."""
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(arguments: list[str]) -> int:
    """Tests in a copy of the tree, with the sanitizers' libraries loaded before Python."""
    with tempfile.TemporaryDirectory(prefix="sanitize-") as name:
        folder = Path(name)
        copy_tree(folder)
        build(folder, "-DKNOTHOLE_SANITIZE=ON")
        environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            # Python itself keeps what it allocates: leaks of the kernels cannot be told from it.
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-s", "-p", "no:cacheprovider"]
        # What a sanitizer reports is lost where pytest captures it.
        return subprocess.run([*command, *arguments], cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:] or list(MAIN_PATHS)))
