"""One bar: a line now and then, or rich's own on a terminal."""

import sys

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


def test_nothing_is_shown_unasked(capsys):
    for total, verbose in ((2, None), (2, False), (0, True)):
        with bar("cells", total, verbose=verbose) as advance:
            advance("one")
    shown = capsys.readouterr()
    assert not shown.err
    assert not shown.out
