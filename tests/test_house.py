"""Rules of the source tree that no linter checks; the import layers are in ``pyproject.toml``."""

import ast
from collections import Counter
from pathlib import Path

from tools.mutants.__main__ import read_faults, refused

PACKAGE = Path(__file__).parent.parent / "src" / "knothole"


def test_only_the_command_line_prints():
    printing = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert [path for path in printing if not path.startswith("cli/")] == []


def test_a_class_name_means_one_thing():
    names = Counter(
        node.name.lstrip("_")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 200
    assert [name for name, count in names.items() if count > 1] == []


def test_every_known_fault_still_applies():
    """A patch of ``make mutants`` whose text is gone would test nothing."""
    assert refused(read_faults()) == []
