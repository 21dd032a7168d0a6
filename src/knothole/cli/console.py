"""Messages go to standard error, results to standard output."""

from __future__ import annotations

from rich.console import Console

stderr = Console(stderr=True)
stdout = Console()


def say(message: str) -> None:
    """A message to the user."""
    stderr.print(message, markup=False, highlight=False, soft_wrap=True)


def step(number: int, message: str) -> None:
    """A numbered message to the user."""
    stderr.print(f"{number}", style="bold", end="  ")
    say(message)
