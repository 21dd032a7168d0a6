"""References in docstrings, which name things by where they live.

What is public leads to its page under its public name (``knothole.columns.columns.Columns`` is
``knothole.Columns``). What is not has no page: its name is shown, if there is such a thing; a name
of nothing remains a warning, and so an error.
"""

import pydoc
from typing import Any

from docutils.nodes import Element, TextElement
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import knothole


def homes() -> dict[str, str]:
    """Where public names live, and their public names."""
    found = {}
    for name in knothole.__all__:
        value = getattr(knothole, name)
        if hasattr(value, "__qualname__"):
            found[f"{value.__module__}.{value.__qualname__}"] = f"knothole.{name}"
    return found


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: TextElement
) -> Element | None:
    if node.get("refdomain") != "py":
        return None
    for name in candidates(node):
        public = public_name(name)
        if public != name:
            domain: Any = env.get_domain("py")
            found = domain.resolve_xref(
                env, node["refdoc"], app.builder, node["reftype"], public, node, shown
            )
            if found is not None:
                return found
    return shown if any(map(exists, candidates(node))) else None


def own_methods(module: str, name: str) -> list[str]:
    """Public methods of a class that stand in knothole, in their order; others' are not ours."""
    found: Any = pydoc.locate(f"{module}.{name}")
    names = dict.fromkeys(key for owner in found.__mro__ for key in vars(owner))
    return [key for key in names if not key.startswith("_") and is_own(getattr(found, key))]


def is_own(value: Any) -> bool:
    return callable(value) and (getattr(value, "__module__", None) or "").startswith("knothole")


def candidates(node: pending_xref) -> list[str]:
    """Full names that a reference may mean, from where it stands."""
    target = node["reftarget"].lstrip(".")
    module, owner = node.get("py:module"), node.get("py:class")
    places = [f"{module}.{owner}", owner, module, defined_in(module, owner)]
    return [target, *(f"{place}.{target}" for place in places if place)]


def defined_in(module: str | None, owner: str | None) -> str | None:
    """The module in which a public class stands."""
    found = pydoc.locate(f"{module}.{owner}" if module and owner else owner or "")
    return getattr(found, "__module__", None)


def public_name(name: str) -> str:
    for home, public in homes().items():
        if name == home or name.startswith(f"{home}."):
            return public + name[len(home) :]
    return name


def exists(name: str) -> bool:
    if not name.startswith("knothole"):
        return False
    owner, _, attribute = name.rpartition(".")
    try:
        if pydoc.locate(name) is not None:
            return True
        return f"\n    {attribute} :" in (getattr(pydoc.locate(owner), "__doc__", None) or "")
    except pydoc.ErrorDuringImport:
        return False


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    app.config.autosummary_context = {**app.config.autosummary_context, "own_methods": own_methods}
    return {"parallel_read_safe": True, "parallel_write_safe": True}
