"""Paths in the place of tables: a file, all of a directory or of a pattern, some rows at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from knothole.columns.columns import Column, Columns
from knothole.columns.read import listed
from knothole.errors import ColumnMismatch, InvalidInput
from knothole.out_of_core.sources import CHUNK, Source, source


def is_path(table: Any) -> bool:
    """Whether it is a path, and no table itself."""
    return isinstance(table, (str, os.PathLike))


@dataclass(frozen=True, eq=False)
class FileTable:
    """A table in files: the columns that are read of it, and those for targets and weights.

    What is ``unknown`` to the caller is what it looks like: numbers, or text.
    """

    source: Source
    names: list[str]
    described: list[Column]
    unknown: list[str]
    y: str | None = None
    weight: str | None = None

    @classmethod
    def of(
        cls,
        path: Any,
        columns: Columns | None = None,
        y: Any = None,
        weight: Any = None,
        *,
        every: bool = False,
    ) -> FileTable:
        """Open a path; ``columns`` are a model's, ``y`` and ``weight`` names of columns.

        Of the file's columns those of the model are read, or ``every`` one.
        """
        opened = source(path)
        beside = {"y": y, "sample_weight": weight}
        for what, name in beside.items():
            if name is not None and not isinstance(name, str):
                raise InvalidInput(
                    f"{what} must be the name of a column, as X is a path; got "
                    f"{type(name).__name__}."
                )
            if name is not None and name not in opened.names:
                raise ColumnMismatch(
                    f"{opened.shown}: has no column {name!r} ({what}); it has "
                    f"{listed(opened.names)}."
                )
        own = [name for name in opened.names if name not in beside.values()]
        known: dict[str, Column] = {}
        if columns is not None and columns.named:
            known = {column.name: column for column in columns}
            own = own if every else [name for name in own if name in known] or own
        elif columns is not None and len(columns) == len(own):
            known = {n: replace(c, name=n) for n, c in zip(own, columns, strict=True)}
        every_name = [*own, *(name for name in (y, weight) if name is not None)]
        described = [known.get(name, Column(name)) for name in every_name]
        unknown = [name for name in every_name if name not in known]
        return cls(opened, own, described, unknown, y, weight)

    def parts(self) -> Iterator[tuple[pd.DataFrame, Any, Any]]:
        """Some rows at a time, their targets and their weights; rows are numbered throughout."""
        start, numbers = 0, dict[str, bool]()
        for chunk, _ in self.source.chunks([c.name for c in self.described], self.described, CHUNK):
            self._check_kinds(chunk, numbers, start)
            chunk.index = pd.RangeIndex(start, start + len(chunk))
            start += len(chunk)
            y, weight = (
                None if name is None else chunk[name].to_numpy() for name in (self.y, self.weight)
            )
            yield chunk[self.names], y, weight

    def _check_kinds(self, chunk: pd.DataFrame, numbers: dict[str, bool], start: int) -> None:
        """Refuse text where there were numbers before: 1 and "1" would be two categories."""
        for name in self.unknown:
            if chunk[name].isna().all():
                continue
            now = pd.api.types.is_numeric_dtype(chunk[name])
            if numbers.setdefault(name, now) != now:
                kinds = ("text", "numbers")
                raise InvalidInput(
                    f"{self.source.shown}: column {name!r} holds {kinds[not now]} at first, and "
                    f"{kinds[now]} among rows {start + 1} to {start + len(chunk)}. Write it as one "
                    f"kind throughout; Parquet keeps types."
                )
