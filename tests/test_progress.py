"""One bar: a line now and then, or rich's own on a terminal."""

import io
import logging
import re
import sys

import numpy as np
import pytest

import knothole as kh
from knothole import progress
from knothole.progress import bar


def test_a_stream_that_is_no_terminal_gets_plain_lines(capsys):
    with bar("cells", 2, verbose=True) as advance:
        advance("one")
        advance("two")
    assert capsys.readouterr().err == "cells: 2/2 (two)\n"


def test_so_does_a_terminal_without_rich(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
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
    with bar("cells", 1) as advance:
        advance("one")
    assert "cells: one" in capsys.readouterr().err


def shown_on_a_terminal(monkeypatch, total):
    """What one bar says that is alive for 65 seconds, done by half."""
    stream, now = io.StringIO(), [0.0]
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    rich = pytest.importorskip("rich.progress")
    started = rich.Progress
    monkeypatch.setattr(
        rich, "Progress", lambda *columns, **given: started(
            *columns, get_time=lambda: now[0], auto_refresh=False, **given
        ),
    )  # fmt: skip
    with bar("rows", total, verbose=True) as advance:
        for now[0] in (5.0, 15.0, 25.0, 65.0):
            advance(amount=10)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_what_is_called_left_is_what_is_left(monkeypatch):
    text = shown_on_a_terminal(monkeypatch, 80)
    gone, left = re.findall(r"(\S+) gone (\S+) left", text)[-1]
    assert gone == "0:01:05" and left == "0:01:20", text  # 30 of 80 in a minute, and 40 to go


def test_nothing_is_called_left_where_nobody_knows(monkeypatch):
    text = shown_on_a_terminal(monkeypatch, None)
    assert "0:01:05 gone" in text and "left" not in text


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
    assert any(line.startswith("[Mixture] 1 components") for line in caplog.messages)
    assert {record.name for record in caplog.records} == {"knothole"}
    assert capsys.readouterr() == ("", "")
