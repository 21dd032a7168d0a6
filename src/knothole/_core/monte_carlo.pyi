# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def fill_group_sums(sets: object, draws: object, forest: object, small: object, leaves: object, out: object) -> None:
    """Margins summed over groups of draws, (rows, groups, outputs)."""

def fill_margins(points: object, sets: object | None, draws: object, forest: object, small: object | None, leaves: object, out: object) -> None:
    """Margins of rows' own draws, (rows, words, 64, outputs)."""

def fill_reached(points: object, sets: object | None, draws: object, word: int, forest: object, small: object | None, leaves: object, row: int, out: object) -> tuple[int, ...]:
    """Leaves that a word of each row's draws reaches: the number of entries, and the next row."""

def summarise(margins: object, values: object, corrects: bool, out: object) -> None:
    """Sums over draws from which means are estimated, (rows, outputs, 7, groups)."""
