"""Both versions of a kernel behind one switch, while kernels move from numba to the compiled core.

``KNOTHOLE_BACKEND`` is ``core`` (the default), ``numba`` or ``both``: then both run, on copies of the
same arguments, and their outputs are compared. This module goes when the last kernel has moved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_BACKEND = os.environ.get("KNOTHOLE_BACKEND", "core")


def ported(
    numba_version: Callable[..., Any],
    core_version: Callable[..., Any],
    outputs: Sequence[int],
    adapt: Callable[..., tuple[Any, ...]] = lambda *args: args,
) -> Callable[..., Any]:
    """The kernel that the switch says.

    ``outputs`` are the places of the arguments that the kernel writes and whose contents matter;
    ``adapt`` turns the numba version's arguments into the core's.
    """
    if _BACKEND == "numba":
        return numba_version

    def run(*args: Any) -> Any:
        if _BACKEND != "both":
            return core_version(*adapt(*args))
        twin = _copied(args)
        expected = numba_version(*twin)
        found = core_version(*adapt(*args))
        _compare(expected, found, f"{numba_version.__name__}: result")
        for place in outputs:
            _compare(twin[place], args[place], f"{numba_version.__name__}: argument {place}")
        return found

    return run


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    if isinstance(value, tuple):
        parts = [_copied(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _compare(expected: Any, found: Any, name: str) -> None:
    if isinstance(expected, tuple):
        for i, (one, other) in enumerate(zip(expected, found, strict=True)):
            _compare(one, other, f"{name}[{i}]")
    elif expected is not None:
        a, b = np.asarray(expected), np.asarray(found)
        scale = np.max(np.abs(a[np.isfinite(a)]), initial=0.0) if a.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14 * scale, err_msg=f"PARITY {name}")
