# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def cdf(z: object, out: object) -> None:
    """The distribution function of the standard normal."""

def quantile(u: object, out: object) -> None:
    """The inverse of cdf, for numbers between 0 and 1."""
