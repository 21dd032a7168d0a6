# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def add_cells(weight: object, values: object, out: object) -> None:
    """Weighted means over cells."""

def fill_cells(sets: object, share: object, small: object, leaves: object, first: int, mass: object, margins: object, weight: object) -> None:
    """Margins and masses between the thresholds of a single missing number."""

def fill_components(draws: object, forest: object, first_slot: object, word: int, places: object, masks: object) -> None:
    """The draws of a word in each component."""

def fill_shared_margins(share: object, sets: object, shared: object, first: int, telling: object, places: object, small: object, leaves: object, out: object) -> None:
    """Margins of shared draws, (rows, words, 64, outputs)."""
