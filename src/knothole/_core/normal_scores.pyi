# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def decode(z: object, maps: object) -> None:
    """Replace scores (columns, rows) by values."""

def encode(x: object, maps: object, z: object, variance: object, base: object) -> None:
    """Scores of x (rows, columns), their variances and log base measures."""

def positions(x: object, maps: object, column: int, z: object) -> None:
    """The lowest score that leads to each value of x in one column."""
