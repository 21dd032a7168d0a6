"""LightGBM's model text files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knothole.trees.ensemble import Ensemble
from knothole.trees.readers.lightgbm.read import booster_of, understand
from knothole.trees.readers.lightgbm.text import ModelText, parse

SUFFIXES = (".txt",)


def begins(head: bytes) -> bool:
    """Whether a file that begins like this may be LightGBM's."""
    return head.startswith((b"tree\n", b"tree\r\n"))


def read(path: Path) -> Ensemble:
    """Read a model text file with our own parser."""
    text = parse(path.read_bytes())
    ensemble, _ = understand(text, _labels(text))
    return ensemble


def _labels(text: ModelText) -> tuple[int, ...] | None:
    """Classes by number, where the objective is about classes: a text does not keep their names."""
    name = (text.objective or "").partition(" ")[0]
    if name not in ("binary", "multiclass", "multiclassova"):
        return None
    return tuple(range(max(2, text.n_outputs)))


def load(path: Path) -> Any:
    """Let LightGBM load a model text file."""
    import lightgbm

    return lightgbm.Booster(model_file=str(path))


def save(model: Any, path: Path) -> None:
    """Let LightGBM save a model."""
    booster_of(model).save_model(str(path))
