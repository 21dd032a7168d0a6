"""Trees of one's own in JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from knothole.files import without_doubles
from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.own.form import FORMAT, forest_of
from knothole.trees.readers.own.read import understand

SUFFIXES = (".json",)


def begins(head: bytes) -> bool:
    """Whether a file that begins like this may be one: the format is named at its start."""
    return head.lstrip().startswith(b"{") and f'"{FORMAT}"'.encode() in head


def read(path: Path) -> Ensemble:
    """Read a JSON file."""
    return understand(forest_of(load(path)))


def load(path: Path) -> Any:
    """The document of a file."""
    return json.loads(path.read_text("utf-8"), object_pairs_hook=without_doubles)


def save(model: Any, path: Path) -> None:
    """Write a document, its format first, so that the file is known by its start."""
    forest_of(model)
    text = json.dumps({"format": FORMAT, **model}, indent=1, default=lambda array: array.tolist())
    path.write_text(text + "\n", "utf-8")
