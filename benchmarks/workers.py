"""Processes that work for a benchmark, and end with it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait


def spawned(workers: int) -> ProcessPoolExecutor:
    """So many processes, each a fresh interpreter: forked ones inherit locks of dead threads.

    One whose parent was killed would wait for work for ever, or finish what nobody collects; it
    ends by itself.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only workers call this"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
