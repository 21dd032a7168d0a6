# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def add_pairs(leaf: object, begin: int, weight: object, trees: object, place: int, start: object, out: object) -> None:
    """Add the weights of draws to pairs of leaves, of one tree and of the same or a later tree."""

def add_step(leaf: object, step: object, output: int, out: object) -> None:
    """Add the leaf values of draws to margins (draws, outputs), from an output on."""

def place_leaves(leaf: object, mask: object, ends: object, leaf_start: object, first: object, incomplete: object, out: object) -> None:
    """Write the leaf of each draw of a word to out (trees, draws)."""

def sum_by_leaf(leaf: object, weight: object, values: object, output: int, out: object) -> None:
    """Weighted values (draws, outputs), from an output on, summed by leaf, (leaves, width)."""
