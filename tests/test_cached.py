"""Attributes computed once: threads do not wait for one another, forked processes go on."""

import ast
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.cached import cached_property
from knothole.expectation.exact.mixture import MixtureEngine
from knothole.expectation.expectation import Expectation

SOURCE = Path(kh.__file__).parent


def robust_model():
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, X.sum(axis=1))
    return kh.wrap(model, X, density=kh.Factorized(random_state=0))


ROW = np.array([[0.5, np.nan, np.nan]])


def test_one_model_does_not_wait_for_another(monkeypatch):
    """Python 3.11 had one lock for a class: a row waited 6.1 s for another model's answers."""
    slow, quick = robust_model(), robust_model()
    first, begun, go_on = slow.expectation_.ensemble, threading.Event(), threading.Event()

    def made(ensemble, density):
        if ensemble is first:
            begun.set()
            assert go_on.wait(60)
        return MixtureEngine(ensemble, density)

    for robust in (slow, quick):
        object.__setattr__(robust.expectation_, "exact_engine", made)
    other = threading.Thread(target=slow.predict, args=(ROW,))
    other.start()
    try:
        assert begun.wait(60)
        answers = []
        asked = threading.Thread(target=lambda: answers.append(quick.predict(ROW)))
        asked.start()
        asked.join(20)
        assert len(answers) == 1 and np.isfinite(answers[0]).all()
    finally:
        go_on.set()
        other.join()


FORKED = """
import os, sys, threading
import numpy as np
from tests.test_cached import ROW, robust_model
from knothole.expectation.exact.mixture import MixtureEngine

robust = robust_model()
robust.predict(ROW)
expected = robust.predict(ROW)
busy, inside = robust_model(), threading.Event()

def made(ensemble, density):
    inside.set()
    threading.Event().wait(60 if os.getpid() == parent else 0)
    return MixtureEngine(ensemble, density)

parent = os.getpid()
object.__setattr__(busy.expectation_, "exact_engine", made)
threading.Thread(target=busy.predict, args=(ROW,), daemon=True).start()
inside.wait()
for _ in range(5):
    child = os.fork()
    if not child:
        fresh = robust_model()
        same = np.array_equal(fresh.predict(ROW), expected) and busy.predict(ROW).shape == (1,)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_forked_while_a_thread_predicts_predicts():
    """A lock that the thread held was held for ever in 9 of 11 children."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.communicate(timeout=90)[0] == "done\n"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_threads_get_one_value():
    together = threading.Barrier(4)

    class Thing:
        @cached_property
        def value(self):
            together.wait(60)
            return object()

    thing, found = Thing(), []
    threads = [threading.Thread(target=lambda: found.append(thing.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(map(id, found))) == 1 and thing.value is found[0]
    assert isinstance(Expectation.engine, cached_property)


def test_nothing_uses_the_one_with_a_lock():
    for path in SOURCE.rglob("*.py"):
        if path.name != "cached.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module == "functools":
                    assert "cached_property" not in {name.name for name in node.names}, path
