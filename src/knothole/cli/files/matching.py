"""Which columns of a file are the model's."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from knothole.columns.columns import Column, Columns, found_as
from knothole.columns.read import listed
from knothole.errors import ColumnMismatch
from knothole.out_of_core.sources import Source


@dataclass(frozen=True)
class Match:
    """Where a model's columns are in a file: ``found`` has the name of each, None if absent."""

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
            replace(column, name=name)
            for name, column in zip(self.found, self.columns, strict=True)
            if name is not None
        ]

    def table(self, chunk: pd.DataFrame) -> pd.DataFrame:
        """The model's columns of a chunk, as far as they are there, under the model's names."""
        series = {
            column.name: chunk[name]
            for name, column in zip(self.found, self.columns, strict=True)
            if name is not None
        }
        return pd.DataFrame(series, index=chunk.index)


def match(
    columns: Columns, table: Source, leave_out: Sequence[str] = (), absent: str = "error"
) -> Match:
    """Find a model's columns in a file, by name where it has names, otherwise by position.

    ``leave_out`` are columns that are no features, such as the target; ``absent`` says whether a
    column that the file does not have is an "error" or a "hole".
    """
    available = [name for name in table.names if name not in leave_out]
    if not columns.named:
        if len(available) != len(columns):
            raise ColumnMismatch(
                f"{table.shown}: the model was trained on {len(columns)} columns without names; it "
                f"has {len(available)} besides the target. Leave out others with --drop."
            )
        return Match(columns, tuple(available))
    found = tuple(found_as(column.name, available) for column in columns)
    missing = [column.name for column, name in zip(columns, found, strict=True) if name is None]
    if len(missing) == len(columns) or (missing and absent == "error"):
        raise ColumnMismatch(
            f"{table.shown}: lacks {len(missing)} of the model's {len(columns)} columns: "
            f"{listed(missing)}. It has {listed(available)}.{_nearest(missing[0], available)} For "
            f"predictions, --absent hole takes missing columns for holes."
        )
    return Match(columns, found)


def check_column(table: Source, name: str, option: str) -> None:
    """Refuse a name that an option gives and the file does not have."""
    if name not in table.names:
        raise ColumnMismatch(
            f"{table.shown}: has no column {name!r} ({option}); it has {listed(table.names)}."
            f"{_nearest(name, table.names)}"
        )


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f" Did you mean {near[0]!r}?" if near else ""
