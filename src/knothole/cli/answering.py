"""What commands that answer the rows of a file share: rows in and answers out, chunk by chunk."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pandas as pd

from knothole.cli import options
from knothole.cli.console import say
from knothole.cli.files import (
    Sink,
    check_column,
    check_table_name,
    into,
    load_wrapped,
    match,
    sink,
    source,
)
from knothole.errors import InvalidInput
from knothole.files import check_output
from knothole.out_of_core.files import JSON_LINES, JsonLinesFile, TableFile
from knothole.out_of_core.lazy import on_cluster
from knothole.progress import bar
from knothole.robust import Robust


@dataclass(frozen=True)
class Answering:
    """Which rows to answer, and where to; see :func:`answering_options`."""

    model: Path
    data: Path
    output: Path | None
    keep: tuple[str, ...]
    holes: Literal["auto", "all"] | None
    unseen: Literal["error", "hole"]
    absent: Literal["error", "hole"]
    chunk: int
    scheduler: str | None

    def opened(self) -> Robust:
        """The model, once it is known that its answers can be written."""
        if self.place is not None:
            check_table_name(self.place)
            check_output(self.place, self.model, self.data)
        return load_wrapped(self.model)

    @property
    def place(self) -> Path | None:
        """The file to write, None for standard output."""
        return None if self.output == Path("-") else self.output

    @property
    def reading(self) -> dict[str, Any]:
        """What a question is told of how to read rows."""
        return {"holes": self.holes, "unseen": self.unseen, "absent": self.absent}

    def answer(
        self,
        robust: Robust,
        what: tuple[str, str],
        ask: Callable[[Robust, pd.DataFrame], list[pd.DataFrame]],
    ) -> None:
        """Write, for each row of the file and in their order, what ``ask`` makes of it.

        ``ask`` is given the model and its columns of some rows, here or on a worker, and returns
        columns; ``what`` is said while it works and of what it has written.
        """
        table = source(self.data)
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

            def tables() -> Iterator[pd.DataFrame]:
                for part, amount in table.chunks(names, found.described, self.chunk):
                    read.append((part, amount))
                    yield found.table(part)

            for answers in self._asked(robust, ask, tables()):
                part, amount = read.popleft()
                out.write(pd.concat([part[list(self.keep)], *answers], axis=1))
                rows += len(part)
                advance(amount=amount)
            if not rows:
                raise InvalidInput(f"{table.shown}: has no rows.")
        if self.place is not None:
            say(f"wrote {rows:,} {what[1]} to {self.place}")

    def _asked(self, robust: Robust, ask: Any, tables: Iterator[Any]) -> Iterator[Any]:
        """Answers to tables, one after the other; by the workers of a cluster if there is one."""
        if self.scheduler is not None:
            return on_cluster(self.scheduler, robust, ask, tables)
        return (ask(robust, one) for one in tables)


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
            help="Where to write; by default, and for -, stdout: JSON lines if DATA is, else CSV.",
        ),
        click.option(
            "--keep",
            multiple=True,
            metavar="COLUMN",
            help="Column of DATA to repeat; may be repeated.",
        ),
        click.option(
            "--holes",
            type=click.Choice(["auto", "all"]),
            help="What NaN means (see wrap); by default as MODEL was wrapped.",
        ),
        options.choice_option(
            "--unseen", ("error", "hole"), "What to make of a category that training did not have."
        ),
        options.choice_option(
            "--absent",
            ("error", "hole"),
            "What to make of a column of the model that DATA does not have.",
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
    return options.gathered("asked", Answering, given)


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
