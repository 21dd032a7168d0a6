"""The ``knothole`` command: its subcommands, and what becomes of errors.

Exit codes: 0 fine; 1 something is wrong with what was given (said in one message, no traceback); 2
the command was called wrongly; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

import click

from knothole.cli.console import say, stderr
from knothole.errors import KnotholeError

FINE, WRONG_INPUT, WRONG_USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

#: Subcommands, each a click command in the module of its name, and what the overview says of them.
COMMANDS = {
    "demo": "Train, make values missing, compare, draw: no download, about a minute.",
    "wrap": "Learn p(X) from a training table, so that a model can answer rows with missing "
    "values.",
    "predict": "Expected predictions for a CSV or Parquet file of any size.",
    "explain": "Why each answer of a file is what it is: what every column adds to it.",
    "acquire": "What to find out next for each row of a file, and what it is worth.",
    "refit": "New leaf values, learned from training rows with missing values.",
    "report": "One HTML file: what missing values do to your model, and what helps.",
    "whatif": "A page to ask a model with unknown inputs, and a server for programs.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called: ``--help`` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the table above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of a name."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"knothole.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""
\b
Examples:
  knothole demo
  knothole wrap model.json train.csv --target price -o model.knothole
  knothole predict model.knothole today.csv -o predictions.csv --std
  knothole report model.knothole --train train.csv --test test.csv --target price

Each command has a --help of its own.
""",
)
@click.version_option(package_name="knothole", prog_name="knothole")
def knothole() -> None:
    """Exact predictions from trained tree models when features are missing."""


def prepare() -> None:
    """Make the process ours: warnings as short messages, and a SIGTERM that cleans up."""
    signal.signal(signal.SIGTERM, _terminate)
    warnings.showwarning = _show_warning


def run(arguments: Sequence[str], command: click.Command = knothole, name: str = "knothole") -> int:
    """Run the command line (or another command, in the same manner) and return its exit code."""
    try:
        code = command.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return WRONG_USAGE
    except click.ClickException as error:
        error.show()
        return WRONG_INPUT
    except (KeyboardInterrupt, click.Abort):
        stderr.print("interrupted; nothing was written.", style="yellow")
        return INTERRUPTED
    except KnotholeError as error:
        return _wrong(str(error))
    except OSError as error:
        what = error.strerror or str(error)
        return _wrong(f"{error.filename}: {what}." if error.filename else f"{what}.")
    # What a command leaves by, click.exceptions.Exit, is what main returns.
    return code if isinstance(code, int) else FINE


def _wrong(message: str) -> int:
    say(message, "error:", "bold red")
    return WRONG_INPUT


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    say(str(message), "warning:", "bold yellow")


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave as after an error, so that half-written files are taken away."""
    sys.exit(TERMINATED)
