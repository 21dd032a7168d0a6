# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def describe(tables: object, points: object, allowed: object, odds: object, chance: object, share: object, mean: object, deviation: object) -> None:
    """Write the normal of each component for each row's only missing number, (rows, k)."""

def fill(tables: object, points: object, allowed: object, odds: object, chance: object, uniform: object, out: object) -> None:
    """Draw the missing values of rows, 64 draws at a time, to out (rows, variables, draws)."""
