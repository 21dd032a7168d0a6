"""Messages go to standard error, results to standard output."""

from __future__ import annotations

import time

from rich.console import Console

stderr = Console(stderr=True)
stdout = Console()


def say(message: str, label: str = "", style: str = "bold") -> None:
    """A message to the user, perhaps with a label before it."""
    if label:
        stderr.print(label, style=style, end=" ")
    stderr.print(message, markup=False, highlight=False, soft_wrap=True)


def took(start: float) -> str:
    """The time since a reading of :func:`time.perf_counter`, for readers.

    Examples
    --------
    >>> took(time.perf_counter() - 75)
    '1 min 15 s'
    """
    seconds = round(time.perf_counter() - start)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s"
