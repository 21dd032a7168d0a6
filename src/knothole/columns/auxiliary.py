"""Auxiliary columns: not features of the model, but informative about them.

Trees are over the features only, the density is over both. In
:class:`~knothole.columns.columns.Columns`, auxiliary columns come after the features. This module
finds them in a training table and removes them from the table for the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Column, Columns, Kind
from knothole.columns.read import (
    as_table,
    labels_of,
    listed,
    names_of,
    position_of,
    raw_columns,
    read_table,
)
from knothole.errors import ColumnMismatch, InvalidInput, SuspectColumn

# With fewer rows, columns are not suspected to be identifiers.
FEW = 20


def names_of_auxiliary(auxiliary: Any) -> tuple[str | int, ...]:
    """The caller's names (or positions), checked."""
    if auxiliary is None:
        return ()
    plain = isinstance(auxiliary, Collection) and not isinstance(auxiliary, str | bytes)
    given = tuple(auxiliary) if plain else ()
    if not plain or not all(isinstance(one, str | int | np.integer) for one in given):
        raise InvalidInput(
            f"auxiliary must be a sequence of names of columns (or positions, in an array); got "
            f"{auxiliary!r}. A single column is auxiliary=['name']."
        )
    if len(set(given)) < len(given):
        raise InvalidInput(f"auxiliary must name each column once; got {listed(given)}.")
    return tuple(one if isinstance(one, str) else int(one) for one in given)


def without_auxiliary(table: Any, auxiliary: Sequence[str | int], known: Collection[str]) -> Any:
    """A table for the model: without auxiliary columns, except those that the model was fitted on.

    A pipeline may have been fitted on a table with columns that none of its steps uses.

    Examples
    --------
    >>> without_auxiliary([[0.5, 1.0], [1.5, 2.0]], [1], ()).tolist()
    [[0.5], [1.5]]
    """
    if not auxiliary:
        return table
    table = as_table(table) if not labels_of(table) else table
    labels = labels_of(table)
    if labels == list(range(len(labels))):  # columns without names: auxiliary ones come last
        rest = slice(max(0, table.shape[1] - len(auxiliary)))
        return table.iloc[:, rest] if hasattr(table, "iloc") else table[:, rest]
    names = [str(label) for label in labels]
    gone = {position_of(one, names, "auxiliary") for one in auxiliary}
    keep = [i for i, name in enumerate(names) if i not in gone or name in known]
    if hasattr(table, "iloc"):
        return table.iloc[:, keep]
    return table.select([labels[i] for i in keep])


def auxiliary_of(features: Columns, table: Any, auxiliary: Sequence[str | int]) -> list[Column]:
    """The auxiliary columns of a training table, in the order of ``auxiliary``.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"size": [0.5, 1.5], "city": ["Graz", "Linz"]})
    >>> auxiliary_of(Columns.infer(table[["size"]]), table, ["city"])[0].kind.value
    'categorical'
    """
    table = read_table(table)
    names, named = names_of(table)
    places = [position_of(one, names, "auxiliary") for one in auxiliary]
    if not named and sorted(places) != list(range(len(names) - len(places), len(names))):
        raise InvalidInput(
            f"auxiliary: in an array without names they must be the last columns, after the "
            f"model's {len(features)} features; got positions {listed(places)} of {len(names)} "
            f"columns. Put them there, or pass a DataFrame and name them."
        )
    places = places if named else sorted(places)
    for place in places:
        if features.named and names[place] in features.names:
            raise InvalidInput(
                f"auxiliary names {names[place]!r}, which is a feature of the model; leave it out."
            )
    part = table.iloc[:, places] if named or hasattr(table, "iloc") else table[:, places]
    return [
        Column(
            source.name,
            Kind.CONTINUOUS if source.levels is None else Kind.CATEGORICAL,
            auxiliary=True,
        )
        for source in raw_columns(part, [names[place] for place in places])
    ]


def named_as_in(features: Columns, table: Any) -> Columns:
    """Features without names, with the names that they have in a table."""
    if features.named or isinstance(table, np.ndarray):
        return features
    names, named = names_of(as_table(table))
    if not named:
        return features
    if len(names) != len(features):
        raise ColumnMismatch(
            f"the model was trained on {len(features)} columns without names; the table has "
            f"{len(names)} besides the auxiliary ones: {listed(names)}. Pass those of training."
        )
    columns = (replace(column, name=name) for column, name in zip(features, names, strict=True))
    return replace(features, columns=tuple(columns), named=True)


# ---- columns that are better left out ------------------------------------------------------------


def warn_of_suspects(columns: Columns, matrix: Floats, y: Any, target: str | None) -> None:
    """Warn about auxiliary columns that are the target, are equivalent to it, or number the rows.

    Parameters
    ----------
    columns : Columns
    matrix : float64 (rows, columns)
        Training rows.
    y : array (rows,) or None
        Their targets.
    target : str, optional
        Name of the targets.
    """
    for place in np.flatnonzero(columns.auxiliary).tolist():
        for reason in _suspicions(columns[place], matrix[:, place], y, target):
            warnings.warn(
                f"auxiliary column {columns[place].name!r} {reason}",
                SuspectColumn,
                stacklevel=3,
            )
            break


def _suspicions(column: Column, values: Floats, y: Any, target: str | None) -> Iterator[str]:
    if column.name == target:
        yield (
            "is the target: at deployment it is not known, and what is learned from it does not "
            "hold. Leave it out of auxiliary."
        )
    if y is not None and _says_the_same(values, np.asarray(y)):
        yield (
            "says the same as the target, row by row: if it is made from it, it is not known at "
            "deployment, and what is learned from it does not hold. Leave it out of auxiliary."
        )
    known = values[~np.isnan(values)]
    if column.kind is not Kind.CONTINUOUS and FEW <= len(known) == len(np.unique(known)):
        yield (
            f"has as many levels as rows ({len(known):,}), as an identifier has: it tells nothing "
            f"of other rows. Leave it out of auxiliary."
        )


def _says_the_same(values: Floats, y: NDArray[Any]) -> bool:
    """Whether values and targets determine each other: numbers by order, few levels in pairs."""
    import pandas as pd

    if y.ndim != 1 or len(y) != len(values):
        return False
    known = ~np.isnan(values) & ~pd.isna(y)
    code, own = (pd.factorize(each[known])[0] for each in (values, y))
    levels = len(np.unique(own))
    if levels < 2 or len(np.unique(code)) != levels:
        return False
    if len(np.unique(np.stack([code, own]), axis=1).T) > levels:
        return False
    if 2 * levels <= known.sum():
        return True
    if y.dtype.kind not in "fiub":
        return False
    steps = np.diff(values[known][np.argsort(y[known], kind="stable")])
    return bool((steps >= 0).all() or (steps <= 0).all())
