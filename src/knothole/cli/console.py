"""Messages go to standard error, results to standard output."""

from __future__ import annotations

from rich.console import Console

stderr = Console(stderr=True)
stdout = Console()


def say(message: str, label: str = "", style: str = "bold") -> None:
    """A message to the user, perhaps with a label before it."""
    if label:
        stderr.print(label, style=style, end=" ")
    stderr.print(message, markup=False, highlight=False, soft_wrap=True)
