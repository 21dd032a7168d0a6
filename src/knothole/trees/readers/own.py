"""The form of trees of one's own, checked, and followed as it says.

A decision node asks one column, and its branches divide what the column can be: a number by
ascending ``below``, which n numbers make n + 1 intervals, each with its lower end; a category by
``levels``, a list of them for each branch. So every row comes to one leaf of a tree, whose value is
the tree's answer (equation 1 of the paper), and a forest adds up its trees' answers times their
weights (equation 2).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.columns.columns import Column, Columns, Kind
from knothole.files import without_doubles
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.layout import pack_sides
from knothole.trees.libraries import Reading, Replay
from knothole.trees.links import FUNCTIONS, Link
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


def read(model: Any) -> Reading:
    """Read a document; it answers for itself, decision by decision."""
    forest = forest_of(model)
    told = all(one.missing is not None for root in forest.roots for one in decisions(root))
    return Reading(understand(forest), lambda X: replay(forest, X), takes_nan=told)


def replay(forest: Forest, X: Floats) -> Replay:
    """Margins and leaves of rows, as the document says."""
    margin = np.tile(forest.base, (len(X), 1))
    leaves = np.zeros((len(X), len(forest.roots)), dtype=np.int64)
    for i, row in enumerate(X):
        for t, (weight, first) in enumerate(zip(forest.weights, forest.outputs, strict=True)):
            leaf = forest.leaf(t, row)
            margin[i, first : first + len(leaf.value)] += weight * leaf.value
            leaves[i, t] = leaf.number
    return Replay(margin, leaves)


def understand(forest: Forest) -> Ensemble:
    """The ensemble of a document."""
    made = _Nodes(forest)
    roots = [made.node(root) for root in forest.roots]
    return Ensemble.build(
        made.nodes(roots),
        columns=forest.columns,
        base=forest.base,
        library=LIBRARY,
        precision="float64",
        link=Link(forest.link),
        classes=forest.classes,
    )


class _Nodes:
    """Binary nodes, one after the other."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.rows: list[tuple[int, float, int, int, bool, int]] = []  # of numbers, by node
        self.leaves: dict[int, Leaf] = {}
        self.sets: list[Mask] = []  # whether each level, and one never seen, goes left

    def node(self, node: Decision | Leaf) -> int:
        """Add a node and all below it; returns its place."""
        place = len(self.rows)
        if isinstance(node, Leaf):
            self.rows.append((-1, np.nan, -1, -1, False, -1))
            self.leaves[place] = node
            return place
        return self._chain(node, 0)

    def _chain(self, node: Decision, first: int) -> int:
        """The branches from one on: the first goes left, the others are further right."""
        if first == len(node.branches) - 1:
            return self.node(node.branches[first])
        place = len(self.rows)
        self.rows.append((-1, np.nan, -1, -1, False, -1))
        cut, own = np.nan, -1
        if node.codes:
            own, n_levels = len(self.sets), len(self.forest.columns[node.column].levels)
            named = np.isin(np.arange(n_levels), list(node.codes[first]))
            self.sets.append(np.append(named, node.unseen == first))
        else:
            cut = node.cuts[first]
        left = self.node(node.branches[first])
        right = self._chain(node, first + 1)
        missing_left = (0 if node.missing is None else node.missing) == first
        self.rows[place] = (node.column, cut, left, right, missing_left, own)
        return place

    def nodes(self, roots: list[int]) -> Nodes:
        """As an ensemble is built from them."""
        forest = self.forest
        feature, cut, left, right, missing_left, own = map(np.array, zip(*self.rows, strict=True))
        width = len(next(iter(self.leaves.values())).value)
        value, native = np.zeros((len(feature), width)), np.zeros(len(feature), dtype=np.int32)
        for place, leaf in self.leaves.items():
            value[place], native[place] = leaf.value, leaf.number
        start, sets = pack_sides(self.sets)
        return Nodes(
            roots=np.array(roots),
            feature=feature,
            cut=cut,
            left=left,
            right=right,
            missing_left=missing_left,
            value=value,
            native_leaf=native,
            set_start=np.append(start, -1)[own],
            sets=sets,
            tree_output=forest.outputs,
            tree_weight=forest.weights,
        )


SUFFIXES = (".json",)


def begins(head: bytes) -> bool:
    """Whether a file that begins like this may be one: the format is named at its start."""
    return head.lstrip().startswith(b"{") and f'"{FORMAT}"'.encode() in head


def load(path: Path) -> Any:
    """The document of a file."""
    return json.loads(path.read_text("utf-8"), object_pairs_hook=without_doubles)


def save(model: Any, path: Path) -> None:
    """Write a document, its format first, so that the file is known by its start."""
    forest_of(model)
    text = json.dumps({"format": FORMAT, **model}, indent=1, default=lambda array: array.tolist())
    path.write_text(text + "\n", "utf-8")


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``; no leaf is hard then."""
    trees = []
    for t, tree in enumerate(model["trees"]):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        ordered = ensemble.value[mine][np.argsort(ensemble.native_leaf[mine])]
        trees.append({**tree, "root": _with(tree["root"], iter(ordered))})
    return copy.deepcopy({**model, "trees": trees})


def _with(node: dict[str, Any], values: Iterator[Floats]) -> dict[str, Any]:
    """A node like this with the next values; one that is in two places becomes two."""
    if "column" in node:
        return {**node, "branches": [_with(branch, values) for branch in node["branches"]]}
    value = next(values)
    return {"value": float(value[0]) if len(value) == 1 else value.tolist()}
