"""Calls of the command line, in this process or in one of their own."""

import subprocess
import sys

import pytest
import xgboost

from knothole.cli.app import WRONG_INPUT, run

FEATURES = ["mean size", "weight", "age", "city"]


def call(*arguments: object, **command: object) -> int:
    """The command line (or another command) in this process."""
    return run([str(argument) for argument in arguments], **command)


def in_subprocess(
    *arguments: object, module: str = "knothole", **options: object
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def refused(capsys, *arguments: object, **command: object) -> str:
    """Exit code 1, one message, nothing on standard output, no traceback."""
    assert call(*arguments, **command) == WRONG_INPUT
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "Traceback" not in shown.err
    return shown.err


def skip_without_levels() -> None:
    """CI has a newer version; ``make oldest`` has not."""
    if xgboost.__version__.startswith("3.0."):
        pytest.skip("XGBoost 3.0 stores no levels of categories, so that its models are refused")
