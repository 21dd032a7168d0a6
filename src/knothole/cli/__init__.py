"""The command line: thin, no mathematics. A command is in the module of its name."""

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
    from knothole.cli.app import prepare, run

    prepare()
    sys.exit(run(sys.argv[1:]))
