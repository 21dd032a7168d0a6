# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

BOTH: int

NOT_A_CODE: int

NOT_A_DUMMY: int

NOT_NULLABLE: int

NO_CATEGORY: int

POINTS: int

RESTRICTED: int

TWO_ONES: int

def read_allowed(missing: object, variables: object, categorical: object, offsets: object, points: object, allowed: object) -> None:
    """Set the bits of the categories that each row allows; allowed comes in as zeros."""

def read_categories(X: object, missing: object, variables: object, categorical: object, points: object) -> tuple[int, ...]:
    """Points of categorical variables; returns what was found, and a problem's row and variable."""

def read_numbers(X: object, missing: object, nullable: object, points: object) -> int:
    """Points of numeric variables; returns the first row with a NaN that is not allowed, or -1."""
