# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def split_sets(tree: object, splits: object, set_start: object, left_sets: object, full_start: object, n_words: object) -> None:
    """Categories that arrive at each categorical split, and those that go to each side."""

def variable_sets(splits: object, nodes: object, start: object, sets: object) -> None:
    """Which categories of its variable go left at each split; sets come in as zeros."""
