# Written by tools/stubs.py from the bindings in core/. Arrays are objects there.

def information(codes: object, weight: object, start: int, stop: int, n_codes: int, out: object) -> None:
    """Mutual information of variables from start to stop with those after them, into out (variables, variables)."""
