# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

DISTINCT: int

LEAST_CURVATURE: float

LEAST_ROWS: int

LEAVES: int

PENALTY: float

RATE: float

def grow(code: object, width: object, slope: object, curvature: object, margin: object, tree: object) -> int:
    """Grow a tree, add its values to the margins of its rows, and return how many nodes it has."""
