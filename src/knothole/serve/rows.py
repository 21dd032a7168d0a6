"""JSON rows in, a table out: what is absent is unknown, what is wrong is named.

A row is an object whose keys are variables or columns. A key that is absent, or null, is a missing
value whose cause is not known; :data:`LOST` says that it was lost, and :data:`NOT_RECORDED`, in
columns that had missing values in training, that it was not recorded. The variable of a one-hot
group takes the name of the column that is 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from knothole.arrays import Mask
from knothole.cached import cached_property
from knothole.columns.columns import Column, Columns, Kind, Variable
from knothole.columns.read import shortened
from knothole.errors import ColumnMismatch, InvalidInput, UnseenCategory

#: What a row says of missing values whose cause is known.
LOST, NOT_RECORDED = "(lost)", "(not recorded)"


def parse(body: bytes) -> Any:
    """JSON that says one thing: no doubled keys, no numbers that are none."""
    try:
        return json.loads(body, object_pairs_hook=_without_doubles, parse_constant=_no_number)
    except RecursionError:
        raise InvalidInput("the body is nested too deeply; send rows as flat objects.") from None
    except UnicodeDecodeError:
        raise InvalidInput("the body must be JSON in UTF-8.") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"the body must be JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except InvalidInput:
        raise
    except ValueError:  # Python's own limit
        raise InvalidInput("a number in the body has too many digits.") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise InvalidInput(f"the key {shortened(double)} stands twice in one object.")
    return found


def _no_number(word: str) -> Any:
    raise InvalidInput(f"{word} is no number in JSON; leave the key out where it is unknown.")


@dataclass(frozen=True)
class Fields:
    """The keys that rows may have, and what each of them takes.

    Examples
    --------
    >>> city = Column("city", Kind.CATEGORICAL, ("Graz",))
    >>> fields = Fields(Columns((Column("age", Kind.INTEGER), city)))
    >>> table, lost, not_recorded = fields.table([{"age": 31}, {"city": "Graz", "age": "(lost)"}])
    >>> table["age"].tolist(), table["city"].tolist(), lost.tolist()
    ([31.0, nan], [None, 'Graz'], [[False, False], [True, False]])
    """

    columns: Columns

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """The variables by name."""
        return {variable.name: variable for variable in self.columns.variables}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.columns.names)}

    @cached_property
    def _one_hot_groups(self) -> set[str]:
        return {group.name for group in self.columns.one_hot}

    def table(self, rows: Sequence[Any]) -> tuple[pd.DataFrame, Mask, Mask]:
        """The rows as a table of the model's columns, what is lost, and what is not recorded."""
        n = len(self.columns)
        cells: list[list[Any]] = [[None] * len(rows) for _ in range(n)]
        given, lost, not_recorded = np.zeros((3, len(rows), n), dtype=np.bool_)
        for r, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise InvalidInput(f"rows[{r}] must be an object; got {shortened(row)}.")
            for key, value in row.items():
                for place, cell in self._cells(key, value, f"rows[{r}].{shortened(key)}"):
                    if given[r, place]:
                        raise InvalidInput(
                            f"rows[{r}]: {self.columns.names[place]!r} is given twice, by itself "
                            f"and by its group."
                        )
                    given[r, place] = True
                    lost[r, place], not_recorded[r, place] = cell == LOST, cell == NOT_RECORDED
                    cells[place][r] = None if cell in (LOST, NOT_RECORDED) else cell
        return (
            pd.DataFrame(
                {
                    column.name: _series(column, values)
                    for column, values in zip(self.columns, cells, strict=True)
                }
            ),
            lost,
            not_recorded,
        )

    def _cells(self, key: str, value: Any, where: str) -> list[tuple[int, Any]]:
        """The columns that a key of a row sets, each with what it sets it to."""
        if value is None:
            self._check_key(key, where)
            return []
        if key in self._places:
            place = self._places[key]
            return [(place, self._cell(self.columns[place], value, where))]
        self._check_key(key, where)
        variable = self.variables[key]
        if _is_cause(value, variable.nullable):
            return [(place, value) for place in variable.columns]
        level = _level(variable.levels, value, where)
        names = self.columns.names
        return [(place, float(names[place] == level)) for place in variable.columns]

    def _check_key(self, key: str, where: str) -> None:
        if key not in self._places and key not in self._one_hot_groups:
            known = ", ".join(map(repr, list(self.variables)[:8]))
            more = " ..." if len(self.variables) > 8 else ""
            raise ColumnMismatch(f"{where}: the model has no such column; it has {known}{more}.")

    def _cell(self, column: Column, value: Any, where: str) -> Any:
        if _is_cause(value, column.nullable):
            return value
        if column.kind is Kind.CATEGORICAL:
            return _level(column.levels, value, where)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(f"{where}: must be a number; got {shortened(value)}.")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InvalidInput(f"{where}: must be a number that a float holds.")
        if column.kind is Kind.INTEGER and not number.is_integer():
            raise InvalidInput(f"{where}: must be a whole number; got {shortened(value)}.")
        return number


def _is_cause(value: Any, nullable: bool) -> bool:
    """Whether a value says why it is missing."""
    return bool(value == LOST or (nullable and value == NOT_RECORDED))


def _level(levels: Sequence[Hashable], value: Any, where: str) -> Hashable:
    """The level that a JSON value names: the level itself, or how it is written."""
    plain = not isinstance(value, list | dict)
    same = [level for level in levels if plain and level == value and _like(level, value)]
    written = [level for level in levels if level is not None and str(level) == value]
    if same or written:
        return (same + written)[0]
    known = ", ".join(shortened(level) for level in levels[:8] if level is not None)
    more = " ..." if len(levels) > 8 else ""
    raise UnseenCategory(
        f"{where}: must be one of {known}{more}; got {shortened(value)}. Leave the key out where "
        f"it is unknown."
    )


def _like(level: Hashable, value: Any) -> bool:
    """Whether equal things are of one kind: 1 and True are equal, and are not the same."""
    return isinstance(level, bool | np.bool_) == isinstance(value, bool)


def _series(column: Column, values: list[Any]) -> pd.Series[Any]:
    if column.kind is Kind.CATEGORICAL:
        return pd.Series(values, dtype=object)
    return pd.Series(values, dtype=np.float64)
