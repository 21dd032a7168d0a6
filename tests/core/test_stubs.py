"""The types that are written down are those of the bindings."""

from pathlib import Path

from tools.stubs import stubs

from knothole import _core


def test_stubs_are_those_of_the_bindings():
    folder = Path(_core.__file__).parent
    written = {path.name: path.read_text() for path in folder.glob("*.pyi")}
    assert written == stubs(), "python -m tools.stubs writes them"
