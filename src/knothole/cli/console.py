"""Messages go to standard error, results to standard output; progress only to a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

stderr = Console(stderr=True)
stdout = Console()


class Bar:
    """A progress bar: advance it by parts of its total, and say what is going on."""

    def __init__(self, progress: Progress, description: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=total)

    def advance(self, amount: float = 1.0) -> None:
        """Move on by so much of the total."""
        self._progress.advance(self._task, amount)

    def reach(self, completed: float) -> None:
        """Move on to so much of the total."""
        self._progress.update(self._task, completed=completed)

    def say(self, description: str) -> None:
        """Change what is said beside the bar."""
        self._progress.update(self._task, description=description)


@contextmanager
def bar(description: str, total: float | None = None) -> Iterator[Bar]:
    """A bar on standard error that is gone when it is done; none where that is no terminal."""
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
    with progress:
        yield Bar(progress, description, total)


def say(message: str) -> None:
    """A message to the user."""
    stderr.print(message, markup=False, highlight=False, soft_wrap=True)


def step(number: int, message: str) -> None:
    """A numbered message to the user."""
    stderr.print(f"{number}", style="bold", end="  ")
    say(message)
