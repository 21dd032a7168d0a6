"""CatBoost's files, cbm and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.catboost import cbm, json_format
from knothole.trees.readers.catboost.read import ensemble_of

SUFFIXES = (".cbm", ".json")


def begins(head: bytes) -> bool:
    """Whether a file that begins like this may be CatBoost's; so does other JSON."""
    return head.startswith((cbm.MAGIC, b"{"))


def read(path: Path) -> Ensemble:
    """Read a saved model, cbm or JSON, with our own parsers."""
    data = path.read_bytes()
    return ensemble_of((cbm if data.startswith(cbm.MAGIC) else json_format).parse(data))


def load(path: Path) -> Any:
    """Let CatBoost load a saved model."""
    import catboost

    with path.open("rb") as file:
        kind = "cbm" if file.read(len(cbm.MAGIC)) == cbm.MAGIC else "json"
    return catboost.CatBoost().load_model(str(path), format=kind)


def save(model: Any, path: Path) -> None:
    """Let CatBoost save a model, in the format that the name ends in."""
    model.save_model(str(path), format=path.suffix.lower().removeprefix("."))
