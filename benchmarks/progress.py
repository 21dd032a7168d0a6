"""A progress bar: rich's where it is installed, else a line now and then."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Called once for every step done, with what was done.
Advance = Callable[[str], None]

# Seconds between plain lines.
QUIET = 10.0


@contextmanager
def progress(total: int, title: str, shown: bool = True) -> Iterator[Advance]:
    """Show how many of ``total`` steps are done.

    Examples
    --------
    >>> with progress(2, "cells", shown=False) as advance:
    ...     advance("one")
    """
    if not shown or total == 0:
        yield lambda _: None
    elif importlib.util.find_spec("rich") is None:
        yield _plain(total, title)
    else:
        from rich import progress as bars
        from rich.console import Console

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.update(task, advance=1, description=f"{title}: {done}")


def _plain(total: int, title: str) -> Advance:
    count, last = 0, time.monotonic()

    def advance(done: str) -> None:
        nonlocal count, last
        count += 1
        if count == total or time.monotonic() - last > QUIET:
            last = time.monotonic()
            print(f"{title}: {count} of {total} ({done})", file=sys.stderr, flush=True)

    return advance
