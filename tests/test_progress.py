"""One bar: a line now and then, or one of tqdm on a terminal."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import sys
import termios
import time
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

import knothole as kh
from knothole import progress
from knothole.errors import InvalidInput
from knothole.progress import bar


def test_a_stream_that_is_no_terminal_gets_plain_lines(capsys):
    with bar("cells", 2, verbose=True) as advance:
        advance("one")
        advance("two")
    assert capsys.readouterr().err == "cells: 2/2 (two)\n"


def test_so_does_a_terminal_without_tqdm(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "MOMENT", 0.0)
    with bar("rows", 2000) as advance:
        advance(amount=1000)
        advance(amount=1000)
    assert capsys.readouterr().err == "rows: 2,000/2,000\n"


def test_lines_come_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "QUIET", -1.0)
    with bar("learning", verbose=True) as advance:
        advance("leaves")
        advance()
    assert capsys.readouterr().err == "learning: 1 (leaves)\nlearning: 2\n"


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bar("cells", 1, verbose=True) as advance:
        advance("one")
    assert "cells: one" in capsys.readouterr().err


def shown_on_a_terminal(monkeypatch, total):
    """What one bar says that is alive for 65 seconds, done by half."""
    stream, now = io.StringIO(), [0.0]
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with bar("rows", total, verbose=True) as advance:
        for now[0] in (5.0, 15.0, 25.0, 65.0):
            advance(amount=10)
    return stream.getvalue()


def test_what_is_called_left_is_what_is_left(monkeypatch):
    text = shown_on_a_terminal(monkeypatch, 120)
    gone, left = re.findall(r"(\S+) gone (\S+) left", text)[-1]
    assert gone == "01:05" and left == "02:10", text  # 40 of 120 in 65 seconds, and 80 to go


def test_nothing_is_called_left_where_nobody_knows(monkeypatch):
    text = shown_on_a_terminal(monkeypatch, None)
    assert "01:05 gone" in text and "left" not in text


def test_nothing_is_shown_unasked(capsys):
    for total, verbose in ((2, "auto"), (2, False), (0, True)):
        with bar("cells", total, verbose=verbose) as advance:
            advance("one")
    shown = capsys.readouterr()
    assert not shown.err
    assert not shown.out


def test_a_log_that_is_set_up_has_everything_and_the_error_stream_nothing(caplog, capsys):
    with caplog.at_level(logging.INFO, "knothole"):
        with bar("cells", 1, verbose=True) as advance:
            advance()
        X = np.random.default_rng(0).normal(size=(60, 2))
        kh.Mixture(random_state=0).fit(X)
    assert caplog.messages[0] == "cells: 1/1"
    assert any(line.startswith("[Mixture] 2 components") for line in caplog.messages)
    assert {record.name for record in caplog.records} == {"knothole"}
    assert capsys.readouterr() == ("", "")


def test_a_terminal_is_not_told_of_what_takes_a_moment(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bar("cells", 1) as advance:
        advance("one")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with bar("cells", 1) as advance:
        advance("one")
    assert not capsys.readouterr().err


def test_a_bar_comes_when_it_takes_longer(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "MOMENT", 0.01)
    with bar("cells", 2) as advance:
        advance("one")
        time.sleep(0.3)
    shown = capsys.readouterr().err
    assert "cells: one" in shown


def test_a_bar_within_a_bar_is_silent(capsys):
    with bar("outer", 1, verbose=True) as advance:
        with bar("inner", 1, verbose=True) as within:
            within()
        advance()
    with bar("next", 1, verbose=True) as advance:
        advance()
    assert capsys.readouterr().err == "outer: 1/1\nnext: 1/1\n"


def test_lines_tell_what_is_left(monkeypatch, capsys):
    monkeypatch.setattr(progress, "QUIET", -1.0)
    clock = iter([0.0, 30.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with bar("cells", 4, verbose=True) as advance:
        advance()
        advance(amount=3.0)
    assert capsys.readouterr().err == "cells: 1/4, about 90 s left\ncells: 4/4\n"


def test_a_notebook_is_known_by_its_shell(monkeypatch):
    assert not progress.in_notebook()
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert progress.in_notebook()


def test_verbose_is_one_of_three():
    with pytest.raises(InvalidInput, match="verbose must be 'auto', True or False; got 'loud'"):
        kh.wrap(None, None, verbose="loud")


def test_wrap_names_its_stages_and_says_how_much_is_done(monkeypatch, capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3)) + rng.normal(size=(150, 1))
    X[:40, 0] = np.nan
    model = HistGradientBoostingRegressor(max_iter=5).fit(X, X[:, 1])
    candidates = [kh.Factorized(), kh.Mixture(2, random_state=0)]
    kh.wrap(model, X, X[:, 1], candidates, verbose=True)
    lines = capsys.readouterr().err.splitlines()
    stages = [
        "choose the size of a density: independent", "choose the size of a density: mixture",
        "compare densities: independent", "independent: held-out RMSE ",
        "compare densities: mixture", "mixture: held-out RMSE ", "fit mixture to all rows",
        "predict rows by clones of the model that have not seen them",
        "choose what missing values mean", "learn a correction", "done",
    ]  # fmt: skip
    assert len(lines) == len(stages)
    for line, stage in zip(lines, stages, strict=True):
        assert re.match(rf"\[wrap\] +\d+ % {re.escape(stage)}", line), line
    done = [int(line.split()[1]) for line in lines]
    assert done == sorted(done) and done[0] == 0 and done[-1] == 100
    for density in (kh.Factorized(), candidates[1].fit(X), kh.wrap(model, X, X[:, 1]).density_):
        kh.wrap(model, X, X[:, 1], density, verbose=True)
        assert capsys.readouterr().err.splitlines()[-1] == "[wrap] 100 % done"
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "MOMENT", 0.0)
    kh.wrap(model, X, X[:, 1], candidates)
    shown = stream.getvalue()
    assert "wrapping: fit mixture to all rows" in shown and "100%" in shown and " left" in shown


def test_a_narrow_terminal_cuts_what_is_going_on_and_not_the_times(monkeypatch):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(slave, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with bar("wrapping", 100, verbose=True) as advance:
            advance("predict rows by clones of the model that have not seen them " * 2, 50)
        stream.flush()
        text = os.read(master, 1 << 16).decode()
    os.close(master)
    lines = [line for line in text.split("\r") if " 50% " in line]
    assert lines and all(len(line.rstrip("\n")) <= 80 for line in lines)
    assert all(" gone " in line and " left, wrapping: predict rows" in line for line in lines)
