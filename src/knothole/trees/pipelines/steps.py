"""What the steps before a tree model make of each raw column of the training table.

Steps are judged only by what they do: one column of a row is changed, and the outputs that change
come from that column. An output that depends on two columns is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.cached import cached_property
from knothole.columns.columns import Column, Kind
from knothole.columns.evidence import with_nan
from knothole.columns.read import RawColumn, as_table, check_rows, listed, names_of, read_column
from knothole.errors import InvalidInput, UnsupportedModel
from knothole.trees.ensemble import Ensemble, left_codes
from knothole.trees.read import name_levels, read

# ---- rows to ask a pipeline with -----------------------------------------------------------------


Steps = tuple[Any, ...]

# Numbers to try in a column, and base rows from which the other columns are taken.
GRID, BASES = 512, 3
# How far outside the training range to try, in multiples of the range: nearby, and far.
NEAR, FAR = np.arange(1, 33) / 32, 4.0 ** np.arange(1, 9)


@dataclass(frozen=True, eq=False)
class TrainingColumn:
    """A raw column: as read (None if it cannot be read), and its values as the table has them."""

    name: str
    read: RawColumn | None
    values: NDArray[Any]  # observed values
    dtype: Any
    problem: str = ""

    @property
    def numeric(self) -> bool:
        """Whether it is numeric."""
        return self.read is not None and self.read.levels is None

    def grid(self, beyond: Floats | None = None) -> Floats:
        """Numbers to try, ascending: some of the column's values, and some outside their range."""
        known = np.unique(self.values)
        if len(known) > GRID:
            known = np.unique(np.quantile(known, np.linspace(0, 1, GRID), method="nearest"))
        if beyond is None:
            return np.asarray(known)
        far = max(known[-1] - known[0], np.abs(known).max(), 1.0) * beyond
        return np.unique(np.concatenate([known[0] - far, known, known[-1] + far]))


class ProbeTable:
    """The columns of a training table, from which tables with chosen values can be made."""

    def __init__(self, table: Any) -> None:
        table = as_table(table)
        check_rows(table)
        self.is_array = isinstance(table, np.ndarray)
        names, self.named = names_of(table)
        self.labels: list[Any] = list(range(len(names)) if self.is_array else table.columns)
        self.dtype = table.dtype if self.is_array else None
        self.sources = [
            self._source(name, table[:, i] if self.is_array else table.iloc[:, i])
            for i, name in enumerate(names)
        ]
        rng = np.random.default_rng(0)
        empty = [source.name for source in self.sources if not len(source.values)]
        if empty:
            raise InvalidInput(
                f"column {empty[0]!r} of X_train has no value at all, so a pipeline cannot be "
                f"asked what it does with one; pass rows in which it has, or leave it out of both."
            )
        self.base = [rng.choice(source.values, BASES) for source in self.sources]

    def _source(self, name: str, column: Any) -> TrainingColumn:
        try:
            read, problem = read_column(name, column), ""
        except InvalidInput as error:
            read, problem = None, str(error)
        if read is None:
            import pandas as pd

            held = pd.Series(column).dropna()
            values: Any = np.empty(len(held), dtype=object)
            values[:] = held.tolist()
        elif read.levels is None:
            values = read.values[~np.isnan(read.values)]
        else:
            values = np.empty(len(read.levels), dtype=object)
            values[:] = read.levels
        return TrainingColumn(name, read, values, column.dtype, problem)

    def table(self, chosen: Mapping[int, Any]) -> Any:
        """Copies of the first base row, with these values in some of the columns."""
        n = max(len(values) for values in chosen.values())
        columns = [
            self._column(source, chosen.get(i), base[0], n)
            for i, (source, base) in enumerate(zip(self.sources, self.base, strict=True))
        ]
        if self.is_array:
            kind = self.dtype if self.dtype in (np.float32, np.float64, object) else np.float64
            out = np.empty((n, len(columns)), dtype=kind)
            for i, column in enumerate(columns):
                out[:, i] = column
            return out
        import pandas as pd

        return pd.DataFrame(dict(enumerate(columns))).set_axis(self.labels, axis=1)

    def in_every_base(self, position: int, values: Any) -> Any:
        """Every combination of a base row and one of these values in one column."""
        bases = {i: np.tile(base, len(values)) for i, base in enumerate(self.base)}
        return self.table({**bases, position: np.repeat(values, BASES)})

    def _column(self, source: TrainingColumn, values: Any, base: Any, n: int) -> Any:
        given: Any = np.empty(n, dtype=np.float64 if source.numeric else object)
        given[:] = [base] * n if not source.numeric else base
        if values is not None:
            given[: len(values)] = values
        if self.is_array:
            return given
        import pandas as pd

        if source.numeric:
            return given.astype(np.float32 if source.dtype == np.float32 else np.float64)
        if isinstance(source.dtype, pd.CategoricalDtype):  # others would be NaN anyway
            codes = source.dtype.categories.get_indexer(given)
            return pd.Series(pd.Categorical.from_codes(codes, dtype=source.dtype))
        return pd.Series(given, dtype=source.dtype)


def next_to(values: Floats, dtype: Any) -> tuple[Floats, Floats]:
    """The next lower and the next higher number that the column's data type can hold."""
    kind = np.float32 if dtype == np.float32 else np.float64
    exact = values.astype(kind)
    below, above = np.nextafter(exact, kind(-np.inf)), np.nextafter(exact, kind(np.inf))
    return below.astype(np.float64), above.astype(np.float64)


# ---- the steps, and the model behind them --------------------------------------------------------


LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True, eq=False)
class SteppedModel:
    """A tree model (as an ensemble), and the fitted steps that rows go through before it."""

    steps: Steps
    ensemble: Ensemble
    dense: bool = True  # False where a sparse table omits zeros, which the model takes for NaN

    @classmethod
    def of(cls, steps: Steps, model: Any, table: Any) -> SteppedModel:
        """From a model and its training table, which supplies names for hashed categories."""
        from scipy import sparse

        ensemble = read(model)
        omits = ensemble.library == "XGBoost" and sparse.issparse(_through(steps, table))
        front = cls(steps, ensemble, dense=not omits)
        if any(column.levels for column in ensemble.columns):
            return replace(front, ensemble=name_levels(ensemble, front.passed(table)))
        return front

    def passed(self, table: Any, steps: int | None = None) -> Any:
        """The table after the steps, or after the first few of them."""
        made = _through(self.steps[:steps], table)
        if not hasattr(made, "tocoo"):
            return made
        entries = made.tocoo()
        if self.dense:
            return entries.toarray()
        # XGBoost, unlike other libraries, takes what a sparse matrix does not store for NaN.
        dense = np.full(entries.shape, np.nan)
        dense[entries.row, entries.col] = entries.data
        return dense

    def __call__(self, table: Any) -> Floats:
        """The matrix that the trees split on, (rows, columns of the model)."""
        passed = self.passed(table)
        if isinstance(passed, np.ndarray) and passed.dtype.kind in "fiub":
            passed = np.clip(passed.astype(np.float64), -LARGEST, LARGEST)
        elif hasattr(passed, "replace"):
            passed = passed.replace({np.inf: LARGEST, -np.inf: -LARGEST})
        columns, sentinel = self.ensemble.columns, self.ensemble.sentinel
        if hasattr(passed, "columns"):  # LightGBM has underscores for the spaces in their names
            columns = columns.called_as_in(passed)
        return with_nan(columns.matrix(passed, handle_unknown="missing"), sentinel, columns)

    @cached_property
    def splits(self) -> DistinctSplits:
        """The distinct splits of the model."""
        return DistinctSplits.of(self.ensemble)


def _through(steps: Steps, table: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for step in steps:
            table = step.transform(table)
    return table


@dataclass(frozen=True, eq=False)
class DistinctSplits:
    """The distinct splits of an ensemble, numbered.

    Attributes
    ----------
    of_node : int64 (nodes,)
        The split of each node; -1 at leaves.
    column, threshold, missing_left : arrays (splits,)
        As in :class:`~knothole.trees.ensemble.Ensemble`.
    lefts : bool (splits, codes), for categorical splits
        Whether a code goes left.
    """

    of_node: Ints
    column: Integers
    threshold: Floats
    missing_left: Mask
    lefts: Mask

    @classmethod
    def of(cls, ensemble: Ensemble) -> DistinctSplits:
        """Equal numeric splits become one."""
        inner = np.flatnonzero(ensemble.feature >= 0)
        keys = np.column_stack(
            [
                ensemble.feature[inner],
                ensemble.threshold[inner].view(np.int64),
                ensemble.missing_left[inner],
                np.where(ensemble.set_start[inner] >= 0, inner, -1),
            ]
        )
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        of_node = np.full(len(ensemble.feature), -1)
        of_node[inner] = which.reshape(-1)
        nodes = inner[first]
        categorical = np.flatnonzero(ensemble.set_start[nodes] >= 0)
        width = 1 + int(ensemble.n_levels[ensemble.feature[nodes[categorical]]].max(initial=0))
        lefts = np.zeros((len(nodes) if len(categorical) else 0, width), dtype=np.bool_)
        for s in categorical.tolist():
            codes = left_codes(ensemble, int(nodes[s]))
            lefts[s, : len(codes)] = codes
        threshold, missing = ensemble.threshold[nodes], ensemble.missing_left[nodes]
        return cls(of_node, ensemble.feature[nodes], threshold, missing, lefts)

    def __len__(self) -> int:
        return len(self.column)

    def go_left(self, values: Floats, which: Ints) -> Mask:
        """Whether values of each split's column go left; the arguments are broadcast."""
        threshold = self.threshold[which]
        left = values < threshold
        if len(self.lefts):
            code = np.where(np.isnan(threshold) & ~np.isnan(values), values, 0).astype(np.intp)
            left = np.where(np.isnan(threshold), self.lefts[which, code], left)
        return np.asarray(np.where(np.isnan(values), self.missing_left[which], left))

    def sides(self, matrix: Floats) -> Mask:
        """Whether rows of the model's columns go left at every split, (rows, splits)."""
        return self.go_left(matrix[:, self.column], np.arange(len(self))[None])


# ---- what becomes of each column -----------------------------------------------------------------


# How many values of a column are tried with every base row, and together with their neighbours.
FEW = 32


@dataclass(frozen=True, eq=False)
class Domain:
    """The values of one raw column, and what the steps of each front make of them.

    Attributes
    ----------
    position : int
        Position of the column in the table.
    column : Column
        Numeric, or categorical with the levels in the order of ``values``.
    values : array
        Ascending numbers, or levels.
    outputs : list of float64 (values, outputs)
        For each front: its outputs for these values.
    of_nan, of_unseen : list of float64 (outputs,), or None
        The same for NaN and for an unseen level; None where a front refuses it, or where its output
        for NaN depends on other columns.
    depends : list of bool (outputs,)
        Which outputs depend on this column.
    """

    position: int
    column: Column
    values: NDArray[Any]
    outputs: list[Floats]
    of_nan: list[Floats | None]
    of_unseen: list[Floats | None]
    depends: list[NDArray[np.bool_]]

    @property
    def categorical(self) -> bool:
        """Whether the column has levels."""
        return self.column.kind is Kind.CATEGORICAL


def domains_of(rows: ProbeTable, fronts: Sequence[SteppedModel]) -> list[Domain]:
    """The domains of all columns that reach a model, in the order of the table.

    Of a table without column names, all columns are returned, as positions stand for names.
    """
    domains = [
        Domain(position, *_domain(rows, fronts, position)) for position in range(len(rows.sources))
    ]
    for f, front in enumerate(fronts):
        _check_apart(rows, front, np.array([domain.depends[f] for domain in domains]))
    used = [front.splits.column for front in fronts]
    for domain in domains:
        source = rows.sources[domain.position]
        matters = [
            flags[columns].any() for flags, columns in zip(domain.depends, used, strict=True)
        ]
        if source.read is None and any(matters):
            raise InvalidInput(
                f"{source.problem} The pipeline makes something of this column that the model "
                f"splits on: do that before the pipeline, so that it is a column of numbers."
            )
    readable = [domain for domain in domains if rows.sources[domain.position].read is not None]
    if rows.named:
        reaching = [d for d in readable if any(flags.any() for flags in d.depends)]
        return reaching or readable
    return readable


def _domain(rows: ProbeTable, fronts: Sequence[SteppedModel], position: int) -> tuple[Any, ...]:
    """The fields of a domain, without its position."""
    source = rows.sources[position]
    ask = _ColumnProbe(rows, fronts, position)
    apart = ask.apart(source) if source.numeric else None
    number = apart is not None
    values: Any = np.unique(source.values) if source.numeric else source.values[:]
    if source.read is None:
        values = values[: 16 * FEW]
    outputs = None
    if apart is not None:
        # A step may refuse values outside the training range; and for one that oscillates (a sine),
        # no far value settles the direction. Then a smaller range is tried.
        for beyond in (np.concatenate([NEAR, FAR]), NEAR, None):
            grid = ask.with_zeros(np.union1d(source.grid(beyond), apart))
            outputs = ask.all_of(grid)
            if outputs is not None and (beyond is None or ask.settles(grid, outputs, source)):
                values = grid
                break
    if outputs is None:
        outputs = ask.all_of(values)
    if outputs is None:
        raise InvalidInput(
            f"the pipeline refuses values of X_train's own column {source.name!r} ({ask.problem}). "
            f"Pass rows like those that it was trained on."
        )
    sample = values[np.unique(np.linspace(0, len(values) - 1, FEW).astype(np.intp))]
    depends = [_vary(part) for part in outputs]
    for flags, tried in zip(depends, ask.in_bases(sample), strict=True):
        for base in range(BASES):
            if tried is not None:
                flags |= _vary(tried[base::BASES])
    in_bases = ask.in_bases([np.nan])
    for flags, nan, part in zip(depends, in_bases, outputs, strict=True):
        if nan is not None:  # an indicator of missing values depends on NaN alone
            flags |= _vary(np.vstack([part[:1], nan[:1]]))
    of_nan = [
        None if nan is None or _vary(nan)[flags].any() else nan[0]
        for nan, flags in zip(in_bases, depends, strict=True)
    ]
    levels = () if number else tuple(_level(value) for value in values.tolist())
    kind = Kind.CONTINUOUS if number else Kind.CATEGORICAL
    column = Column(source.name, kind, levels)
    unseen = [None] * len(fronts) if number else ask.in_bases([_unseen(source)])
    of_unseen = [None if part is None else part[0] for part in unseen]
    return column, values, outputs, of_nan, of_unseen, depends


class _ColumnProbe:
    """Outputs of all fronts while one column is varied."""

    def __init__(self, rows: ProbeTable, fronts: Sequence[SteppedModel], position: int) -> None:
        self.rows, self.fronts, self.position = rows, fronts, position
        self.problem = ""

    def _of(self, front: SteppedModel, values: Any, bases: bool = False) -> Floats | None:
        """Outputs for values in the first base row, or in every base row; None if refused."""
        position, rows = self.position, self.rows
        try:
            made = rows.in_every_base(position, values) if bases else rows.table({position: values})
            return front(made)
        except Exception as error:  # a step may raise anything
            self.problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            return None

    def in_bases(self, values: Any) -> list[Floats | None]:
        """Outputs of each front, for values in every base row; None where it refuses them."""
        return [self._of(front, values, bases=True) for front in self.fronts]

    def all_of(self, values: Any) -> list[Floats] | None:
        """Outputs of each front; None if any of them refuses."""
        outputs = [self._of(front, values) for front in self.fronts]
        given = [part for part in outputs if part is not None]
        return given if len(given) == len(outputs) else None

    def apart(self, source: TrainingColumn) -> Floats | None:
        """Numbers that are treated unlike their neighbours, and these neighbours; None for levels.

        A one-hot encoder knows single numbers and treats others as unknown: they are levels then.
        """
        known = source.grid()
        below, above = next_to(known, source.dtype)
        three = self.all_of(np.concatenate([known, below, above]))
        if three is None:
            return None
        apart = np.zeros(len(known), dtype=np.bool_)
        for part in three:
            at, low, high = np.split(part, 3)
            apart |= (_jump(at, low) & _jump(at, high)).any(axis=1)
        if apart.sum() > len(known) / 2:
            return None
        return np.concatenate([part[apart] for part in (below, known, above)])

    def settles(self, grid: Floats, outputs: list[Floats], source: TrainingColumn) -> bool:
        """Whether every split's direction changes at most once far outside the known numbers."""
        near = source.grid(NEAR)
        for far in (grid <= near[0], grid >= near[-1]):
            for front, part in zip(self.fronts, outputs, strict=True):
                sides = front.splits.sides(part[far])
                if ((sides[1:] != sides[:-1]).sum(axis=0) > 1).any():
                    return False
        return True

    def with_zeros(self, grid: Floats) -> Floats:
        """The grid and, for XGBoost, numbers that become a zero, which a sparse table omits."""
        numbers_to_try = [grid]
        for front in self.fronts:
            outputs = None if front.dense else self._of(front, grid)
            if outputs is None:
                continue
            at, column = np.nonzero((outputs[:-1] < 0) & ~(outputs[1:] < 0))

            def not_below(
                numbers: Floats, front: SteppedModel = front, column: Any = column
            ) -> Mask:
                made = front(self.rows.table({self.position: numbers.ravel()}))
                of_each = np.repeat(column, numbers.shape[1])
                below = made[np.arange(numbers.size), of_each] < 0
                return np.asarray(~below.reshape(numbers.shape))

            if len(at):
                zero = bisected(not_below, grid[at], grid[at + 1])
                numbers_to_try += [zero, *next_to(zero, np.float64)]
        return np.unique(np.concatenate(numbers_to_try))


def bisected(is_upper: Callable[[Floats], Mask], low: Floats, high: Floats) -> Floats:
    """For each pair, the lowest number above ``low`` at which the predicate starts to hold.

    ``is_upper`` is false at ``low``, true at ``high`` and changes once between them.
    """
    bottom, top = _ordinal(low), _ordinal(high)
    parts = np.arange(1, PARTS, dtype=np.uint64)
    while (top - bottom > 1).any():
        width = top - bottom
        step = np.maximum(width // np.uint64(PARTS), np.uint64(1))
        inside = bottom[:, None] + np.minimum(step[:, None] * parts, width[:, None])
        holds = np.column_stack([is_upper(_number(inside)), np.ones(len(top), dtype=np.bool_)])
        first = holds.argmax(axis=1)
        ends = np.column_stack([bottom, inside, top])
        rows = np.arange(len(top))
        bottom, top = ends[rows, first], ends[rows, first + 1]
    return _number(top)


# Parts that an interval is divided into at once: a call with many rows costs little more.
PARTS = 16
SIGN = np.uint64(2**63)


def _ordinal(number: Floats) -> Words:
    """Integers in the order of the floats, without gaps."""
    bits = np.ascontiguousarray(number, dtype=np.float64).view(np.uint64)
    return np.where(bits >= SIGN, ~bits, bits | SIGN)


def _number(ordinal: Words) -> Floats:
    """The inverse of :func:`_ordinal`."""
    return np.where(ordinal >= SIGN, ordinal & ~SIGN, ~ordinal).view(np.float64)


def _jump(one: Floats, other: Floats) -> Mask:
    """Where the outputs of neighbouring numbers differ by more than rounding, (rows, outputs)."""
    far = 1e-6 * np.nanmax(np.abs(one), axis=0, initial=0.0)
    return np.asarray((np.isnan(one) != np.isnan(other)) | (np.abs(one - other) > far))


def _vary(outputs: Floats) -> NDArray[np.bool_]:
    """Which outputs differ between rows, (outputs,)."""
    same = (outputs == outputs[:1]) | (np.isnan(outputs) & np.isnan(outputs[:1]))
    return np.asarray(~same.all(axis=0))


def _level(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unseen(source: TrainingColumn) -> Any:
    """A value that does not occur in the column."""
    if source.numeric:
        return float(np.max(source.values)) + 1.0
    known = source.values.tolist()
    return "unseen" + "".join(map(str, known[:3])) if isinstance(known[0], str) else "unseen"


def _check_apart(rows: ProbeTable, front: SteppedModel, depends: NDArray[np.bool_]) -> None:
    """Refuse outputs that the trees split on and that depend on several columns."""
    mixed = np.zeros(depends.shape[1], dtype=np.bool_)
    mixed[front.splits.column] = True
    mixed &= depends.sum(axis=0) > 1
    if not mixed.any():
        return
    names = [rows.sources[i].name for i in np.flatnonzero(depends[:, np.argmax(mixed)])]
    raise UnsupportedModel(
        f"{_culprit(rows, front)} makes one column of several ({listed(names)}): where one of them "
        f"is missing, nothing can be said of the rest alone. Do this step before the pipeline, and "
        f"wrap the pipeline without it on what it makes; or leave it out."
    )


def _culprit(rows: ProbeTable, front: SteppedModel) -> str:
    """Name the first step after which an output depends on several columns."""
    for n in range(1, len(front.steps) + 1):
        changed = []
        base = np.asarray(_dense(front, rows.table({0: rows.base[0][:1]}), n), dtype=object)
        for position in range(len(rows.sources)):
            rng = np.random.default_rng(position)
            values = rng.choice(rows.sources[position].values, FEW)
            made = np.asarray(_dense(front, rows.table({position: values}), n), dtype=object)
            changed.append((made != base).any(axis=0))
        mixed = np.sum(changed, axis=0) > 1
        if mixed.any():
            return f"the step {_named(front.steps[n - 1], int(np.argmax(mixed)))}"
    return "the pipeline"


def _named(step: Any, output: int) -> str:
    """The class of a step; in a ColumnTransformer, the part that the output comes from."""
    places = getattr(step, "output_indices_", {})
    inside = [name for name, place in places.items() if place.start <= output < place.stop]
    part = getattr(step, "named_transformers_", {}).get(inside[0]) if inside else None
    return type(step).__name__ if part is None else f"{type(part).__name__} ({inside[0]!r})"


def _dense(front: SteppedModel, table: Any, steps: int) -> Any:
    passed = front.passed(table, steps)
    return passed.to_numpy() if hasattr(passed, "to_numpy") else passed


def sources_of(domains: Sequence[Domain], front: int, splits: Integers) -> Ints:
    """The domain that each column of the model depends on; -1 where it is constant."""
    depends = np.array([domain.depends[front] for domain in domains])
    return np.where(depends[:, splits].any(axis=0), depends[:, splits].argmax(axis=0), -1)
