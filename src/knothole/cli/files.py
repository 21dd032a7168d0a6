"""Files that commands read and write: models, tables of any size, and whose columns they have."""

from __future__ import annotations

import difflib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from knothole.columns.auxiliary import without_auxiliary
from knothole.columns.columns import Column, Columns, found_as
from knothole.columns.read import listed
from knothole.errors import ColumnMismatch, DamagedFile, InvalidInput
from knothole.files import check_regular, whole_file
from knothole.out_of_core.files import (
    JSON_LINES,
    PARQUET,
    SEPARATORS,
    STDIN,
    CsvFormat,
    TableFile,
    chunks_of,
    numeric_of,
    open_table,
    pyarrow_for,
)

# A command that says what is wrong with a name is not to wait for what reads models.
if TYPE_CHECKING:
    import pandas as pd

    from knothole.robust import Robust
    from knothole.trees.ensemble import Ensemble


#: Where the options --sep and --decimal are kept while a command runs.
SEPARATOR, DECIMAL = "knothole.separator", "knothole.decimal"


def source(path: Path, missing: str | None = None) -> TableFile:
    """The table in a file, or for ``-`` in standard input; the text ``missing`` is no value."""
    context = click.get_current_context(silent=True)
    options = {} if context is None else context.meta
    csv_format = CsvFormat(options.get(SEPARATOR), options.get(DECIMAL, "."))
    return open_table(_standard_input() if str(path) == "-" else path, missing, csv_format)


def _standard_input() -> Path:
    """A file of what it has, for as long as a command runs: tables are read twice.

    What begins like an object is JSON lines, everything else CSV.
    """
    context = click.get_current_context()
    if STDIN not in context.meta:
        kept = Path(context.with_resource(tempfile.TemporaryDirectory()), STDIN)
        with kept.open("w+b") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.seek(0)
            lines = file.read(1024).lstrip().startswith(b"{")
        context.meta[STDIN] = kept.rename(kept.with_suffix(".jsonl" if lines else ".csv"))
    found: Path = context.meta[STDIN]
    return found


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

    def checking(self, table: TableFile) -> Match:
        """Itself, once the file refuses anything but numbers in numeric columns of the model."""
        table.numeric = numeric_of(self.described)
        return self

    def table(self, chunk: pd.DataFrame, also: Sequence[str] = ()) -> pd.DataFrame:
        """The model's columns of a chunk, as far as they are there, under the model's names.

        And further columns, under their own.
        """
        import pandas as pd

        series: dict[str, Any] = {
            column.name: chunk[name]
            for name, column in zip(self.found, self.columns, strict=True)
            if name is not None
        }
        return pd.DataFrame(series | {name: chunk[name] for name in also}, index=chunk.index)


def match(
    columns: Columns,
    table: TableFile,
    leave_out: Sequence[str] = (),
    absent: Literal["error", "missing"] | None = None,
) -> Match:
    """Find a model's columns in a file, by name where it has names, otherwise by position.

    ``leave_out`` are columns that are no features, such as the target; ``absent`` says whether a
    column that the file does not have is an "error" or "missing". None is for commands without
    this option: an error whose message does not mention it.
    """
    left_out = set(leave_out)
    available = [name for name in table.names if name not in left_out]
    if not columns.named:
        if len(available) != len(columns):
            raise ColumnMismatch(
                f"{table.shown}: the model was trained on {len(columns)} columns without names; it "
                f"has {len(available)} besides the target. Leave out others with --drop."
            )
        return Match(columns, tuple(available)).checking(table)
    found = tuple(found_as(columns.names, available))
    missing = [
        column.name
        for column, name in zip(columns, found, strict=True)
        if name is None and not column.auxiliary
    ]
    if not any(found) or (missing and absent != "missing"):
        raise ColumnMismatch(
            f"{table.shown}: lacks {len(missing)} of the model's {len(columns)} columns: "
            f"{listed(missing)}. It has {listed(available)}."
            f"{_renames(missing, [name for name in available if name not in found])}"
            + (" --absent missing takes them as missing." if any(found) and absent else "")
        )
    return Match(columns, found).checking(table)


def check_column(table: TableFile, name: str, option: str) -> None:
    """Refuse a name that an option gives and the file does not have."""
    if name not in table.names:
        raise ColumnMismatch(
            f"{table.shown}: has no column {name!r} ({option}); it has {listed(table.names)}."
            f"{_did_you_mean(name, table.names)}"
        )


def _renames(missing: Sequence[str], others: Sequence[str]) -> str:
    """Which columns of a file may be the missing ones under another name."""
    pairs = [(near, name) for name in missing[:8] if (near := nearest(name, others)) is not None]
    if not pairs:
        return ""
    names = ", ".join(f"{near!r} to {name!r}" for near, name in pairs)
    return f" If these are the same columns, rename {names}."


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    near = nearest(name, names)
    return "" if near is None else f" Did you mean {near!r}?"


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The one of some names that is spelled like another; None where none is.

    Names that differ in upper and lower case alone come first.

    Examples
    --------
    >>> nearest("PRICE", ["slice", "price"]), nearest("weigth", ["height", "weight"])
    ('price', 'weight')
    >>> nearest("city", ["age", "bmi"]) is None
    True
    """
    lowered = [each.casefold() for each in names]
    near = difflib.get_close_matches(name.casefold(), lowered, 1, cutoff=0.7)
    return names[lowered.index(near[0])] if near else None


PICKLES = (".joblib", ".pkl", ".pickle")


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model that was opened: ``robust`` of ``knothole wrap``, or ``native``, a library's own."""

    robust: Robust | None
    native: Any  # as knothole.wrap takes it
    ensemble: Ensemble
    columns: Columns  # better described than the ensemble's where the model has been wrapped
    takes_nan: bool = True  # whether the library itself does


def open_model(
    path: Path, allow_pickle: bool, train: Path, auxiliary: Sequence[str] = ()
) -> OpenedModel:
    """A model of either kind; whether a library's own is read right is checked by wrapping.

    What a pipeline's columns are, the training rows show; ``auxiliary`` ones are none of them.
    """
    from knothole.out_of_core.partitions import Partitions, sample
    from knothole.storage import load
    from knothole.trees.pipelines.composed import is_composed, read_over
    from knothole.trees.read import reading_of

    if _is_wrapped(path):
        robust = load(path)
        return OpenedModel(robust, None, robust.ensemble_, robust.columns_)
    native = _unpickled(path, allow_pickle) if path.suffix.lower() in PICKLES else path
    if is_composed(native):
        parts = Partitions.of(chunks_of(source(train))[1])
        known = getattr(native, "feature_names_in_", ())
        shown = without_auxiliary(sample(parts, 0).shown, auxiliary, known)
        ensemble = read_over(native, shown, native=False)
        from sklearn.utils import get_tags

        takes_nan = bool(get_tags(native).input_tags.allow_nan)
        return OpenedModel(None, native, ensemble, ensemble.columns, takes_nan)
    reading = reading_of(native)
    return OpenedModel(None, native, reading.ensemble, reading.ensemble.columns, reading.takes_nan)


def load_wrapped(path: Path) -> Robust:
    """A model of ``knothole wrap``."""
    if not _is_wrapped(path):
        raise DamagedFile(
            f"{path}: not a file of knothole wrap. A library's own model is wrapped first: "
            f"knothole wrap {path} TRAIN."
        )
    from knothole.storage import load

    return load(path)


def _is_wrapped(path: Path) -> bool:
    """Whether a file is one of ``knothole wrap``: a zip archive."""
    check_regular(path)
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _unpickled(path: Path, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise InvalidInput(
            f"{path}: a pickle can run any code when it is opened. If you made it or trust who "
            f"did, pass --allow-pickle."
        )
    import joblib

    try:
        return joblib.load(path)
    except Exception as error:  # a damaged pickle can raise anything
        raise DamagedFile(
            f"{path}: cannot be unpickled ({type(error).__name__}: {error}). Save the model again "
            f"with joblib.dump."
        ) from error


def check_native_path(model: Any, path: Path) -> None:
    """Refuse a name that the model's library would not take for one of its files."""
    reader = _reader_of_files(model)
    allowed = PICKLES if reader is None else reader.SUFFIXES
    if path.suffix.lower() not in allowed:
        raise InvalidInput(f"{path}: its name must end in {' or '.join(allowed)}.")


def save_native(model: Any, path: Path) -> None:
    """Write a model as its own library does."""
    reader = _reader_of_files(model)
    if reader is None:
        import joblib

        joblib.dump(model, path)
    else:
        reader.save(model, path)


def _reader_of_files(model: Any) -> Any:
    """The module of the model's library; None where that has no files but pickles."""
    from knothole.trees.libraries import WITH_FILES, library_of, reader_of
    from knothole.trees.pipelines.composed import is_composed

    if is_composed(model) or (library := library_of(model)) not in WITH_FILES:
        return None
    return reader_of(library)


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
