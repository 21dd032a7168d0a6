"""A progress bar of one line, on the error stream."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

WIDTH = 30


class Progress:
    """Counts steps of named stages; draws only if it is asked to.

    Examples
    --------
    >>> with Progress(show=False).stage("rows", total=10) as stage:
    ...     stage.step(10)
    """

    def __init__(self, show: bool) -> None:
        self.show = show

    def stage(self, name: str, total: int) -> Stage:
        """A stage of ``total`` steps, to be used in a ``with`` statement."""
        return Stage(name, total, self.show)


class Stage:
    """One bar."""

    def __init__(self, name: str, total: int, show: bool) -> None:
        self.name, self.total, self.show = name, max(total, 1), show
        self.done = 0
        self._drawn = -1
        self._lock = threading.Lock()

    def step(self, n: int = 1) -> None:
        """So many steps are done; safe to call from several threads."""
        with self._lock:
            self.done += n
            filled = min(WIDTH, WIDTH * self.done // self.total)
            if self.show and filled != self._drawn:
                self._drawn = filled
                bar = "#" * filled + "." * (WIDTH - filled)
                sys.stderr.write(f"\r{self.name:<24} [{bar}] {self.done}/{self.total}")
                sys.stderr.flush()

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.show:
            sys.stderr.write("\n")
