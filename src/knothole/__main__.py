"""``python -m knothole``: the command line."""

from knothole.cli import main

main()
