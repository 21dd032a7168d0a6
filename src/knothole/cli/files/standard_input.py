"""Tables in files, and for ``-`` in standard input."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from knothole.out_of_core import sources
from knothole.out_of_core.sources import STDIN, Source


def source(path: Path) -> Source:
    """The table in a file, or for ``-`` in standard input."""
    return sources.source(_standard_input() if str(path) == "-" else path)


def _standard_input() -> Path:
    """A file of what it has, for as long as a command runs: tables are read twice.

    What begins like an object is JSON lines, everything else CSV.
    """
    context = click.get_current_context()
    if STDIN not in context.meta:
        kept = Path(context.with_resource(tempfile.TemporaryDirectory()), STDIN)
        with kept.open("w+b") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.seek(0)
            lines = file.read(1024).lstrip().startswith(b"{")
        context.meta[STDIN] = kept.rename(kept.with_suffix(".jsonl" if lines else ".csv"))
    found: Path = context.meta[STDIN]
    return found
