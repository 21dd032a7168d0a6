# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def fill(nodes: object, out: object) -> None:
    """Tabulate the sets of leaves of small trees."""

def narrow_rows(points: object, draws: object, trees: object, ranges: object, sets: object, first: int, out: object) -> None:
    """Restrict sets (rows, trees) to the leaves that each word of 64 draws can reach, out (rows, words, trees)."""

def read_rows(points: object, trees: object, first: int, out: object) -> None:
    """Leaves compatible with the observed values, to columns `first` and after of out (rows, trees)."""
