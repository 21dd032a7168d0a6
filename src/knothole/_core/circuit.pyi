# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def count_leaves(points: object, nodes: object) -> int:
    """Number of pairs (row, leaf) whose leaf is compatible with the observed values."""

def list_leaves(points: object, nodes: object, row: object, leaf: object) -> int:
    """List the pairs (row, leaf), tree by tree, until out is full; returns their number."""
