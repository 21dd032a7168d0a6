"""``python -m tools.mutants``: put known faults into the source, see that tests notice each.

A fault is a small patch: a text that occurs once in a file, another in its place, and the tests
that must fail then. Every one is put by itself into a fresh copy of the tree, in a temporary
folder. All patches are looked at first: one that no longer applies is an error, for it would test
nothing. Then the tests are run once without any fault, since those that fail anyway notice nothing
either.

Parts of names, or of files, choose among the faults; ``--list`` only tells what there is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.build_core import build

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# What tests need of the tree. The built core comes along: most faults leave it as it is.
COPIED = (
    "core", "src", "tests", "benchmarks", "tools", "docs", "examples", "conda", "changelog.d",
    "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md",
    "LICENSE", "SECURITY.md",
)  # fmt: skip
# A test that never comes to an end under a fault has noticed it.
SECONDS = 900

CAUGHT, SURVIVED, BROKEN = "caught", "SURVIVED", "BROKEN"


@dataclass(frozen=True)
class Fault:
    """A patch, and the tests (as pytest takes them) that are to fail under it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def patched(self) -> str:
        """The file with the fault; refuses a text that is not there exactly once."""
        path = ROOT / self.file
        source = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: the old text occurs {found} times in {self.file}")
        if self.old == self.new:
            raise ValueError(f"{self.name}: the new text is the old one")
        return source.replace(self.old, self.new)


def read_faults() -> list[Fault]:
    """The faults of all lists beside this file, in their order."""
    faults = []
    for path in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
            faults.append(Fault(**{**entry, "tests": tuple(entry["tests"])}))
    names = [fault.name for fault in faults]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two faults of one name: {sorted(twice)}")
    return faults


def refused(faults: Iterable[Fault]) -> list[str]:
    """Why patches do not apply, a line for each."""
    reasons = []
    for fault in faults:
        try:
            fault.patched()
        except ValueError as error:
            reasons.append(str(error))
    return reasons


def copy_tree(folder: Path) -> None:
    """The tree as it stands, changes that are not committed included."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        elif source.exists():
            shutil.copy2(source, folder / name)


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in a copy of the tree; pytest's exit code and its last words."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    # The copy goes before the checkout, which is installed.
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def try_fault(fault: Fault) -> tuple[str, str]:
    """Whether its tests notice it, and which one did, or what pytest said."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_tree(folder)
        (folder / fault.file).write_text(fault.patched(), encoding="utf-8")
        if fault.file.startswith("core/"):
            build(folder)
        code, words = run_tests(folder, fault.tests)
    failed = [line for line in words.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if code == 1:
        return CAUGHT, failed[0] if failed else words.strip().splitlines()[-1]
    if code == 0:
        return SURVIVED, ""
    return BROKEN, words  # collection failed, or the tests are not there: nothing was tested


def check_without_faults(faults: Iterable[Fault]) -> None:
    """Stop where a test fails anyway."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy_tree(Path(name))
        for tests in dict.fromkeys(fault.tests for fault in faults):
            code, words = run_tests(Path(name), tests)
            if code:
                sys.exit(f"{words}\n{' '.join(tests)} fails without any fault")


def main() -> None:
    """Try the chosen faults; the exit code is 1 unless all are caught."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names or files; all faults by default")
    parser.add_argument("--list", action="store_true", help="tell the faults, try none")
    parser.add_argument("--quick", action="store_true", help="no run without faults")
    given = parser.parse_args()
    faults = [
        fault
        for fault in read_faults()
        if not given.names or any(part in f"{fault.name} {fault.file}" for part in given.names)
    ]
    if not faults:
        sys.exit(f"no fault is named like {given.names}")
    reasons = refused(faults)
    if reasons:
        sys.exit("patches that no longer apply:\n" + "\n".join(reasons))
    if given.list:
        print("\n".join(f"{fault.name}  ({fault.file})" for fault in faults))
        return
    if not given.quick:
        check_without_faults(faults)
    verdicts = []
    for fault in faults:
        start = time.perf_counter()
        verdict, detail = try_fault(fault)
        verdicts.append(verdict)
        seconds = time.perf_counter() - start
        print(f"{verdict:8}  {fault.name}  ({seconds:.0f} s)  {detail}", flush=True)
    counts = {verdict: verdicts.count(verdict) for verdict in (CAUGHT, SURVIVED, BROKEN)}
    print(f"{len(faults)} faults: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    sys.exit(counts[CAUGHT] < len(faults))


if __name__ == "__main__":
    main()
