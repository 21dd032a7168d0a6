"""The command line: thin, no mathematics. A command is in the module of its name."""

import os
import sys


def main() -> None:
    """Run ``knothole``; the command line's libraries are an extra."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        print(
            f"knothole: the command line needs {error.name}: pip install 'knothole[cli]'.",
            file=sys.stderr,
        )
        sys.exit(1)
    if sys.getfilesystemencoding() == "ascii":  # the C locale: names are UTF-8 all the same
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    from knothole.cli.app import prepare, run

    prepare()
    sys.exit(run(sys.argv[1:]))
