"""Checks of arguments and of file contents: plain functions that return nothing, or raise.

``check_choice``, ``check_whole`` and ``check_number`` are for arguments. They raise
:class:`~knothole.errors.InvalidInput`, which names the parameter, the rule, the value and, where
there is one, a way out.

The others are for values and arrays read from a file. Files are not trusted, and kernels do not
check values. They raise :class:`~knothole.errors.DamagedFile`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile, InvalidInput

# Tolerance of sums of probabilities; numpy's samplers refuse larger deviations from 1.
ROUNDING = 1e-8
# Data type of each kind of array; the core accepts no other.
DTYPES = {"f": np.float64, "i": np.int64, "b": np.bool_}


def either(choices: Iterable[Any]) -> str:
    """Choices as text.

    >>> either(["auto", True, 3])
    "'auto', True or 3"
    """
    *first, last = (repr(choice) for choice in choices)
    return f"{', '.join(first)} or {last}" if first else last


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuse a value that is not one of the choices.

    Examples
    --------
    >>> check_choice("tail", "left", ("upper", "lower"))
    Traceback (most recent call last):
    knothole.errors.InvalidInput: tail must be 'upper' or 'lower'; got 'left'.
    """
    choices = tuple(choices)
    if not (isinstance(value, Hashable) and value in choices):
        raise _wrong(name, either(choices), value)


def check_whole(
    name: str, value: Any, least: int = 1, *, also: Sequence[Any] = (), way_out: str = ""
) -> None:
    """Refuse anything but whole numbers from ``least`` on and the values in ``also``.

    Examples
    --------
    >>> check_whole("n_components", "auto", also=["auto"])
    >>> check_whole("n_components", 2.5)
    Traceback (most recent call last):
    knothole.errors.InvalidInput: n_components must be a whole number from 1 on; got 2.5.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not _is_one_of(value, also) and not (whole and int(value) >= least):
        raise _wrong(name, _or(f"a whole number from {least} on", also), value, way_out)


def check_number(
    name: str,
    value: Any,
    least: float = 0.0,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    also: Sequence[Any] = (),
    way_out: str = "",
) -> None:
    """Refuse anything but finite numbers within bounds and the values in ``also``.

    ``above`` and ``below`` are exclusive bounds; ``above`` replaces ``least``.

    Examples
    --------
    >>> check_number("rate", 0.5, most=1)
    >>> check_number("learning_rate", 0, above=0, most=1, also=["auto"])
    Traceback (most recent call last):
    knothole.errors.InvalidInput: learning_rate must be 'auto' or a number above 0, up to 1; got 0.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    within = number and np.isfinite(float(value))
    within = within and (value >= least if above is None else value > above)
    within = within and (most is None or value <= most) and (below is None or value < below)
    if not _is_one_of(value, also) and not within:
        rule = f"a number from {least:g} on" if above is None else f"a number above {above:g}"
        if most is not None:
            rule = f"{rule.removesuffix(' on')}{', up' if above is not None else ''} to {most:g}"
        elif below is not None:
            rule = f"{rule}, below {below:g}"
        raise _wrong(name, _or(rule, also), value, way_out)


def _is_one_of(value: Any, values: Sequence[Any]) -> bool:
    return isinstance(value, Hashable) and value in values


def _or(rule: str, also: Sequence[Any]) -> str:
    return f"{', '.join(map(repr, also))} or {rule}" if also else rule


def _wrong(name: str, rule: str, value: Any, way_out: str = "") -> InvalidInput:
    return InvalidInput(f"{name} must be {rule}; got {value!r}. {way_out}".rstrip())


def require(holds: Any, problem: str) -> None:
    """Refuse a file unless a condition holds.

    Examples
    --------
    >>> require(2 < 1, "two is no less than one")
    Traceback (most recent call last):
    knothole.errors.DamagedFile: two is no less than one
    """
    if not holds:
        raise DamagedFile(problem)


def check_array(
    name: str, array: Any, shape: Sequence[int | None], kind: str = "f", finite: bool = True
) -> None:
    """Refuse anything but an array of this shape (None: any length) and kind of numbers.

    Examples
    --------
    >>> check_array("means", np.zeros((2, 3)), (2, None))
    >>> check_array("means", np.zeros((2, 3)), (2, 4))
    Traceback (most recent call last):
    knothole.errors.DamagedFile: means must be float64 of shape (2, 4); found float64 of (2, 3)
    """
    found = np.asarray(array)
    fits = found.ndim == len(shape) and found.dtype == DTYPES[kind]
    fits = fits and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
    wanted = f"{np.dtype(DTYPES[kind])} of shape {tuple(shape)}"
    require(fits, f"{name} must be {wanted}; found {found.dtype} of {found.shape}")
    if kind == "f":
        unusable = ~np.isfinite(found) if finite else np.isnan(found)
        require(not unusable.any(), f"{name} must be {'finite' if finite else 'no NaN'} everywhere")


def check_positive(name: str, array: Any, shape: Sequence[int | None] = ()) -> None:
    """Refuse anything but an array of positive, finite numbers (without a shape: one number)."""
    check_array(name, array, shape)
    require(np.all(np.asarray(array) > 0), f"{name} must be positive everywhere")


def check_chances(name: str, array: Any, shape: Sequence[int | None]) -> None:
    """Refuse anything but probabilities that add up to 1 over the first axis."""
    check_array(name, array, shape)
    require(np.all(array >= 0), f"{name} must not be negative anywhere")
    total = np.asarray(array).sum(axis=0)
    require(np.all(np.abs(total - 1) <= ROUNDING), f"{name} must add up to 1")


def check_log_chances(name: str, array: Any, shape: Sequence[int | None]) -> None:
    """Refuse anything but logarithms of probabilities that add up to 1 over the first axis."""
    check_array(name, array, shape, finite=False)
    require(np.all(array <= ROUNDING), f"{name} must be logarithms of probabilities")
    check_chances(f"exp({name})", np.exp(array), shape)


def check_type(name: str, value: Any, *types: type) -> None:
    """Refuse a header value of another type; a bool does not count as a number."""
    kinds = " or ".join(kind.__name__ for kind in types)
    require(type(value) in types, f"{name} must be {kinds}; found {type(value).__name__}")


def check_count(what: str, found: int, *said: int) -> None:
    """Refuse a number of things that differs from what the file says elsewhere."""
    require(found in said, f"{found} {what}, not {' or '.join(map(str, said))}")


def check_within(array: NDArray[Any], stop: int, problem: str) -> None:
    """Refuse numbers outside 0 to ``stop`` - 1."""
    require(not len(array) or (array.min() >= 0 and array.max() < stop), problem)


def field_of(document: Any, *path: str) -> Any:
    """The value in a document under these nested keys.

    Examples
    --------
    >>> field_of({"a": {"b": 1}}, "a", "c")
    Traceback (most recent call last):
    knothole.errors.DamagedFile: there is no field 'a.c'
    """
    for depth, key in enumerate(path):
        there = isinstance(document, dict) and key in document
        require(there, f"there is no field {'.'.join(path[: depth + 1])!r}")
        document = document[key]
    return document


def typed(kind: type, value: Any) -> Any:
    """The value, which must be of this type; a bool does not count as a number."""
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    require(fits, f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def whole_numbers(values: Any, name: str) -> NDArray[np.int64]:
    """A list or array of whole numbers, as int64."""
    array = np.asarray(values)
    whole = array.dtype.kind in "ib" or (array.dtype.kind == "u" and array.dtype.itemsize < 8)
    fits = array.ndim == 1 and (whole or not len(array))
    require(fits, f"{name} must be a list of whole numbers")
    return array.astype(np.int64)


def numbers(values: Any, name: str) -> NDArray[Any]:
    """A list or array of numbers; text and booleans are refused."""
    array = np.asarray(values)
    mixed = isinstance(values, list) and not set(map(type, values)) <= {int, float}
    fits = array.ndim == 1 and not mixed and (array.dtype.kind in "fiu" or not len(array))
    require(fits, f"{name} must be a list of numbers")
    return array
