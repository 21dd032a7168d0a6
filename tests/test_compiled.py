"""Threads around kernels, the cache of kernels, and sets of bits."""

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knothole.compiled import ahead, bits
from knothole.compiled.kept import is_kept
from knothole.compiled.policy import njit
from knothole.compiled.threads import Memory, over_chunks, thread_count


@pytest.mark.parametrize("threads", [1, 2, 7, None])
@pytest.mark.parametrize("n_rows", [0, 1, 9, 10, 11, 95])
def test_blocks_cover_the_rows_once_and_results_keep_their_order(n_rows, threads):
    blocks = over_chunks(lambda start, stop: range(start, stop), n_rows, 10, threads)
    assert [row for block in blocks for row in block] == list(range(n_rows))
    assert all(len(block) == 10 for block in blocks[:-1])


def test_blocks_run_on_several_threads_at_once():
    meeting = threading.Barrier(2, timeout=30)
    names = over_chunks(
        lambda start, stop: (meeting.wait(), threading.current_thread().name)[1], 2, 1, threads=2
    )
    assert len(set(names)) == 2


def test_one_thread_or_one_block_needs_no_pool():
    here = threading.current_thread()
    assert over_chunks(lambda *_: threading.current_thread(), 3, 1, threads=1) == [here] * 3
    assert over_chunks(lambda *_: threading.current_thread(), 3, 3, threads=4) == [here]


def test_an_error_in_a_block_reaches_the_caller():
    def work(start, stop):
        if start == 2:
            raise ZeroDivisionError("in block 2")

    for threads in (1, 2):
        with pytest.raises(ZeroDivisionError, match="in block 2"):
            over_chunks(work, 5, 1, threads)


def test_the_number_of_threads_is_the_argument_then_the_setting_then_the_cores(monkeypatch):
    monkeypatch.setenv("KNOTHOLE_THREADS", "3")
    assert thread_count(5) == 5
    assert thread_count() == 3
    assert thread_count(0) == 1
    monkeypatch.setenv("KNOTHOLE_THREADS", "-2")
    assert thread_count() == 1
    monkeypatch.delenv("KNOTHOLE_THREADS")
    assert thread_count() >= 1


@njit
def count_nan(values):
    total = 0
    for value in values:
        total += np.isnan(value)
    return total


@njit
def sum_infinite(values):
    total = 0.0
    for value in values:
        total += value
    return total


def test_kernels_see_nan_and_infinity():
    """``fastmath=True`` would let the compiler assume that there are none."""
    assert count_nan(np.array([1.0, np.nan, np.inf, np.nan])) == 2
    assert sum_infinite(np.array([1.0, np.inf])) == np.inf
    assert np.isnan(sum_infinite(np.array([-np.inf, np.inf])))


def test_a_kernel_is_compiled_anew_when_a_neighbour_changes(tmp_path, monkeypatch):
    """A kernel's machine code has that of the helpers it calls in it."""
    helper = tmp_path / "helper_of_test.py"
    helper.write_text(
        "from knothole.compiled.policy import njit\n@njit\ndef number():\n    return 1\n"
    )
    (tmp_path / "kernel_of_test.py").write_text(
        "from helper_of_test import number\nfrom knothole.compiled.policy import njit\n"
        "@njit\ndef twice():\n    return 2 * number()\n"
    )
    run = [sys.executable, "-c", "from kernel_of_test import twice; print(twice())"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "2\n"
    helper.write_text(helper.read_text().replace("return 1", "return 5"))
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "10\n"


def test_memory_is_each_threads_own_and_not_copied():
    memory = Memory()
    memory.room = 3
    seen = []
    thread = threading.Thread(target=lambda: seen.append(hasattr(memory, "room")))
    thread.start()
    thread.join()
    assert memory.room == 3 and seen == [False]
    for other in (copy.copy(memory), copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert not hasattr(other, "room")


def test_arrays_to_use_again_grow_where_they_must():
    memory = Memory()
    first = memory.array("a", (3, 2))
    assert memory.array("a", (2, 2)).base is first.base and memory.array("b", (1,)).shape == (1,)
    more = memory.array("a", (4, 2))
    assert more.base is not first.base and more.flags.c_contiguous
    assert memory.array("a", (2, 2), np.int16).dtype == np.int16


def test_a_kernel_is_forgotten_when_one_that_it_calls_changes(tmp_path):
    """Also in another folder, where numba itself does not look."""
    (tmp_path / "below").mkdir()
    called = tmp_path / "below" / "called.py"
    (tmp_path / "caller.py").write_text(
        "from below.called import one\n"
        "from knothole.compiled.policy import njit\n"
        "@njit\n"
        "def twice():\n"
        "    return 2 * one()\n"
        "print(twice())\n"
    )
    # Python itself does not tell files apart that have the same size and are of the same second.
    fresh = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    for value in (1, 5):
        called.write_text(
            f"from knothole.compiled.policy import njit\n@njit\ndef one():\n    return {value}\n"
        )
        done = subprocess.run(
            [sys.executable, "caller.py"],
            cwd=tmp_path,
            env=fresh,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(2 * value)


@settings(max_examples=50, deadline=None)
@njit
def put(words, start, code):
    bits.put(words, start, code)


@njit
def has(words, start, code):
    return bits.has(words, start, code)


def test_parts_of_kernels_have_no_code_of_their_own():
    """Before a kernel has called them and after; what kernels make of them is theirs."""
    words = np.zeros(1, dtype=np.uint64)
    with pytest.raises(TypeError, match="put is a part of kernels"):
        bits.put(words, 0, 3)
    put(words, 0, 3)
    with pytest.raises(TypeError, match="put is a part of kernels"):
        bits.put(words, 0, 3)
    assert has(words, 0, 3) and not has(words, 0, 4)


class Started(Exception):
    """Instead of a process."""


@pytest.mark.parametrize(
    ("kept", "threads", "executable", "starts"),
    [
        (False, "2", sys.executable, True),
        (True, "2", sys.executable, False),
        (False, "1", sys.executable, False),
        (False, "2", None, False),
    ],
)
def test_another_process_compiles_where_that_gains_something(
    monkeypatch, kept, threads, executable, starts
):
    def start(*_, **__):
        raise Started

    monkeypatch.setattr(ahead, "is_kept", lambda kernel: kept)
    monkeypatch.setattr(ahead.subprocess, "Popen", start)
    monkeypatch.setattr(ahead.sys, "executable", executable)
    monkeypatch.setenv("KNOTHOLE_THREADS", threads)
    with pytest.raises(Started) if starts else nullcontext():
        ahead.compile_ahead(put, "use", "Mixture")


def test_kernels_are_kept_once_they_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kernel = njit(lambda x: x + 1)
    assert not is_kept(kernel)
    kernel(1)
    assert is_kept(kernel)
    assert is_kept(len)  # no kernel at all: nothing to compile


def test_a_process_ahead_ends_with_the_one_that_started_it():
    script = (
        "from knothole.compiled.ahead import until_closed as u; u(); import time; time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", script], stdin=subprocess.PIPE) as process:
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_process_ahead_that_is_done_ends_as_others_do():
    """Not by an abort, over a lock that its watch holds."""
    script = "from knothole.compiled.ahead import until_closed; until_closed()"
    with subprocess.Popen([sys.executable, "-P", "-c", script], stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=60) == 0


@given(st.lists(st.sets(st.integers(0, 200)), min_size=1, max_size=5), st.integers(1, 200))
def test_sets_of_codes_are_those_that_were_put_in(sets, n_levels):
    """The slow twin is Python's own set."""
    sets = [{code for code in codes if code <= n_levels} for codes in sets]
    size = bits.set_words(n_levels)
    words = np.zeros(size * len(sets), dtype=np.uint64)
    starts = size * np.arange(len(sets))
    for start, codes in zip(starts, sets, strict=True):
        for code in codes:
            put(words, start, code)
    expected = [[code in codes for code in range(n_levels)] for codes in sets]
    assert bits.unpack_at(words, starts, n_levels).tolist() == expected
    assert bits.unpack(words.reshape(len(sets), size), n_levels).tolist() == expected
    for start, codes in zip(starts, sets, strict=True):
        flags = [code in codes for code in range(n_levels + 1)]
        assert [has(words, start, code) for code in range(n_levels + 1)] == flags
        assert bits.members(words[start:], n_levels).tolist() == flags
    pairs = np.array([(i, code) for i, codes in enumerate(sets) for code in codes]).reshape(-1, 2)
    start, packed = bits.pack(np.full(len(sets), n_levels), *pairs.T.astype(np.int64))
    assert (start.tolist(), packed.tolist()) == (starts.tolist(), words.tolist())
    others = bits.complement(np.full(len(sets), n_levels), words)
    for start, codes in zip(starts, sets, strict=True):
        for code in range(n_levels + 1):
            assert has(others, start, code) != (code in codes)


def test_what_compiles_ahead_is_one_process_and_ends_with_this_one(monkeypatch):
    monkeypatch.setattr(ahead, "is_kept", lambda kernel: False)
    monkeypatch.setattr(ahead, "_SCRIPT", "import time\n# {} {!r}\ntime.sleep(99)")
    monkeypatch.setenv("KNOTHOLE_THREADS", "2")
    try:
        ahead.compile_ahead(put, "use", "auto", True)
        (process,) = ahead._started
        ahead.compile_ahead(put, "use", "auto", True)
        assert ahead._started == [process]
    finally:
        ahead.stop()
    assert process.returncode == -signal.SIGKILL
    assert not ahead._started


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_after_a_kernel_was_compiled_if_it_was_before(collects):
    before = gc.isenabled()
    found = []
    compiles = njit(lambda x: x + 1)
    fails = njit(lambda x: np.zeros(x))  # allocates
    try:
        (gc.enable if collects else gc.disable)()
        assert compiles(1) == 2
        found.append(gc.isenabled())
        with pytest.raises(numba.core.errors.NumbaError):
            fails(1)
        found.append(gc.isenabled())
    finally:
        (gc.enable if before else gc.disable)()
    assert found == [collects, collects]
