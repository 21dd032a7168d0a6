"""Tables in files, read chunk by chunk: CSV, JSON lines, Parquet, and directories of them."""

from __future__ import annotations

import bz2
import csv
import decimal
import glob
import gzip
import json
import lzma
import numbers
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knothole.columns.city_hash import hash_of
from knothole.columns.columns import Column, Columns, HashedLevel, Kind
from knothole.columns.read import listed, shortened
from knothole.errors import ColumnMismatch, DamagedFile, InvalidInput, MissingExtra
from knothole.files import without_doubles

if TYPE_CHECKING:
    import pandas as pd

#: Rows read, answered and written at a time.
CHUNK = 20_000
PARQUET = (".parquet", ".pq")
TAB = "\t"
SEPARATORS = {".csv": ",", ".tsv": TAB}
JSON_LINES = (".jsonl", ".ndjson")
#: Name of standard input, once it has been copied to a file that can be read twice.
STDIN = "standard input"

# Suffixes of the files in a directory that are tables.
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_SUFFIXES = {*PARQUET, *SEPARATORS, *JSON_LINES, *_COMPRESSED}
# The last row of a file must begin within this many bytes of its end.
_LONGEST_ROW = 1 << 20
# Texts that pandas reads as missing values in a CSV file.
_MISSING = {
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
}  # fmt: skip


@dataclass(frozen=True)
class CsvFormat:
    """How CSV files are written; ``separator`` is by default what the suffix stands for."""

    separator: str | None = None
    decimal: str = "."


class TableFile(ABC):
    """A table in a file."""

    path: Path
    names: list[str]  # of its columns
    size: int  # how much there is to read, in the units of `chunks`
    missing: str | None = None  # text of cells that are missing, beside empty ones
    numeric: frozenset[str] = frozenset()  # columns in which anything but a number is an error
    decimal: str = "."  # what numbers have before their decimals

    @property
    def shown(self) -> str:
        """The table's name in messages."""
        return shown(self.path)

    @abstractmethod
    def chunks(
        self, names: Sequence[str], columns: Sequence[Column], rows: int
    ) -> Iterator[tuple[pd.DataFrame, int]]:
        """Yield these columns in chunks of so many rows, with the amount read for each chunk.

        ``columns`` describe those among them that the model splits on, by name; anything else is
        taken as it is in the file. In columns of ``numeric`` every entry must be a number.
        """

    def _checked(self, chunk: pd.DataFrame, before: int) -> pd.DataFrame:
        """A chunk that comes after so many rows, whose ``numeric`` columns must hold numbers."""
        for name in chunk.columns[chunk.columns.isin(list(self.numeric))]:
            _check_numbers(chunk[name], before, self.shown, self.decimal)
        return chunk


def open_table(
    path: str | os.PathLike[str], missing: str | None = None, csv_format: CsvFormat | None = None
) -> TableFile:
    """The table in a file, by its suffix; in all files of a directory, or that a pattern names.

    ``missing`` is the text of missing cells, besides pandas' usual ones.
    """
    table = _open(Path(path), csv_format or CsvFormat())
    table.missing = missing
    return table


def _open(path: Path, csv_format: CsvFormat) -> TableFile:
    if path.is_dir():
        inside = (p for p in path.iterdir() if p.is_file() and not p.name.startswith((".", "_")))
        tables = [p for p in inside if p.suffix.lower() in _SUFFIXES]
        return SeveralFiles(path, tables, csv_format)
    if glob.has_magic(str(path)) and not path.exists():
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
        return SeveralFiles(path, found, csv_format)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PARQUET:
        return ParquetFile(path)
    for suffix in suffixes[-2:]:
        if suffix in SEPARATORS:
            return CsvFile(path, SEPARATORS[suffix], csv_format)
        if suffix in JSON_LINES:
            return JsonLinesFile(path)
    raise InvalidInput(
        f"{path}: tables are read from .csv, .tsv or .jsonl (also .gz, .bz2, .xz, .zst) and "
        f".parquet; its name ends in none of them."
    )


def shown(path: Path) -> str:
    """A file's name in messages."""
    return STDIN if path.stem == STDIN else str(path)


class CsvFile(TableFile):
    """A CSV file. Numbers are read as numbers, categories in the spelling of their levels."""

    def __init__(self, path: Path, separator: str, csv_format: CsvFormat) -> None:
        import pandas as pd

        self.path, self.decimal = path, csv_format.decimal
        self._separator = separator = csv_format.separator or separator
        self.size = path.stat().st_size
        if csv_format.separator is None:
            self._check_separator()
        with _parsing(path):
            # Two rows without a header: pandas then refuses a second row longer than the first.
            start = pd.read_csv(
                path, sep=separator, nrows=2, header=None, dtype=str, keep_default_na=False
            )
        self.names = start.iloc[0].tolist()
        twice = sorted(name for name, count in Counter(self.names).items() if count > 1)
        if twice:
            raise InvalidInput(
                f"{self.shown}: columns must have different names; {twice[0]!r} is there twice."
            )
        if _compression(path) is None:
            with _parsing(path):
                self._check_end()

    def chunks(
        self, names: Sequence[str], columns: Sequence[Column], rows: int
    ) -> Iterator[tuple[pd.DataFrame, int]]:
        """See :class:`TableFile`."""
        import pandas as pd

        described = {column.name: column for column in columns}
        as_text = [n for n in self.names if n not in described or _is_text(described[n])]
        missing = {
            name: sorted(_MISSING - _levels(described[name])) if name in described else [""]
            for name in self.names
        }
        if self.missing is not None:
            missing = {name: [*texts, self.missing] for name, texts in missing.items()}
        with _parsing(self.path), self.path.open("rb") as file:
            reader = pd.read_csv(
                file,
                sep=self._separator,
                compression=_compression(self.path),
                decimal=self.decimal,
                # All columns: told of a few, pandas would not refuse rows that are too long.
                dtype=dict.fromkeys(as_text, "object"),
                na_values=missing,
                keep_default_na=False,
                chunksize=rows,
                low_memory=False,
            )
            with reader:
                before, counted, row = 0, False, 0
                for chunk in reader:
                    last = chunk[self.names[-1]]
                    if not counted and (last.isna() | (last == "")).any():
                        self._check_lengths()
                        counted = True
                    if len(chunk):  # a file with a header alone is one chunk of nothing
                        yield self._checked(chunk[list(names)], row), file.tell() - before
                    before, row = file.tell(), row + len(chunk)

    def _check_separator(self) -> None:
        """Refuse a header in one piece that another separator takes apart, as it does a row."""
        with _parsing(self.path), _text(self.path, errors="replace", newline="") as file:
            header, row = file.readline(), file.readline()
        if self._separator in header:
            return
        for other in ";", "\t", "|", ",":
            if other in header and header.count(other) == row.count(other):
                raise InvalidInput(
                    f"{self.shown}: has one column, {header.strip()[:60]!r}. Is the separator "
                    f"{other!r}? On the command line say so with --sep "
                    f"{'tab' if other == TAB else repr(other)}; in Python pass the table, "
                    f"pandas.read_csv({self.shown!r}, sep={other!r})."
                )

    def _check_lengths(self) -> None:
        """Refuse rows with too few fields, whose absent entries would pass for missing values.

        pandas does not tell them from empty ones. The check takes time, and is only done if the
        last column has missing values.
        """
        with _text(self.path, errors="replace", newline="") as file:
            rows = csv.reader(file, delimiter=self._separator)
            for fields in rows:
                if fields and len(fields) < len(self.names):
                    raise DamagedFile(
                        f"{self.shown}: line {rows.line_num} has {len(fields)} of the "
                        f"{len(self.names)} fields that the header names. A missing value is an "
                        f"empty field; the separators stay."
                    )

    def _check_end(self) -> None:
        """Refuse a file with a truncated last row: absent fields would pass for missing values."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.size - _LONGEST_ROW))
            text = file.read().decode(errors="replace")
        fields = _last_row(text, self._separator)
        if fields and len(fields) < len(self.names):
            raise DamagedFile(
                f"{self.shown}: its last row is cut off after {len(fields)} of {len(self.names)} "
                f"columns; the file was not written to its end."
            )


def _last_row(text: str, separator: str) -> list[str]:
    """Fields of the last row of a text; line breaks within quotes do not end a row."""
    lines, quotes = text.split("\n"), 0
    for first in range(len(lines) - 1, -1, -1):
        quotes += lines[first].count('"')
        if quotes % 2 == 0:
            # Quotes within fields may also be inch marks: then a line break ends the row.
            with suppress(csv.Error):
                return next(csv.reader(["\n".join(lines[first:])], delimiter=separator), [])
            break
    return next(csv.reader(lines[-1:], delimiter=separator), [])


class JsonLinesFile(TableFile):
    """JSON lines: one object per row. A key that is absent or null is a missing value."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        names: dict[str, None] = {}
        for row in self._rows():
            names.update(dict.fromkeys(row))
            self.size += 1
        self.names = list(names)

    def chunks(
        self, names: Sequence[str], columns: Sequence[Column], rows: int
    ) -> Iterator[tuple[pd.DataFrame, int]]:
        """See :class:`TableFile`."""
        import pandas as pd

        described = {column.name for column in columns}
        lines, row = self._rows(), 0
        while batch := list(islice(lines, rows)):
            values = {name: [self._cell(row.get(name)) for row in batch] for name in names}
            chunk = pd.DataFrame(
                {
                    n: pd.Series(v, dtype=None if n in described else object)
                    for n, v in values.items()
                }
            )
            yield self._checked(chunk, row), len(batch)
            row += len(batch)

    def _cell(self, value: Any) -> Any:
        return None if isinstance(value, str) and value == self.missing else value

    def _rows(self) -> Iterator[dict[str, Any]]:
        with _parsing(self.path), _text(self.path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line, object_pairs_hook=without_doubles)
                except (ValueError, DamagedFile) as error:
                    raise DamagedFile(
                        f"{self.shown}: line {number} is no JSON ({error})."
                    ) from error
                if not isinstance(row, dict):
                    raise DamagedFile(
                        f"{self.shown}: line {number} must be an object, such as "
                        f'{{"age": 40, "city": null}}.'
                    )
                yield row


class ParquetFile(TableFile):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        arrow, self.path = pyarrow_for(path), path
        with path.open("rb"):  # reports a file that cannot be opened
            pass
        with _parsing(path):
            self._file = arrow.parquet.ParquetFile(path)
            self.size = int(self._file.metadata.num_rows)
            self.names = [str(name) for name in self._file.schema_arrow.names]

    def chunks(
        self, names: Sequence[str], columns: Sequence[Column], rows: int
    ) -> Iterator[tuple[pd.DataFrame, int]]:
        """See :class:`TableFile`."""
        row = 0
        with _parsing(self.path):
            for batch in self._file.iter_batches(batch_size=rows, columns=list(names)):
                chunk = batch.to_pandas()[list(names)]
                if self.missing is not None:
                    chunk = chunk.mask(chunk == self.missing)
                yield self._checked(chunk, row), batch.num_rows
                row += batch.num_rows


class SeveralFiles(TableFile):
    """Several files with the same columns, sorted by the numbers in their names."""

    def __init__(self, path: Path, files: Sequence[Path], csv_format: CsvFormat) -> None:
        if not files:
            raise InvalidInput(f"{path}: no tables are there (.csv, .tsv, .jsonl or .parquet).")
        self.path, self.names, self.size = path, [], 0
        self._files, self._csv_format = sorted(files, key=_in_order), csv_format
        for file in self._files:
            opened = open_table(file, csv_format=csv_format)
            self.names = self.names or opened.names
            if set(opened.names) != set(self.names):
                raise InvalidInput(
                    f"{path}: all files must have the same columns; {file.name} has "
                    f"{listed(opened.names)}, {self._files[0].name} has {listed(self.names)}."
                )
            self.size += opened.size

    def chunks(
        self, names: Sequence[str], columns: Sequence[Column], rows: int
    ) -> Iterator[tuple[pd.DataFrame, int]]:
        """See :class:`TableFile`."""
        for file in self._files:
            table = open_table(file, self.missing, self._csv_format)
            table.numeric = self.numeric
            yield from table.chunks(names, columns, rows)


def _in_order(path: Path) -> list[tuple[int, int | str]]:
    """Sort key that puts "part.10" after "part.2"."""
    pieces = re.split(r"(\d+)", str(path))
    return [(0, int(piece)) if piece.isdigit() else (1, piece) for piece in pieces]


def pyarrow_for(path: Path) -> Any:
    """The pyarrow library, which reads Parquet files."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(
            f"{path}: Parquet needs pyarrow: pip install 'knothole[polars]'."
        ) from error
    return pyarrow


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Report errors of parsers as a damaged file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise DamagedFile(f"{shown(path)}: cannot be read ({error}).") from error
    except (DamagedFile, InvalidInput):
        raise
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise DamagedFile(
            f"{shown(path)}: not a table that can be read, or damaged ({first_line})."
        ) from error


def _check_numbers(entries: pd.Series[Any], before: int, shown: str, point: str) -> None:
    """Refuse a column with an entry that is no finite number; name the first one and its row.

    ``before`` is the number of rows that come before these.
    """
    import pandas as pd

    all_spell_numbers = False
    if pd.api.types.is_numeric_dtype(entries):  # bool is one of them
        wrong = np.isinf(entries.to_numpy(dtype=np.float64, na_value=np.nan))
    elif pd.api.types.is_string_dtype(entries) or entries.dtype == object:
        texts = entries.notna() & ~entries.map(_is_number).astype(bool)
        plain = re.compile(rf"\s*[-+]?(\d+({re.escape(point)}\d*)?|\.\d+)(e[-+]?\d+)?\s*", re.I)
        wrong = (texts & ~entries.map(lambda e: bool(plain.fullmatch(str(e))))).to_numpy()
        all_spell_numbers = not wrong.any()
        wrong = texts.to_numpy() if all_spell_numbers else wrong
    else:
        return
    if not wrong.any():
        return
    row = int(np.argmax(wrong))
    entry = entries.iloc[row]
    got = shortened(entry) if isinstance(entry, str) else str(entry)
    hint = "Correct it, or leave the field empty where the value is not known."
    if all_spell_numbers:
        got, hint = f"the text {got}", "Convert the column to numbers."
    elif isinstance(entry, str) and re.fullmatch(r"\s*[-+]?[\d.]*\d,\d+\s*", entry):
        hint = (
            "Is it a decimal comma? On the command line say so with --decimal ','; in Python pass "
            "the table, pandas.read_csv(..., decimal=',')."
        )
    raise InvalidInput(
        f"{shown}: row {before + row + 1:,}, column {entries.name!r}: must be a number; got "
        f"{got}. {hint}"
    )


def _is_number(entry: Any) -> bool:
    return isinstance(entry, (numbers.Real, decimal.Decimal, np.bool_))


def numeric_of(columns: Iterable[Column]) -> frozenset[str]:
    """Columns that are no categories."""
    return frozenset(column.name for column in columns if column.kind is not Kind.CATEGORICAL)


def _is_text(column: Column) -> bool:
    """Whether a column's levels are text (or hashes of text), and its file entries too."""
    levels = [level for level in column.levels if level is not None]
    numbers = all(isinstance(level, (bool, int, float, np.generic)) for level in levels)
    return column.kind is Kind.CATEGORICAL and bool(levels) and not numbers


def _levels(column: Column) -> set[str]:
    """Levels as a file spells them: a level spelled "None" is not a missing value.

    Hashed levels, for which a CatBoost model has no names, are left out.
    """
    hashes = {level.hash for level in column.levels if isinstance(level, HashedLevel)}
    texts = {level for level in column.levels if isinstance(level, str)}
    return texts | {text for text in _MISSING if hash_of(text) in hashes}


def _text(path: Path, **options: Any) -> Any:
    """Open a text file, compressed or not."""
    opened = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, "zstd": _open_zstd}
    opening: Any = opened.get(_compression(path) or "", open)
    return opening(path, "rt", encoding="utf-8", **options)


def _open_zstd(path: Path, mode: str, **options: Any) -> Any:
    import zstandard  # pandas needs it for such files too

    return zstandard.open(path, mode, **options)


def _compression(path: Path) -> Any:
    return _COMPRESSED.get(path.suffix.lower())


def is_path(table: Any) -> bool:
    """Whether it is a path, not a table."""
    return isinstance(table, (str, os.PathLike))


#: Yields the chunks of a file as (table, targets, weights), from the start at each call.
Chunks = Callable[[], Iterator[tuple["pd.DataFrame", Any, Any]]]


def chunks_of(
    path: str | os.PathLike[str] | TableFile,
    columns: Columns | None = None,
    y: Any = None,
    weight: Any = None,
    *,
    every: bool = False,
    also: Sequence[str] = (),
) -> tuple[TableFile, Chunks]:
    """Open a path to read it in chunks; rows are numbered throughout.

    Parameters
    ----------
    path : str, path or TableFile
    columns : Columns, optional
        A model's columns: the columns of the file to read, unless ``every`` is set. Other columns
        are numbers or text, whichever they look like.
    also : sequence of str
        Further columns to read.
    y, weight : str, optional
        Names of the columns with targets and weights.
    """
    import pandas as pd

    opened = path if isinstance(path, TableFile) else open_table(path)
    beside = {"y": y, "sample_weight": weight}
    for parameter, name in beside.items():
        if name is not None and not isinstance(name, str):
            raise InvalidInput(
                f"{parameter} must be the name of a column, as X is a path; got "
                f"{type(name).__name__}."
            )
        if name is not None and name not in opened.names:
            raise ColumnMismatch(
                f"{opened.shown}: has no column {name!r} ({parameter}); it has "
                f"{listed(opened.names)}."
            )
    names = [name for name in opened.names if name not in beside.values()]
    known: dict[str, Column] = {}
    if columns is not None and columns.named:
        known = {column.name: column for column in columns}
        names = (
            names if every else [name for name in names if name in known or name in also] or names
        )
    elif columns is not None and len(columns) == len(names):
        known = {n: replace(c, name=n) for n, c in zip(names, columns, strict=True)}
    read = [*names, *(name for name in (y, weight) if name is not None)]
    described = [known.get(name, Column(name)) for name in read]
    opened.numeric = numeric_of(known.values())
    unknown = [name for name in read if name not in known]

    def chunks() -> Iterator[tuple[pd.DataFrame, Any, Any]]:
        start, numeric = 0, dict[str, bool]()
        for chunk, _ in opened.chunks(read, described, CHUNK):
            rows = f"rows {start + 1} to {start + len(chunk)}"
            _check_kinds(chunk[unknown], numeric, f"among {rows}", opened.shown)
            chunk.index = pd.RangeIndex(start, start + len(chunk))
            start += len(chunk)
            targets, weights = (
                None if name is None else chunk[name].to_numpy() for name in (y, weight)
            )
            yield chunk[names], targets, weights

    return opened, chunks


def _check_kinds(chunk: pd.DataFrame, numeric: dict[str, bool], where: str, shown: str) -> None:
    """Refuse text in a column that was numeric before: 1 and "1" would become two categories."""
    import pandas as pd

    for name in chunk.columns.astype(str):
        if chunk[name].isna().all():
            continue
        now = pd.api.types.is_numeric_dtype(chunk[name])
        if numeric.setdefault(name, now) != now:
            kinds = ("text", "numbers")
            raise InvalidInput(
                f"{shown}: column {name!r} holds {kinds[not now]} at first, and {kinds[now]} "
                f"{where}. Write it as one kind throughout; Parquet keeps types."
            )


def sampled(
    table: TableFile, names: Sequence[str], columns: Sequence[Column], rows: int, seed: int
) -> tuple[pd.DataFrame, int]:
    """Rows of a file in order: all, or this many at random; and the total number of rows.

    Every row gets a random number, and the rows with the smallest ones are the sample. So only
    the sample and one chunk are in memory.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    drawn: pd.DataFrame | None = None
    keys = np.empty(0)
    total = 0
    for chunk, _ in table.chunks(names, columns, CHUNK):
        chunk.index = pd.RangeIndex(total, total + len(chunk))
        total += len(chunk)
        keys = np.concatenate([keys, rng.random(len(chunk))])
        drawn = chunk if drawn is None else pd.concat([drawn, chunk])
        if len(drawn) > rows:
            chosen = np.sort(np.argpartition(keys, rows)[:rows])
            drawn, keys = drawn.iloc[chosen], keys[chosen]
    if drawn is None or total == 0:
        raise InvalidInput(f"{table.shown}: has no rows.")
    return drawn.reset_index(drop=True), total
