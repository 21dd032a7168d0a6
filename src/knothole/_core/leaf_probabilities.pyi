# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def add_products(first: object, leaf: object, probability: object, rest: object, row_weight: object, gram: object, target: object) -> None:
    """Add weighted products of leaf probabilities with each other (upper part) and with rest (rows, width)."""

def count_entries(rows: object, row: object, leaf: object, probability: object, first: object, count: object) -> None:
    """Count the nonzero entries of each row of the matrix."""

def place_entries(rows: object, row: object, leaf: object, probability: object, first: object, next: object, out_leaf: object, out_probability: object) -> None:
    """Write entries at the positions in next, which then move on."""
