"""The command line: thin, no mathematics.

=============  ===================================================
``app``        the group, exit codes, and where commands are listed
``sources``    CSV and Parquet, read block by block
``matching``   which columns of a file are the model's
``sinks``      CSV and Parquet, written block by block
``output``     files that are there as a whole or not at all
``models``     model files of the libraries, and of knothole
``console``    messages and progress
``options``    what several commands take
=============  ===================================================
"""

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
