"""Tables written chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd

from knothole.errors import InvalidInput
from knothole.files import whole_file
from knothole.out_of_core.sources import JSON_LINES, PARQUET, SEPARATORS, pyarrow_for


class CsvSink:
    """CSV into an open file."""

    def __init__(self, file: IO[str], separator: str = ",") -> None:
        self._file, self._separator, self._first = file, separator, True

    def write(self, chunk: pd.DataFrame) -> None:
        """Append rows; the header before the first."""
        chunk.to_csv(self._file, sep=self._separator, index=False, header=self._first)
        self._first = False


class JsonSink:
    """JSON lines into an open file; null for what is no number."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, chunk: pd.DataFrame) -> None:
        """Append rows."""
        rows = chunk.astype(object).where(chunk.notna(), None).to_dict("records")
        self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class ParquetSink:
    """A Parquet file with the types of the first chunk."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._path = pyarrow_for(path), path
        self._writer: Any = None

    def write(self, chunk: pd.DataFrame) -> None:
        """Append rows."""
        table = self._arrow.Table.from_pandas(chunk, preserve_index=False)
        if self._writer is None:
            self._writer = self._arrow.parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table.cast(self._writer.schema))

    def close(self) -> None:
        """Write the footer."""
        if self._writer is not None:
            self._writer.close()


Sink = CsvSink | JsonSink | ParquetSink


def check_table_name(path: Path) -> None:
    """Refuse to write a table under a name that is of neither format."""
    if path.suffix.lower() not in (*PARQUET, *SEPARATORS, *JSON_LINES):
        raise InvalidInput(f"{path}: predictions are written as .csv, .tsv, .jsonl or .parquet.")


def into(file: IO[str], suffix: str) -> CsvSink | JsonSink:
    """What writes tables of a suffix into an open file."""
    return JsonSink(file) if suffix in JSON_LINES else CsvSink(file, SEPARATORS.get(suffix, ","))


@contextmanager
def sink(path: Path) -> Iterator[Sink]:
    """Write a table to a file that is there as a whole, at the end, or not at all."""
    with whole_file(path) as temporary:
        if path.suffix.lower() in PARQUET:
            made = ParquetSink(temporary)
            try:
                yield made
            finally:
                made.close()
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                yield into(file, path.suffix.lower())
