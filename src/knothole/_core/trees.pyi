# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def add_margin(X: object, nodes: object, has_nan: bool, value: object, output: object, out: object) -> None:
    """Add the weighted values of every tree to out (rows, outputs)."""

def add_range(X: object, nodes: object, value: object, output: object, low: object, high: object) -> None:
    """Add each tree's least and largest leaf value that a row can reach, whatever its missing values are."""

def leaves(X: object, nodes: object, has_nan: bool, out: object) -> None:
    """Leaf numbers of complete rows, (rows, trees)."""
