"""Progress of whatever takes long: one bar, on the error stream, and lines for the log.

What takes long is given an :class:`Advance` and calls it now and then; whoever calls it says with
``verbose`` whether a :func:`bar` is to be seen.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

# Seconds between plain lines.
QUIET = 10.0
# Seconds that speed is measured over: parts of what is to be done may take minutes each.
WINDOW = 600.0

log = logging.getLogger("knothole")


class Advance(Protocol):
    """Told of progress."""

    def __call__(self, doing: str = "", amount: float = 1.0) -> None:
        """So much more is done, and that was what; may be called from several threads."""


def silent(doing: str = "", amount: float = 1.0) -> None:
    """An :class:`Advance` that shows nothing."""


def tell(line: str, verbose: bool = True) -> None:
    """A line for the log ``knothole``, at level INFO.

    With ``verbose`` it goes to the error stream where nobody has set up logging.

    Examples
    --------
    >>> tell("nobody wants to know", verbose=False)
    """
    if log.isEnabledFor(logging.INFO) and log.hasHandlers():
        log.info("%s", line)
    elif verbose:
        logging.StreamHandler().handle(logging.makeLogRecord({"name": log.name, "msg": line}))


@contextmanager
def bar(
    title: str, total: float | None = None, *, verbose: bool | None = None
) -> Iterator[Advance]:
    """Show how much of ``total`` is done.

    Parameters
    ----------
    title : str
        What is going on.
    total : float, optional
        All that there is to do; None where that is not known.
    verbose : bool, optional
        Whether to show anything; by default where the error stream is a terminal. There it is a
        bar of rich, if that is installed, which is gone when it is done; otherwise a line at the
        end and now and then.

    Examples
    --------
    >>> with bar("rows", 10, verbose=False) as advance:
    ...     advance(amount=10)
    """
    terminal = sys.stderr.isatty()
    if total == 0 or not (terminal if verbose is None else verbose):
        yield silent
    elif not terminal or importlib.util.find_spec("rich") is None:
        yield _lines(title, total)
    else:
        from rich import progress
        from rich.console import Console

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("gone"),
            *(
                []
                if total is None
                else [progress.TimeRemainingColumn(), progress.TextColumn("left")]
            ),
        )
        shown = progress.Progress(
            *columns, console=Console(stderr=True), transient=True, speed_estimate_period=WINDOW
        )
        with shown:
            task = shown.add_task(title, total=total)

            def advance(doing: str = "", amount: float = 1.0) -> None:
                description = f"{title}: {doing}" if doing else None
                shown.update(task, advance=amount, description=description)

            yield advance


def _lines(title: str, total: float | None) -> Advance:
    """A line now and then, and one at the end."""
    done, last, lock = 0.0, time.monotonic(), threading.Lock()
    of = "" if total is None else f"/{total:,.0f}"

    def advance(doing: str = "", amount: float = 1.0) -> None:
        nonlocal done, last
        with lock:
            done += amount
            if (total is not None and done >= total) or time.monotonic() - last > QUIET:
                last = time.monotonic()
                what = f" ({doing})" if doing else ""
                tell(f"{title}: {done:,.0f}{of}{what}")

    return advance
