"""Kernels compiled before they are needed, by another process.

One process compiles one kernel at a time, which is most of a first run, and keeps it on disk, where
others find it. Nothing depends on what is done here: what is not there is compiled when it is used.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from typing import Any

from knothole import progress
from knothole.compiled.kept import is_kept
from knothole.compiled.threads import thread_count

_SCRIPT = """
from knothole.compiled.ahead import until_closed
until_closed()
{}from knothole import warm
warm.{}(*{!r})
"""
# What needs less to be imported.
_WALKS = "from knothole.expectation import warm\nwarm.use_walks()\n"

# The process that compiles ahead of this one; in that one itself nothing is compiled ahead.
_started: list[subprocess.Popen[bytes]] = []
_is_ahead = threading.Event()


def compile_ahead(
    kernel: Any, use: str, *of: str | bool, walks: bool = False, tell: bool = False
) -> None:
    """Let another process compile what is needed, where ``kernel``, the largest of it, is not kept.

    Only where kernels can be kept, and there is a core for it. It ends when all is compiled, or
    with this process.

    Parameters
    ----------
    kernel : compiled function
    use : str
        What of :mod:`knothole.warm` needs the kernels,
    of : str or bool
        and what it is called with.
    walks : bool
        Whether it begins with those of :mod:`knothole.expectation.warm`.
    tell : bool
        Whether a terminal is told of it.
    """
    at_work = _is_ahead.is_set() or any(process.poll() is None for process in _started)
    if at_work or is_kept(kernel) or thread_count() < 2 or not sys.executable:
        return
    progress.tell(
        "knothole compiles its kernels, once on this machine ...",
        verbose=tell and sys.stderr.isatty(),
    )
    stop()  # closes the pipe of one that has ended
    # -P: nothing of the current directory is imported, whatever it is called.
    _started[:] = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", _SCRIPT.format(_WALKS if walks else "", use, of)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    ]


@atexit.register
def stop() -> None:
    """End what compiles ahead."""
    for process in _started:
        process.kill()
        process.communicate()
    _started.clear()


def until_closed() -> None:
    """End this process when its input is closed: by whoever started it, or by their end."""

    def watch() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock Python wants when it ends
        os._exit(0)

    _is_ahead.set()
    threading.Thread(target=watch, daemon=True).start()
