# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def fill_keys(words: object, out: object) -> None:
    """A hash of each row of words."""

def fill_uniform(net: object, seed: int, keys: object, first_word: int, out: object) -> None:
    """Uniform numbers for keys: net (words, coordinates, points of a group), out (keys, coordinates, draws)."""
