"""The form of trees of one's own, checked, and followed as it says.

A decision node asks one column, and its branches divide what the column can be: a number by
ascending ``below``, which n numbers make n + 1 intervals, each with its lower end; a category by
``levels``, a list of them for each branch. So every row comes to one leaf of a tree, whose value is
the tree's answer (equation 1 of the paper), and a forest adds up its trees' answers times their
weights (equation 2).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Column, Columns, Kind
from knothole.trees.links import FUNCTIONS
from knothole.trees.strict import Strict

FORMAT, VERSION = "knothole trees", 1
LIBRARY = "trees of your own"

strict = Strict(LIBRARY, "docs/libraries.md has the form.")


@dataclass(frozen=True, eq=False)
class Leaf:
    """Where a tree ends: its answer, and its number among the tree's leaves, depth first."""

    value: Floats
    number: int


@dataclass(frozen=True, eq=False)
class Decision:
    """A node that asks a column; ``cuts`` are of numbers, ``codes`` (for each branch) of levels."""

    column: int
    branches: tuple[Decision | Leaf, ...]
    cuts: tuple[float, ...]
    codes: tuple[frozenset[int], ...]
    missing: int | None
    unseen: int

    def branch(self, value: float) -> int:
        """The branch of a number or code; NaN goes to ``missing``."""
        if np.isnan(value):
            return 0 if self.missing is None else self.missing
        if self.codes:
            return next((b for b, own in enumerate(self.codes) if value in own), self.unseen)
        return sum(value >= cut for cut in self.cuts)


@dataclass(frozen=True, eq=False)
class Forest:
    """A document once checked."""

    columns: Columns
    roots: tuple[Decision | Leaf, ...]
    weights: tuple[float, ...]
    outputs: tuple[int, ...]  # the first that each tree serves
    base: Floats
    link: str
    classes: tuple[Hashable, ...] | None

    def leaf(self, tree: int, row: Floats) -> Leaf:
        """The leaf that a row comes to: the only one whose tests it all passes."""
        node = self.roots[tree]
        while isinstance(node, Decision):
            node = node.branches[node.branch(float(row[node.column]))]
        return node


def forest_of(document: Any) -> Forest:
    """A document, checked.

    Examples
    --------
    >>> root = {"column": "age", "below": [18], "branches": [{"value": 1.0}, {"value": 2.0}]}
    >>> forest = forest_of({"format": FORMAT, "columns": ["age"], "trees": [{"root": root}]})
    >>> [float(forest.leaf(0, [age]).value[0]) for age in (17.0, 18.0)]
    [1.0, 2.0]
    """
    strict.require(isinstance(document, Mapping), "a model must be a dictionary")
    named = document.get("format")
    strict.require(named == FORMAT, f"'format' must be {FORMAT!r}; found {named!r}")
    version = document.get("version", VERSION)
    strict.require(version == VERSION, f"'version' must be {VERSION}; found {version!r}")
    known = ("format", "version", "columns", "trees", "base", "link", "classes")
    _only(document, known, "a model")
    columns = _columns(strict.of(list, strict.field(document, "columns")))
    classes = document.get("classes")
    if classes is not None:
        classes = _labels(classes, "classes")
        fits = len(set(classes)) == len(classes) > 1
        strict.require(fits, "'classes' must be two labels or more, each once")
    link = document.get("link", "identity")
    links = tuple(FUNCTIONS)
    strict.require(link in links, f"'link' must be one of {links}; found {link!r}")
    trees = strict.of(list, strict.field(document, "trees"))
    strict.require(trees, "'trees' must not be empty")
    labels = None if link == "sigmoid" and len(classes or ()) == 2 else classes
    found = [_Parser(columns, labels, t).tree(tree) for t, tree in enumerate(trees)]
    roots, weights, first, widths = zip(*found, strict=True)
    strict.require(len(set(widths)) == 1, "leaves must all have as many values")
    if "base" not in document:
        fits = max(first) < len(trees)
        strict.require(fits, "there are more outputs than trees; say what all start from in 'base'")
    base = document["base"] if "base" in document else [0.0] * (max(first) + widths[0])
    base = _numbers(base, "base").astype(np.float64)
    if classes is not None:
        n = 1 if labels is None else len(classes)
        strict.count("outputs", len(base), n)
    return Forest(columns, roots, weights, first, base, link, classes)


def _columns(described: list[Any]) -> Columns:
    columns = []
    for one in described:
        one = {"name": one} if isinstance(one, str) else strict.of(dict, one)
        _only(one, ("name", "levels"), "a column")
        name = strict.of(str, strict.field(one, "name"))
        levels = _labels(one.get("levels", []), "levels")
        strict.require(len(set(levels)) == len(levels), f"{name!r} must have each level once")
        kind = Kind.CATEGORICAL if levels else Kind.CONTINUOUS
        columns.append(Column(name, kind, levels))
    names = [column.name for column in columns]
    strict.require(names and len(set(names)) == len(names), "columns must have different names")
    return Columns(tuple(columns))


def _numbers(given: Any, name: str) -> Floats:
    """One number or a list of them; numpy's are as good."""
    listed = list(given) if isinstance(given, list | np.ndarray) else [given]
    plain = [one.item() if isinstance(one, np.number) else one for one in listed]
    strict.require(all(type(one) in (int, float) for one in plain), f"{name} must hold numbers")
    return strict.numbers(plain, name)


def _labels(given: Any, name: str) -> tuple[Hashable, ...]:
    """Classes or levels, which are text, numbers or booleans."""
    fits = all(isinstance(one, str | int | float) for one in strict.of(list, given))
    strict.require(fits, f"{name!r} must be text or numbers")
    return tuple(given)


def _only(document: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    strange = [key for key in document if key not in known]
    strict.require(not strange, f"{what} has {', '.join(known)}; found {strange[:1]}")


class _Parser:
    """One tree of a document."""

    def __init__(self, columns: Columns, labels: Any, number: int) -> None:
        self.columns, self.labels, self.number = columns, labels, number
        self.leaves = 0
        self.width: int | None = None

    def tree(self, document: Any) -> tuple[Any, float, int, int]:
        """Root, weight, first output, and how many values leaves have."""
        _only(strict.of(dict, document), ("root", "weight", "output"), "a tree")
        weight = _numbers([document.get("weight", 1.0)], "weight")[0]
        output = strict.of(int, document.get("output", 0))
        try:
            root = self._node(strict.field(document, "root"))
        except RecursionError:
            raise strict.damage(f"tree {self.number} is too deep") from None
        return root, float(weight), output, self.width or 0

    def _node(self, document: Any) -> Decision | Leaf:
        strict.of(dict, document)
        if "column" in document:
            return self._decision(document)
        _only(document, ("value", "label"), "a leaf")
        strict.require(len(document) == 1, "a leaf must have either a 'value' or a 'label'")
        if "label" in document:
            where = f"a 'label' must be one of the classes; found {document['label']!r}"
            strict.require(self.labels is not None and document["label"] in self.labels, where)
            value = (np.array(self.labels, dtype=object) == document["label"]).astype(np.float64)
        else:
            value = _numbers(document["value"], "value")
        width = self.width = len(value) if self.width is None else self.width
        strict.count("values of a leaf", len(value), width)
        self.leaves += 1
        return Leaf(value.astype(np.float64), self.leaves - 1)

    def _decision(self, document: dict[str, Any]) -> Decision:
        known = ("column", "below", "levels", "branches", "missing", "unseen")
        _only(document, known, "a decision")
        name = document["column"]
        strict.require(name in self.columns.names, f"there is no column {name!r}")
        place = self.columns.names.index(name)
        own = self.columns[place].levels
        cuts: tuple[float, ...] = ()
        codes: tuple[frozenset[int], ...] = ()
        if own:
            codes = self._codes(strict.of(list, strict.field(document, "levels")), own, name)
            n = len(codes)
        else:
            given = _numbers(strict.field(document, "below"), "below")
            fits = len(given) > 0 and bool(np.isfinite(given).all() and (np.diff(given) > 0).all())
            strict.require(fits, f"'below' of {name!r} must be ascending numbers")
            cuts, n = tuple(map(float, given)), len(given) + 1
        branches = strict.of(list, strict.field(document, "branches"))
        strict.count(f"branches of {name!r}", len(branches), n)
        places = [document.get("missing"), document.get("unseen")]
        for which in places:
            fits = which is None or (type(which) is int and 0 <= which < n)
            strict.require(fits, f"'missing' and 'unseen' must be places of branches of {name!r}")
        missing, unseen = places
        other = unseen if unseen is not None else n - 1 if missing is None else missing
        below = tuple(self._node(branch) for branch in branches)
        return Decision(place, below, cuts, codes, missing, other)

    def _codes(self, given: list[Any], own: Any, name: str) -> tuple[frozenset[int], ...]:
        """Codes of the levels of each branch, which must have every level once."""
        codes = tuple(
            frozenset(own.index(level) for level in strict.of(list, levels) if level in own)
            for levels in given
        )
        flat = [level for levels in given for level in levels]
        fits = sorted(map(repr, flat)) == sorted(map(repr, own)) and len(codes) > 1
        strict.require(fits, f"the branches of {name!r} must have each of its levels once")
        return codes


def decisions(node: Decision | Leaf) -> Iterator[Decision]:
    """All decisions of a tree."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Decision):
            yield one
            waiting += one.branches
