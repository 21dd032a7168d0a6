"""Fold the steps of a pipeline into the splits of its trees.

Whatever the steps do, a split sends every value of a raw column left or right. Of a categorical
column, the levels that go left are a set. Of a numeric column, the direction changes at some
points. They are first located between values of the training table and then found exactly by
bisection, so that ``x < point`` is equivalent to the model's own split. A direction that changes
more than once (a step with several bins, a sine) takes several splits; the branches below are
then repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knothole.arrays import Floats, Ints, Mask
from knothole.columns.columns import Columns
from knothole.errors import ReaderMismatch, UnsupportedModel
from knothole.trees.ensemble import Ensemble, NodeList
from knothole.trees.pipelines.steps import Domain, ProbeTable, SteppedModel, bisected, sources_of
from knothole.trees.verify import probe_rows

# The most nodes that repeated branches may lead to.
MOST_NODES = 5_000_000
# Rows on which folded trees are compared with the pipeline.
CHECKED = 256


@dataclass(frozen=True, eq=False)
class RawSplits:
    """The splits of one tree model of a pipeline, on raw columns.

    Attributes
    ----------
    domain : int64 (splits,)
        Number of the raw column among the domains; -1 where no column changes the direction.
    points : list of list of float
        Numeric columns: where the direction changes, ascending.
    first_left : bool (splits,)
        Whether the lowest numbers go left.
    lefts : dict from splits to bool (levels + 1,)
        Categorical columns: whether each level and, last, an unseen one goes left.
    missing_left : bool (splits,)
        Whether NaN goes left.
    """

    domain: Ints
    points: list[list[float]]
    first_left: Mask
    lefts: dict[int, Mask]
    missing_left: Mask


def folded(
    rows: ProbeTable, fronts: Sequence[SteppedModel], domains: Sequence[Domain]
) -> list[Ensemble]:
    """One ensemble for each front, all over the columns of the domains."""
    columns = Columns(tuple(domain.column for domain in domains), named=rows.named)
    trees = []
    for f, front in enumerate(fronts):
        splits = _raw_splits(rows, front, f, domains)
        ensemble = _FoldedTrees(front, splits).ensemble(columns)
        _check(rows, front, f, domains, ensemble)
        trees.append(ensemble)
    return trees


def _raw_splits(
    rows: ProbeTable, front: SteppedModel, f: int, domains: Sequence[Domain]
) -> RawSplits:
    splits = front.splits
    domain = sources_of(domains, f, splits.column)
    constant = splits.sides(domains[0].outputs[f][:1])[0]
    first_left, missing_left = constant.copy(), constant.copy()
    lefts: dict[int, Mask] = {}
    changes: list[tuple[Ints, Floats, Floats]] = []  # splits, and both ends of changes
    for d, one in enumerate(domains):
        mine = np.flatnonzero(domain == d)
        if not len(mine):
            continue
        of_column = splits.column[mine]
        sides = splits.go_left(one.outputs[f][:, of_column], mine)
        nan, unseen = one.of_nan[f], one.of_unseen[f]
        missing_left[mine] = False if nan is None else splits.go_left(nan[of_column], mine)
        if one.categorical:
            other = (
                missing_left[mine] if unseen is None else splits.go_left(unseen[of_column], mine)
            )
            lefts |= dict(zip(mine.tolist(), np.vstack([sides, other]).T, strict=True))
            continue
        first_left[mine] = sides[0]
        at, which = np.nonzero(sides[1:] != sides[:-1])
        changes.append((mine[which], one.values[at], one.values[at + 1]))
    points: list[list[float]] = [[] for _ in range(len(splits))]
    if changes:
        split, low, high = (np.concatenate(parts) for parts in zip(*changes, strict=True))
        for s, point in zip(
            split.tolist(), _points(rows, front, domains, domain, split, low, high), strict=True
        ):
            points[s].append(point)
    return RawSplits(
        domain, [sorted(of_split) for of_split in points], first_left, lefts, missing_left
    )


def _points(
    rows: ProbeTable,
    front: SteppedModel,
    domains: Sequence[Domain],
    domain: Ints,
    split: Ints,
    *ends: Floats,
) -> list[float]:
    """For each split, the lowest number from which on it sends values the way ``high`` goes.

    All columns are varied at once in the same rows: each model output depends on one of them.
    """
    low, high = ends
    splits, column = front.splits, domain[split]
    place = np.zeros(len(split), dtype=np.intp)  # the rows in which each change is tried
    for d in np.unique(column):
        place[column == d] = np.arange((column == d).sum())

    def sides(numbers: Floats) -> Mask:
        """Whether each split sends these numbers left, (splits, numbers)."""
        mine = {d: numbers[column == d].ravel() for d in np.unique(column).tolist()}
        matrix = front(rows.table({domains[d].position: asked for d, asked in mine.items()}))
        width = numbers.shape[1]
        at = place[:, None] * width + np.arange(width)
        return splits.go_left(matrix[at, splits.column[split][:, None]], split[:, None])

    upper = sides(high[:, None])
    points: list[float] = bisected(lambda numbers: sides(numbers) == upper, low, high).tolist()
    return points


class _FoldedTrees:
    """Builds the trees anew, node by node, with splits on raw columns."""

    def __init__(self, front: SteppedModel, splits: RawSplits) -> None:
        self.model, self.of_node, self.splits = front.ensemble, front.splits.of_node, splits
        self.nodes = NodeList()

    def ensemble(self, columns: Columns) -> Ensemble:
        """The trees over raw columns, with the model's own leaf numbers."""
        model = self.model
        roots = [self._tree(int(root)) for root in model.roots]
        ensemble = Ensemble.build(
            self.nodes.build(
                roots,
                model.value,
                model.native_leaf,
                tree_output=model.tree_output,
                tree_weight=model.tree_weight,
            ),
            columns=columns,
            base=model.base,
            library=model.library,
            precision=model.precision,
            link=model.link,
            classes=model.classes,
        ).trained_by(model.recipe)
        if not model.curves:
            return ensemble
        number = {key: i for i, key in enumerate(model.leaf_keys())}
        leaves = [number[key] for key in ensemble.leaf_keys()]
        return ensemble.with_curves(
            {name: curves.of_leaves(leaves) for name, curves in model.curves.items()}
        )

    def _split(
        self, node: int, domain: int, sides: float | Mask, missing_left: bool
    ) -> tuple[int, int]:
        """Make a node a split and add its children."""
        if len(self.nodes) > MOST_NODES:
            raise UnsupportedModel(
                f"a step divides a column of numbers into so many parts that the trees would have "
                f"more than {MOST_NODES:,} nodes. Bin with KBinsDiscretizer(encode='ordinal'), or "
                f"do the step before the pipeline."
            )
        left, right = self.nodes.add(), self.nodes.add()
        self.nodes.split(node, domain, sides, left, right, missing_left)
        return left, right

    def _tree(self, root: int) -> int:
        first = self.nodes.add()
        ranges: dict[int, tuple[float, float]] = {}
        waiting = [(root, first, ranges)]
        while waiting:
            old, node, ranges = waiting.pop()
            if self.model.feature[old] < 0:
                self.nodes.leaf(node, int(self.model.left[old]))
                continue
            waiting += self._divided(old, node, ranges)
        return first

    def _divided(
        self, old: int, node: int, ranges: dict[int, tuple[float, float]]
    ) -> list[tuple[int, int, dict[int, tuple[float, float]]]]:
        """Translate one split: the nodes below it, each with the model's node it stands for."""
        split = int(self.of_node[old])
        domain = int(self.splits.domain[split])
        missing_left = bool(self.splits.missing_left[split])
        branches = {True: int(self.model.left[old]), False: int(self.model.left[old]) + 1}
        if domain < 0:
            return [(branches[bool(self.splits.first_left[split])], node, ranges)]
        if split in self.splits.lefts:
            left, right = self._split(node, domain, self.splits.lefts[split], missing_left)
            return [(branches[True], left, ranges), (branches[False], right, ranges)]
        low, high = ranges.get(domain, (-np.inf, np.inf))
        points = self.splits.points[split]
        side = bool(self.splits.first_left[split]) ^ (sum(p <= low for p in points) % 2 == 1)
        inside = [point for point in points if low < point < high]
        if not inside:  # all numbers go one way, and perhaps NaN the other
            left, right = self._split(node, domain, np.inf if side else -np.inf, missing_left)
            return [(branches[True], left, ranges), (branches[False], right, ranges)]
        below = []
        for place, point in enumerate(inside):
            # NaN goes to the first interval that goes its way.
            left, right = self._split(node, domain, point, side == missing_left)
            below.append((branches[side], left, {**ranges, domain: (low, point)}))
            low, side, node = point, not side, right
            if place + 1 == len(inside):
                below.append((branches[side], node, {**ranges, domain: (low, high)}))
        return below


def _check(
    rows: ProbeTable, front: SteppedModel, f: int, domains: Sequence[Domain], ensemble: Ensemble
) -> None:
    """Compare with the model: rows must reach the same leaves."""
    rng = np.random.default_rng(0)
    matrix = probe_rows(ensemble, CHECKED, rng)
    asked = {}
    for d, domain in enumerate(domains):
        codes = matrix[:, d]
        if domain.of_nan[f] is None:
            codes[np.isnan(codes)] = rng.choice(len(domain.values)) if domain.categorical else 0.0
        if not domain.categorical:
            inside = np.clip(codes, domain.values[0], domain.values[-1])
            asked[domain.position] = matrix[:, d] = inside
            continue
        unseen = codes == len(domain.values)
        codes[unseen] = rng.choice(len(domain.values), int(unseen.sum()))
        known = np.append(domain.values.astype(object), np.nan)
        asked[domain.position] = known[np.where(np.isnan(codes), -1, codes).astype(np.intp)]
    theirs = front.ensemble.native_leaf[front.ensemble.leaves(front(rows.table(asked)), threads=1)]
    ours = ensemble.native_leaf[ensemble.leaves(matrix, threads=1)]
    if not np.array_equal(ours, theirs):
        row, tree = np.argwhere(ours != theirs)[0]
        raise ReaderMismatch(
            f"the pipeline sends the row {matrix[row].tolist()} to leaf {theirs[row, tree]} of "
            f"tree {tree}, but its steps, taken as functions of single columns, to leaf "
            f"{ours[row, tree]}. Some step looks at several columns, or is not the same each "
            f"time. Do it before the pipeline."
        )
