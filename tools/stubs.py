"""``python -m tools.stubs``: write the types of the built core beside it, a file a submodule."""

from __future__ import annotations

from pathlib import Path

from tests.core.calls import submodules

from knothole import _core

HEADER = "# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.\n"


def stub(name: str) -> str:
    """Signatures and first lines of all functions of a submodule."""
    lines = [HEADER]
    for each, function in sorted(vars(getattr(_core.build, name)).items()):
        if isinstance(function, int | float):
            lines.append(f"{each}: {type(function).__name__}\n")
        elif not each.startswith("_") and callable(function):
            signature, doc, *_ = function.__nb_signature__[0]
            signature = signature.replace("-> tuple", "-> tuple[int, ...]")
            lines.append(f'{signature}:\n    """{(doc or "").strip()}"""\n')
    return "\n".join(lines)


def stubs() -> dict[str, str]:
    """All files by name: the package, and its submodules."""
    names = sorted(submodules())
    package = HEADER + "\nfrom types import ModuleType\n\nbuild: ModuleType\n"
    return {f"{name}.pyi": stub(name) for name in names} | {"__init__.pyi": package}


if __name__ == "__main__":
    for file, text in stubs().items():
        Path(_core.__file__).with_name(file).write_text(text)
