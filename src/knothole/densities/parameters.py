"""What the parameters of a density must be: every rule is written down once."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from knothole.columns.columns import Variable
from knothole.errors import InvalidInput


@dataclass(frozen=True)
class Rule:
    """A test of a parameter's value, and what it asks for in words."""

    holds: Callable[[Any], bool]
    words: str

    def check(self, name: str, value: Any) -> None:
        """Refuse a value, by the parameter's name, for which the rule does not hold."""
        if not self.holds(value):
            raise InvalidInput(f"{name} must be {self.words}; got {value!r}.")

    def unless(self, *others: Any) -> Rule:
        """The rule with further values that are allowed, such as "auto" or None."""
        return replace(self, holds=lambda value: value in others or self.holds(value))


def one_of(*choices: Any) -> Rule:
    """One of a few values."""
    first = ", ".join(repr(choice) for choice in choices[:-1])
    return Rule(lambda value: value in choices, f"{first} or {choices[-1]!r}")


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return False
    return int(value) >= 1


def _is_number(value: Any, below: float = float("inf")) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return 0 <= float(value) < below


WHOLE = Rule(_is_whole, "a whole number from 1 on")
NUMBER = Rule(_is_number, "a number from 0 on")
FRACTION = Rule(lambda value: _is_number(value, below=1), "a number from 0 on, below 1")

#: Parameters that mean the same wherever a density has them.
SHARED: Mapping[str, Rule] = {
    "strength": NUMBER.unless("auto"),
    "max_iter": WHOLE,
    "tol": NUMBER,
    "n_init": WHOLE,
    "validation_fraction": FRACTION,
}


def check_names(parameter: str, names: Iterable[str], variables: Iterable[Variable]) -> None:
    """Refuse names that are no variable's."""
    known = [variable.name for variable in variables]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"{parameter}: no variable {unknown[0]!r}; there are {known}.")
