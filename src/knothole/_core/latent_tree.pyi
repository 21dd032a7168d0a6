# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def draw_states(values: object, tables: object, model: object, uniform: object, out: object) -> None:
    """Latents drawn from p(z | row) with uniform numbers (rows or 1, variables, draws); -1 in rows of probability 0."""

def expectation(values: object, tables: object, model: object, weight: object, out: object, sums: object) -> None:
    """Both passes over weighted rows: log p into out, expected statistics added to sums."""

def log_likelihood(values: object, tables: object, model: object, limit: float, out: object) -> None:
    """Log p of rows; NaN where messages fall by more than exp(limit) at one variable."""
