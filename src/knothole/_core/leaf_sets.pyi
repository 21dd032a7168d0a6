# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def fill(nodes: object, out: object) -> None:
    """Tabulate the sets of leaves of small trees."""

def narrow_rows(points: object, draws: object, trees: object, ranges: object, sets: object, first: int, out: object) -> None:
    """Leave of sets (rows, trees) what each word of 64 draws can reach, out (rows, words, trees), of these trees."""

def read_rows(points: object, trees: object, first: int, out: object) -> None:
    """The leaves that what is observed leaves, out (rows, trees), of these trees: columns `first` and after."""
