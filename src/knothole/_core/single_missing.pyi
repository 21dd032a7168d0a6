# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def add_expected(points: object, normals: object, trees: object, node_score: object, table: object, value: object, out: object) -> None:
    """Add the expected margin of rows to out (rows, outputs), by sets of leaves."""

def add_margin(points: object, nodes: object, leaves: object, tables: object, given: object, out: object) -> None:
    """Add the expected margin of each row to out (rows, outputs)."""

def emit(points: object, nodes: object, leaves: object, tables: object, given: object, start: int, tree: int, row: int, out: object) -> tuple[int, ...]:
    """Write (row, leaf, leaf probability) until out is full; returns how many, and where to go on."""
