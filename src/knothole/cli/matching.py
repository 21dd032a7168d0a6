"""Which columns of a file are the model's."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from knothole.cli.sources import Source
from knothole.errors import ColumnMismatch
from knothole.tables.columns import Column, Columns


@dataclass(frozen=True)
class Match:
    """Where a model's columns are in a file.

    Attributes
    ----------
    columns : Columns
        The model's.
    found : tuple
        For each of them its name in the file, None where the file does not have it.
    """

    columns: Columns
    found: tuple[str | None, ...]

    @property
    def names(self) -> list[str]:
        """Columns to read."""
        return [name for name in self.found if name is not None]

    @property
    def described(self) -> list[Column]:
        """The model's description of the columns to read, under their names in the file."""
        return [
            Column(name, column.kind, column.levels, column.nullable)
            for name, column in zip(self.found, self.columns, strict=True)
            if name is not None
        ]

    def table(self, block: pd.DataFrame) -> pd.DataFrame:
        """The model's columns of a block, under the model's names, holes for those not there."""
        series = {
            column.name: block[name] if name is not None else np.full(len(block), np.nan)
            for name, column in zip(self.found, self.columns, strict=True)
        }
        return pd.DataFrame(series, index=block.index)


def match(
    columns: Columns, table: Source, leave_out: Sequence[str] = (), absent: str = "error"
) -> Match:
    """Find a model's columns in a file, by name where it has names, otherwise by position.

    Parameters
    ----------
    columns : Columns
        The model's.
    table : Source
        The file.
    leave_out : sequence of str
        Columns that are no features, such as the target.
    absent : {"error", "hole"}
        What a column is that the file does not have.
    """
    available = [name for name in table.names if name not in leave_out]
    if not columns.named:
        if len(available) != len(columns):
            raise ColumnMismatch(
                f"{table.path}: the model was trained on {len(columns)} columns without names; the "
                f"file has {len(available)} besides the target. Leave out others with --drop."
            )
        return Match(columns, tuple(available))
    found = tuple(_find(column.name, available) for column in columns)
    missing = [column.name for column, name in zip(columns, found, strict=True) if name is None]
    if len(missing) == len(columns) or (missing and absent == "error"):
        raise ColumnMismatch(_says_missing(table.path, missing, available, len(columns)))
    return Match(columns, found)


def check_column(table: Source, name: str, option: str) -> None:
    """Refuse a name that an option gives and the file does not have."""
    if name not in table.names:
        near = difflib.get_close_matches(name, table.names, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ColumnMismatch(
            f"{table.path}: has no column {name!r} ({option}); it has {_listed(table.names)}.{hint}"
        )


def _find(name: str, available: list[str]) -> str | None:
    if name in available:
        return name
    # LightGBM writes underscores for the spaces of names.
    alike = [other for other in available if "_".join(other.split(" ")) == name]
    return alike[0] if len(alike) == 1 else None


def _says_missing(path: Path, missing: list[str], available: list[str], total: int) -> str:
    near = difflib.get_close_matches(missing[0], available, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"{path}: lacks {len(missing)} of the model's {total} columns: {_listed(missing)}. It has "
        f"{_listed(available)}.{hint} For predictions, --absent hole takes missing columns for "
        f"holes."
    )


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
