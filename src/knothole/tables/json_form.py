"""Columns and their levels as plain values for JSON, and back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict
from typing import Any

import numpy as np

from knothole.errors import DamagedFile, InvalidInput
from knothole.tables.columns import Block, Column, Columns, Kind, Variable
from knothole.tables.levels import HashedLevel


def describe_columns(columns: Columns) -> dict[str, Any]:
    """For JSON; the inverse of :func:`columns_from`."""
    return {
        "columns": [describe_column(column) for column in columns],
        "blocks": [[block.name, list(block.columns), block.baseline] for block in columns.blocks],
        "named": columns.named,
    }


def columns_from(description: dict[str, Any]) -> Columns:
    """From JSON."""
    columns = tuple(map(column_from, description["columns"]))
    blocks = tuple(Block(name, tuple(at), baseline) for name, at, baseline in description["blocks"])
    return Columns(columns, blocks, description["named"])


def describe_column(column: Column | Variable) -> dict[str, Any]:
    """For JSON; the inverse of :func:`column_from`."""
    return {
        "name": column.name,
        "kind": column.kind.value,
        "levels": [describe_level(level, column.name) for level in column.levels],
        "nullable": column.nullable,
    }


def column_from(description: dict[str, Any]) -> Column:
    """From JSON."""
    levels = tuple(level_from(level) for level in description["levels"])
    return Column(
        description["name"], Kind(description["kind"]), levels, bool(description["nullable"])
    )


def describe_level(level: Hashable, column: str) -> list[Any]:
    """A level with the name of its type: 1, 1.0, True and "1" are different ones."""
    if isinstance(level, np.generic):
        level = level.item()
    if level is None or type(level) in (bool, int, str):
        return [type(level).__name__, level]
    if type(level) is float:
        return ["float", level.hex()]
    if isinstance(level, HashedLevel):
        return [type(level).__name__, asdict(level)]
    raise InvalidInput(
        f"column {column!r} has a level of type {type(level).__name__}, {level!r}; only text, "
        f"numbers, booleans and None can be stored."
    )


def level_from(description: list[Any]) -> Hashable:
    """From JSON."""
    kind, value = description
    if kind == "float":
        return float.fromhex(value)
    if kind == HashedLevel.__name__:
        return HashedLevel(**value)
    level: Hashable = value
    if type(level).__name__ != kind:
        raise DamagedFile(f"level {value!r} is not of type {kind}.")
    return level
