# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def count_leaves(points: object, nodes: object) -> int:
    """Number of (row, leaf) where the leaf agrees with the row."""

def list_leaves(points: object, nodes: object, row: object, leaf: object) -> int:
    """List (row, leaf), tree by tree, as far as there is room; returns their number."""
