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
from typing import Literal, Protocol

#: Whether progress is shown; "auto": where somebody sees it, and it takes more than a moment.
Verbose = bool | Literal["auto"]

# Seconds between plain lines, and before anything is shown that nobody has asked for.
QUIET = 10.0
MOMENT = 2.0
# Seconds between refreshes of a bar.
TICK = 1.0
# One bar at a time: what goes on within it is part of it.
_showing = threading.Lock()

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
def bar(title: str, total: float | None = None, *, verbose: Verbose = "auto") -> Iterator[Advance]:
    """Show how much of ``total`` is done, and how long the rest takes if it goes on like this.

    Parameters
    ----------
    title : str
        What is going on.
    total : float, optional
        All that there is to do; None where that is not known.
    verbose : bool or "auto"
        Whether to show anything; "auto": where the error stream is a terminal or this a notebook,
        after two seconds. There it is a bar of tqdm, if that is installed, which is gone when it is
        done; otherwise a line at the end and now and then.

    Examples
    --------
    >>> with bar("rows", 10, verbose=False) as advance:
    ...     advance(amount=10)
    """
    seen = sys.stderr.isatty() or in_notebook()
    wanted = total != 0 and (seen if verbose == "auto" else verbose)
    if not wanted or not _showing.acquire(blocking=False):
        yield silent
        return
    wait = MOMENT if verbose == "auto" else 0.0
    try:
        if not seen or importlib.util.find_spec("tqdm") is None:
            yield _lines(title, total, wait)
        else:
            with _tqdm(title, total, wait) as advance:
                yield advance
    finally:
        _showing.release()


def in_notebook() -> bool:
    """Whether this runs in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def _tqdm(title: str, total: float | None, wait: float) -> Iterator[Advance]:
    """A bar of tqdm, after some seconds."""
    from tqdm import tqdm

    # What is going on comes last: where a line is too long for the terminal, that is cut.
    known = "{percentage:3.0f}% {bar:12} {elapsed} gone {remaining} left, {desc}"
    shown = tqdm(
        desc=title, total=total, file=sys.stderr, leave=False, dynamic_ncols=True,
        delay=max(wait, 1e-9), miniters=0, smoothing=0,
        bar_format=known if total is not None else "{n:.0f}, {elapsed} gone, {desc}",
    )  # fmt: skip
    lock, ended = threading.Lock(), threading.Event()

    def show() -> None:
        with lock:
            shown.delay = 0
            shown.refresh()

    def tick() -> None:
        """Begin to show it, and let the time go on where nothing else does."""
        pause = wait
        while not ended.wait(pause):
            show()
            pause = TICK

    def advance(doing: str = "", amount: float = 1.0) -> None:
        text = f"{title}: {doing}" if doing else shown.desc
        with lock:
            shown.update(amount)
            changed = text != shown.desc
            shown.set_description_str(text, refresh=False)
        if changed and shown.delay == 0:
            show()

    if not wait:
        show()
    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield advance
    finally:
        ended.set()
        ticking.join()
        shown.close()


def _lines(title: str, total: float | None, wait: float = 0.0) -> Advance:
    """A line now and then, and one at the end, if it took longer than ``wait``."""
    start = time.monotonic()
    done, last, lock = 0.0, start, threading.Lock()
    of = "" if total is None else f"/{total:,.0f}"

    def advance(doing: str = "", amount: float = 1.0) -> None:
        nonlocal done, last
        with lock:
            now = time.monotonic()
            done += amount
            ended = total is not None and done >= total and now - start >= wait
            if ended or now - last > QUIET:
                last = now
                what = f" ({doing})" if doing else ""
                about = ""
                if total is not None and not ended and done > 0:  # if it goes on like this
                    rest = (now - start) * max(total - done, 0.0) / done
                    about = f", about {rest:,.0f} s left"
                tell(f"{title}: {done:,.0f}{of}{what}{about}")

    return advance
