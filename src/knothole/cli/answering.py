"""What commands that answer the rows of a file share: rows in and answers out, chunk by chunk."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from knothole.cli import options
from knothole.cli.console import say
from knothole.cli.files import (
    Match,
    Sink,
    check_column,
    check_table_name,
    into,
    load_wrapped,
    match,
    sink,
    source,
)
from knothole.columns.columns import found_as
from knothole.columns.read import listed
from knothole.errors import InvalidInput, UnseenCategory
from knothole.files import check_output
from knothole.out_of_core.files import JSON_LINES, JsonLinesFile, TableFile
from knothole.progress import bar

if TYPE_CHECKING:
    import pandas as pd

    from knothole.robust import Robust

TRUE, FALSE = ("1", "1.0", "true", "yes"), ("", "0", "0.0", "false", "no")


@dataclass(frozen=True)
class Answering:
    """Which rows to answer, and where to; see :func:`answering_options`."""

    model: Path
    data: Path
    output: Path | None
    keep: tuple[str, ...]
    lost: Path | None
    lost_marker: str | None
    handle_unknown: Literal["error", "missing"]
    absent: Literal["error", "missing"]
    chunk: int
    scheduler: str | None

    def opened(self) -> Robust:
        """The model, once it is known that its answers can be written."""
        if self.place is not None:
            check_table_name(self.place)
            inputs = self.model, self.data, *([] if self.lost is None else [self.lost])
            check_output(self.place, *inputs)
        return load_wrapped(self.model)

    @property
    def place(self) -> Path | None:
        """The file to write, None for standard output."""
        return None if self.output == Path("-") else self.output

    @property
    def reading(self) -> dict[str, Any]:
        """What a question is told of how to read rows."""
        return {"handle_unknown": self.handle_unknown, "absent": self.absent}

    def answer(
        self,
        robust: Robust,
        what: tuple[str, str],
        ask: Callable[[Robust, pd.DataFrame, pd.DataFrame | None], list[pd.DataFrame]],
    ) -> None:
        """Write, for each row of the file and in their order, what ``ask`` makes of it.

        ``ask`` is given the model, its columns of some rows and which of their values are known to
        be lost, here or on a worker, and returns columns; ``what`` is said while it works and of
        what it has written.
        """
        import pandas as pd

        table = source(self.data, self.lost_marker)
        for name in self.keep:
            check_column(table, name, "--keep")
        found = match(robust.columns_, table, absent=self.absent)
        names = list(dict.fromkeys([*found.names, *self.keep]))
        rows = 0
        with (
            bar(f"{what[0]} {table.shown}", table.size) as advance,
            _opened(self.place, table) as out,
        ):
            read: deque[tuple[pd.DataFrame, int]] = deque()

            def tables() -> Iterator[tuple[pd.DataFrame, pd.DataFrame | None]]:
                marks = self._marks(found)
                for part, amount in table.chunks(names, found.described, self.chunk):
                    read.append((part, amount))
                    lost = [each.of(found.table(part)) for each in marks]
                    yield found.table(part), reduce(or_, lost) if lost else None
                for each in marks:
                    each.check_end()

            asked = self._asked(robust, lambda model, one: ask(model, *one), tables())
            for answers in _named(asked, table):
                part, amount = read.popleft()
                out.write(pd.concat([part[list(self.keep)], *answers], axis=1))
                rows += len(part)
                advance(amount=amount)
            if not rows:
                raise InvalidInput(f"{table.shown}: has no rows.")
        if self.place is not None:
            say(f"wrote {rows:,} {what[1]} to {self.place}")

    def _marks(self, found: Match) -> list[LostMarks]:
        """What says which values are known to be lost."""
        marks = []
        if self.lost is not None:
            table = source(self.lost)
            own = found.columns.names
            called = [name or column for column, name in zip(own, found.found, strict=True)]
            there = zip(own, found_as(called, table.names), strict=True)
            names = {column: name for column, name in there if name is not None}
            if not names:
                raise InvalidInput(
                    f"{table.shown} (--lost): has none of the model's columns; it has "
                    f"{listed(table.names)}."
                )
            parts = (part for part, _ in table.chunks(list(names.values()), (), self.chunk))
            shown = f"{table.shown} (--lost)"
            marks.append(LostMarks(map(_truth(shown), parts), names, found.columns.names, shown))
        if self.lost_marker is not None:
            if not self.lost_marker:
                raise InvalidInput(
                    "--lost-marker must be a text; empty cells are missing anyway, and it is "
                    "inferred whether they were lost."
                )
            there = zip(found.columns.names, found.found, strict=True)
            names = {column: name for column, name in there if name is not None}
            parts = (part for part, _ in source(self.data).chunks(found.names, (), self.chunk))
            marked = (part == self.lost_marker for part in parts)
            marks.append(LostMarks(marked, names, found.columns.names, "--lost-marker"))
        return marks

    def _asked(self, robust: Robust, ask: Any, tables: Iterator[Any]) -> Iterator[Any]:
        """Answers to tables, one after the other; by the workers of a cluster if there is one."""
        if self.scheduler is not None:
            from knothole.out_of_core.lazy import on_cluster

            return on_cluster(self.scheduler, robust, ask, tables)
        return (ask(robust, one) for one in tables)


def _named(answers: Iterator[Any], table: TableFile) -> Iterator[Any]:
    """Answers to the rows of a file, which errors name."""
    try:
        yield from answers
    except UnseenCategory as error:
        raise UnseenCategory(
            f"{table.shown}: {error.problem}",
            "Correct it, or take it as missing with --handle-unknown missing.",
        ) from error


class LostMarks:
    """Which values of a table are known to be lost, read beside it.

    Parameters
    ----------
    parts : iterator of DataFrame
        Booleans, in chunks of any size.
    names : dict
        Columns of ``parts`` by the model's names.
    columns : sequence of str
        The model's columns.
    shown : str
        What messages name.
    """

    def __init__(
        self,
        parts: Iterator[pd.DataFrame],
        names: dict[str, str],
        columns: Sequence[str],
        shown: str,
    ) -> None:
        import pandas as pd

        self._parts, self._names, self._columns, self._shown = parts, names, columns, shown
        self._rest, self._before = pd.DataFrame(columns=list(names.values())), 0

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The mask of the next rows of the table, over the model's columns."""
        import pandas as pd

        n = len(table)
        while len(self._rest) < n and (part := next(self._parts, None)) is not None:
            self._rest = pd.concat([self._rest, part], ignore_index=True)
        if len(self._rest) < n:
            rows = self._before + len(self._rest)
            raise InvalidInput(f"{self._shown}: has {rows:,} rows, fewer than DATA.")
        lost = pd.DataFrame(False, index=table.index, columns=list(self._columns))
        for name, own in self._names.items():
            lost[name] = self._rest[own].iloc[:n].to_numpy(dtype=np.bool_)
            there = lost[name] & table[name].notna() if name in table else lost[name] & False
            if there.any():
                row = self._before + int(np.argmax(there)) + 1
                raise InvalidInput(
                    f"{self._shown}: row {row:,} of {name!r} is marked as lost, but DATA has a "
                    f"value there; mark missing values alone."
                )
        self._rest, self._before = self._rest.iloc[n:], self._before + n
        return lost

    def check_end(self) -> None:
        """Refuse more rows than the table has."""
        if len(self._rest) or next(self._parts, None) is not None:
            raise InvalidInput(f"{self._shown}: has more than the {self._before:,} rows of DATA.")


def _truth(shown: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """What makes booleans of the cells of a file: 1, true or yes; 0, false, no or nothing."""
    import pandas as pd

    def read(part: pd.DataFrame) -> pd.DataFrame:
        text = part.map(lambda cell: "" if pd.isna(cell) else str(cell).strip().lower())
        wrong = ~text.isin([*TRUE, *FALSE])
        if wrong.to_numpy().any():
            name = wrong.columns[int(wrong.any().to_numpy().argmax())]
            raise InvalidInput(
                f"{shown}: column {name!r} holds {part[name][wrong[name]].iloc[0]!r}; write 1 "
                f"(true, yes) where the value is lost, and 0 (false, no) or nothing elsewhere."
            )
        return text.isin(TRUE)

    return read


def answering_options(chunk: int) -> options.Decorator:
    """Arguments and options of all commands that answer rows, which come as one ``asked``.

    ``chunk`` is how many rows they answer at a time by default.
    """
    given = (
        options.model_argument,
        click.argument("data", type=options.FILE),
        click.option(
            "-o",
            "--output",
            type=options.FILE,
            help="Where to write; default: standard output (-), as CSV (JSON lines if DATA is).",
        ),
        click.option(
            "--keep",
            multiple=True,
            metavar="COLUMN",
            help="Column of DATA to copy to the output. May be repeated.",
        ),
        click.option(
            "--lost",
            type=options.FILE,
            metavar="FILE",
            help="A table with the rows of DATA and some of its columns: 1, true or yes where a "
            "missing value is known to be lost.",
        ),
        click.option(
            "--lost-marker",
            metavar="TEXT",
            help="Cells of DATA with exactly this text are missing values that are known to be "
            "lost.",
        ),
        options.choice_option(
            "--handle-unknown",
            ("error", "missing"),
            "What to make of a category that training did not have.",
        ),
        options.choice_option(
            "--absent",
            ("error", "missing"),
            "What to make of a feature of the model that DATA does not have.",
        ),
        click.option(
            "--chunk",
            type=click.IntRange(min=1),
            default=chunk,
            show_default=True,
            help="Rows at a time.",
        ),
        click.option(
            "--scheduler",
            metavar="ADDRESS",
            help="A Dask scheduler, such as tcp://10.0.0.1:8786, whose workers answer; knothole "
            "must be installed there. The file is read and written here.",
        ),
    )
    return options.gathered("asked", Answering, (*given, *options.csv_options))


@contextmanager
def _opened(output: Path | None, table: TableFile) -> Iterator[Sink]:
    if output is not None:
        with sink(output) as opened:
            yield opened
        return
    try:
        yield into(sys.stdout, JSON_LINES[0] if isinstance(table, JsonLinesFile) else ".csv")
        sys.stdout.flush()
    except BrokenPipeError as done:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from done
