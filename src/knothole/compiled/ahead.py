"""Kernels compiled before they are needed, by another process.

One process compiles one kernel at a time, which is most of a first run, and keeps it on disk, where
others find it. Nothing depends on what is done here: what is not there is compiled when it is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from knothole import progress
from knothole.compiled.kept import is_kept
from knothole.compiled.threads import thread_count

_SCRIPT = """
from knothole.compiled.ahead import until_closed
until_closed()
from knothole.estimators.warm import use
use({!r})
"""


@contextmanager
def compiling_ahead(kernel: Any, density: str, *, tell: bool = False) -> Iterator[None]:
    """Let another process compile what a density needs, where ``kernel``, the last of it, is not.

    Only where kernels can be kept, and there is a core for it. It ends with this block, or with
    this process. ``tell`` says whether a terminal is told of it.
    """
    if is_kept(kernel) or thread_count() < 2 or not sys.executable:
        yield
        return
    progress.tell(
        "knothole compiles its kernels, once on this machine ...",
        verbose=tell and sys.stderr.isatty(),
    )
    # -P: nothing of the current directory is imported, whatever it is called.
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _SCRIPT.format(density)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as helper:
        try:
            yield
        finally:
            helper.kill()


def until_closed() -> None:
    """End this process when its input is closed: by whoever started it, or by their end."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
