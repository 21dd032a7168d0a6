# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def expect(values: object, weight: object, form: object, log_prior: object, prior: object, total: object, sums: object) -> float:
    """Add a pass of EM over rows to the sums; returns the weighted sum of log p."""

def gather(values: object, share: object, sums: object) -> None:
    """Add shares (rows, components) to the statistics: by code, and times z and z**2."""

def join(values: object, form: object, log_weight: object, out: object) -> None:
    """Log of weight times density (rows, components), without the base measure."""

def nearer(value: object, category: object, seed: object, number: int, distance: object, nearest: object) -> None:
    """Assign the rows that are nearer to a new seed than to those before."""

def pick(share: object, uniform: object, out: object) -> None:
    """Draw components (rows, draws) from shares and uniform numbers."""

def score(values: object, form: object, log_weight: object, weight: object, share: object, log_p: object) -> None:
    """Responsibilities (rows, components) and log p of rows."""
