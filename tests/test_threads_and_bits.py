"""Threads around kernels, and sets of bits."""

import copy
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knothole import bits
from knothole.threads import Memory, over_chunks, thread_count


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


def test_a_thread_that_gets_no_memory_is_a_memory_error(monkeypatch):
    """Under a limit of the address space it was a RuntimeError of Python's own."""

    def start(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", start)
        with pytest.raises(MemoryError, match="2 were asked for"):
            over_chunks(lambda *_: None, 4, 1, threads=2)
        assert over_chunks(lambda start, _: start, 4, 1, threads=1) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="of the work"):
        over_chunks(lambda *_: exec("raise RuntimeError('of the work')"), 4, 1, threads=2)


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


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sets(st.integers(0, 200)), min_size=1, max_size=5), st.integers(1, 200))
def test_sets_of_codes_are_those_that_were_put_in(sets, n_levels):
    """The slow twin is Python's own set."""
    sets = [{code for code in codes if code <= n_levels} for codes in sets]
    size = bits.set_words(n_levels)
    words = np.zeros(size * len(sets), dtype=np.uint64)
    starts = size * np.arange(len(sets))
    for start, codes in zip(starts, sets, strict=True):
        for code in codes:
            words[start + code // 64] |= np.uint64(1) << np.uint64(code % 64)
    expected = [[code in codes for code in range(n_levels)] for codes in sets]
    assert bits.unpack_at(words, starts, n_levels).tolist() == expected
    assert bits.unpack(words.reshape(len(sets), size), n_levels).tolist() == expected
    for start, codes in zip(starts, sets, strict=True):
        flags = [code in codes for code in range(n_levels + 1)]
        assert bits.members(words[start:], n_levels).tolist() == flags
    pairs = np.array([(i, code) for i, codes in enumerate(sets) for code in codes]).reshape(-1, 2)
    start, packed = bits.pack(np.full(len(sets), n_levels), *pairs.T.astype(np.int64))
    assert (start.tolist(), packed.tolist()) == (starts.tolist(), words.tolist())
    others = bits.complement(np.full(len(sets), n_levels), words)
    for start, codes in zip(starts, sets, strict=True):
        for code in range(n_levels + 1):
            bit = others[start + code // 64] >> np.uint64(code % 64) & np.uint64(1)
            assert bool(bit) != (code in codes)
