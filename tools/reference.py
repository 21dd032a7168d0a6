"""``python -m tools.reference``: write docs/api.md from the docstrings of the public names."""

import inspect
import types
from pathlib import Path

import knothole

PAGE = Path(__file__).parent.parent / "docs" / "api.md"


def page():
    lines = ["# API reference", "", "Written from the docstrings by `python -m tools.reference`."]
    for name in knothole.__all__:
        found = getattr(knothole, name)
        if isinstance(found, str):
            continue
        if isinstance(found, types.ModuleType):
            lines += module(f"knothole.{name}", found)
        else:
            lines += entry(f"knothole.{name}", found, "##")
            if inspect.isclass(found):
                lines += methods(f"knothole.{name}", found)
    return "\n".join(lines) + "\n"


def module(name, found):
    lines = ["", f"## {name}", "", inspect.getdoc(found) or ""]
    for key, value in vars(found).items():
        public = not key.startswith("_") and (getattr(value, "__module__", None) or "").startswith(
            found.__name__
        )
        if public and callable(value):
            lines += entry(f"{name}.{key}", value, "###")
    return lines


def methods(name, found):
    lines = []
    for key, value in inspect.getmembers(found):
        own = callable(value) and (getattr(value, "__module__", "") or "").startswith("knothole")
        if not key.startswith("_") and own:
            lines += entry(f"{name}.{key}", value, "###")
    return lines


def entry(name, found, heading):
    try:
        signature = str(inspect.signature(found))
    except (TypeError, ValueError):
        signature = ""
    text = inspect.getdoc(found) or ""
    return ["", f"{heading} {name}", "", "```text", f"{name}{signature}", "", text, "```"]


if __name__ == "__main__":
    PAGE.write_text(page())
