# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def add_margin(points: object, nodes: object, leaves: object, tables: object, given: object, out: object) -> None:
    """Add the expected margin of each row to out (rows, outputs)."""

def add_pairs(points: object, nodes: object, leaves: object, tables: object, given: object, weight: object | None, pairs: object | None, squares: object | None) -> None:
    """Add weighted probabilities of pairs of leaves to pairs (leaves, leaves), or E[margin^2] to squares (rows, outputs)."""

def emit(points: object, nodes: object, leaves: object, tables: object, given: object, start: int, tree: int, row: int, out: object) -> tuple[int, ...]:
    """Write (row, leaf, leaf probability) until out is full; returns how many, and where to go on."""
