"""Trees defined by the user: a dictionary, or a JSON file of it (docs/libraries.md).

A decision tests one column, and its branches partition the column's values: numbers by ascending
``below`` (n of them make n + 1 intervals, each including its lower end), categories by ``levels``,
one list per branch. So every row reaches one leaf of a tree, whose value is the tree's answer
(equation 1 of the paper). A forest adds up the answers of its trees, times their weights
(equation 2). In an ensemble, a decision with k branches becomes k - 1 binary splits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from knothole.arrays import Floats, Ints
from knothole.checks import check_count, field_of, numbers, require, typed
from knothole.columns.columns import Column, Columns, Kind
from knothole.errors import DamagedFile
from knothole.files import without_doubles
from knothole.trees.ensemble import Ensemble, NodeList
from knothole.trees.libraries import ModelReading, Replay
from knothole.trees.links import FUNCTIONS, Link

FORMAT, VERSION = "knothole trees", 1
LIBRARY = "trees of your own"
WAY_OUT = "docs/libraries.md has the form."
SUFFIXES = (".json",)


def read(model: Any) -> ModelReading:
    """Read a document; its replay follows the document itself, decision by decision.

    Examples
    --------
    >>> root = {"column": "age", "below": [18], "branches": [{"value": 1.0}, {"value": 2.0}]}
    >>> reading = read({"format": FORMAT, "columns": ["age"], "trees": [{"root": root}]})
    >>> reading.ensemble.margin(np.array([[17.0], [18.0]])).ravel().tolist()
    [1.0, 2.0]
    """
    require(isinstance(model, Mapping), "a model must be a dictionary")
    named = model.get("format")
    require(named == FORMAT, f"'format' must be {FORMAT!r}; found {named!r}")
    version = model.get("version", VERSION)
    require(version == VERSION, f"'version' must be {VERSION}; found {version!r}")
    known = ("format", "version", "columns", "trees", "base", "link", "classes")
    _only(model, known, "a model")
    columns = _columns(typed(list, field_of(model, "columns")))
    classes = model.get("classes")
    if classes is not None:
        classes = _labels(classes, "classes")
        different = len(set(classes)) == len(classes) > 1
        require(different, "'classes' must be two labels or more, each once")
    link = model.get("link", "identity")
    links = tuple(FUNCTIONS)
    require(link in links, f"'link' must be one of {links}; found {link!r}")
    trees = typed(list, field_of(model, "trees"))
    require(trees, "'trees' must not be empty")
    labels = None if link == "sigmoid" and len(classes or ()) == 2 else classes
    document = _Document(columns, labels)
    for tree in trees:
        document.add_tree(tree)
    base = document.base(model.get("base"))
    if classes is not None:
        check_count("outputs", len(base), 1 if labels is None else len(classes))
    ensemble = Ensemble.build(
        document.nodes.build(
            document.roots,
            np.array(document.values),
            document.numbers,
            tree_output=[output for _, _, output in document.trees],
            tree_weight=[weight for _, weight, _ in document.trees],
        ),
        columns=columns,
        base=base,
        library=LIBRARY,
        precision="float64",
        link=Link(link),
        classes=classes,
    )
    return ModelReading(ensemble, lambda X: document.replay(base, X), document.sends_missing)


def begins(head: bytes) -> bool:
    """Whether a file may be such a document: its first bytes name the format."""
    return head.lstrip().startswith(b"{") and f'"{FORMAT}"'.encode() in head


def load(path: Path) -> Any:
    """Load the document of a file."""
    return json.loads(path.read_text("utf-8"), object_pairs_hook=without_doubles)


def save(model: Any, path: Path) -> None:
    """Write a document with its format first, which identifies the file."""
    read(model)
    text = json.dumps({"format": FORMAT, **model}, indent=1, default=lambda array: array.tolist())
    path.write_text(text + "\n", "utf-8")


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` with the leaf values of ``ensemble``; leaves no longer have classes."""
    trees = []
    for t, tree in enumerate(model["trees"]):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        ordered = ensemble.value[mine][np.argsort(ensemble.native_leaf[mine])]
        trees.append({**tree, "root": _with(tree["root"], iter(ordered))})
    return copy.deepcopy({**model, "trees": trees})


def _with(node: dict[str, Any], values: Iterator[Floats]) -> dict[str, Any]:
    """A copy of a node with the next leaf values; shared nodes are duplicated."""
    if "column" in node:
        return {**node, "branches": [_with(branch, values) for branch in node["branches"]]}
    value = next(values)
    return {"value": float(value[0]) if len(value) == 1 else value.tolist()}


def _columns(described: list[Any]) -> Columns:
    columns = []
    for one in described:
        one = {"name": one} if isinstance(one, str) else typed(dict, one)
        _only(one, ("name", "levels"), "a column")
        name = typed(str, field_of(one, "name"))
        levels = _labels(one.get("levels", []), "levels")
        require(len(set(levels)) == len(levels), f"{name!r} must have each level once")
        kind = Kind.CATEGORICAL if levels else Kind.CONTINUOUS
        columns.append(Column(name, kind, levels))
    names = [column.name for column in columns]
    require(names and len(set(names)) == len(names), "columns must have different names")
    return Columns(tuple(columns))


def _numbers(given: Any, name: str) -> Floats:
    """A number or a list of numbers; numpy's are accepted too."""
    listed = list(given) if isinstance(given, list | np.ndarray) else [given]
    plain = [one.item() if isinstance(one, np.number) else one for one in listed]
    require(all(type(one) in (int, float) for one in plain), f"{name} must hold numbers")
    return numbers(plain, name).astype(np.float64)


def _labels(given: Any, name: str) -> tuple[Hashable, ...]:
    """Class labels or levels: text, numbers or booleans."""
    plain = all(isinstance(one, str | int | float) for one in typed(list, given))
    require(plain, f"{name!r} must be text or numbers")
    return tuple(given)


def _only(document: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    strange = [key for key in document if key not in known]
    require(not strange, f"{what} has {', '.join(known)}; found {strange[:1]}")


class _Document:
    """The checked trees of a document: as nodes, and as roots that a replay can follow."""

    def __init__(self, columns: Columns, labels: tuple[Hashable, ...] | None) -> None:
        self.columns, self.labels = columns, labels
        self.sends_missing = True  # whether every decision says where a missing value goes
        self.trees: list[tuple[dict[str, Any], float, int]] = []  # root, weight, first output
        self.roots: list[int] = []
        self.nodes = NodeList()
        self.values: list[Floats] = []  # by leaf
        self.numbers: list[int] = []  # of leaves, each in its tree
        self.first_leaf, self.width = 0, 0  # of the tree being read

    def add_tree(self, tree: Any) -> None:
        """Check a tree and add its nodes."""
        _only(typed(dict, tree), ("root", "weight", "output"), "a tree")
        weight = float(_numbers([tree.get("weight", 1.0)], "weight")[0])
        output = typed(int, tree.get("output", 0))
        width, self.first_leaf, self.width = self.width, len(self.values), 0
        root = field_of(tree, "root")
        try:
            self.roots.append(self._node(root))
        except RecursionError:
            raise DamagedFile(f"tree {len(self.trees)} is too deep") from None
        require(width in (0, self.width), "leaves must all have as many values")
        self.trees.append((root, weight, output))

    def base(self, given: Any) -> Floats:
        """The initial value of each output: from the document, or 0."""
        if given is not None:
            return _numbers(given, "base")
        last = max(output for _, _, output in self.trees)
        fewer = last < len(self.trees)
        require(fewer, "there are more outputs than trees; say what all start from in 'base'")
        return np.zeros(last + self.width)

    def _node(self, document: Any) -> int:
        """Add a node and everything below it; returns its position."""
        if "column" in typed(dict, document):
            return self._decision(document)
        _only(document, ("value", "label"), "a leaf")
        require(len(document) == 1, "a leaf must have either a 'value' or a 'label'")
        if "label" in document:
            label = document["label"]
            known = self.labels is not None and label in self.labels
            require(known, f"a 'label' must be one of the classes; found {label!r}")
        value = self._value(document)
        self.width = self.width or len(value)
        check_count("values of a leaf", len(value), self.width)
        self.values.append(value)
        self.numbers.append(len(self.values) - 1 - self.first_leaf)
        place = self.nodes.add()
        self.nodes.leaf(place, len(self.values) - 1)
        return place

    def _value(self, leaf: dict[str, Any]) -> Floats:
        if "label" in leaf:
            return np.array([label == leaf["label"] for label in self.labels or ()], dtype=float)
        return _numbers(leaf["value"], "value")

    def _decision(self, document: dict[str, Any]) -> int:
        """One split for each branch but the last: left is the branch, right are the later ones."""
        known = ("column", "below", "levels", "branches", "missing", "unseen")
        _only(document, known, "a decision")
        name = document["column"]
        require(name in self.columns.names, f"there is no column {name!r}")
        column = self.columns.names.index(name)
        levels = self.columns[column].levels
        thresholds = np.full(0, np.nan)
        if levels:
            n = self._check_levels(typed(list, field_of(document, "levels")), levels, name)
        else:
            thresholds = _numbers(field_of(document, "below"), "below")
            ascending = (
                len(thresholds) > 0
                and np.isfinite(thresholds).all()
                and (np.diff(thresholds) > 0).all()
            )
            require(ascending, f"'below' of {name!r} must be ascending numbers")
            n = len(thresholds) + 1
        branches = typed(list, field_of(document, "branches"))
        check_count(f"branches of {name!r}", len(branches), n)
        for place in (document.get("missing"), document.get("unseen")):
            inside = place is None or (type(place) is int and 0 <= place < n)
            require(inside, f"'missing' and 'unseen' must be places of branches of {name!r}")
        self.sends_missing &= document.get("missing") is not None
        branch_of = self._branch_of_levels(document, levels)
        places = [self.nodes.add() for _ in range(n - 1)]
        children = [self._node(branch) for branch in branches]
        for branch, place in enumerate(places):
            right = children[-1] if branch == n - 2 else places[branch + 1]
            missing_left = (document.get("missing") or 0) == branch
            sides = branch_of == branch if levels else float(thresholds[branch])
            self.nodes.split(place, column, sides, children[branch], right, missing_left)
        return places[0]

    def _check_levels(self, given: list[Any], levels: tuple[Hashable, ...], name: str) -> int:
        """The number of branches; together they must have every level exactly once."""
        listed = [level for branch in given for level in typed(list, branch)]
        each_once = sorted(map(repr, listed)) == sorted(map(repr, levels)) and len(given) > 1
        require(each_once, f"the branches of {name!r} must have each of its levels once")
        return len(given)

    def _branch_of_levels(self, document: dict[str, Any], levels: tuple[Hashable, ...]) -> Ints:
        """The branch of each level and, last, of an unseen one."""
        missing, unseen = document.get("missing"), document.get("unseen")
        last = len(document["branches"]) - 1
        other = unseen if unseen is not None else last if missing is None else missing
        branch_of = np.full(len(levels) + 1, other)
        for branch, listed in enumerate(document["levels"] if levels else ()):
            branch_of[[levels.index(level) for level in listed]] = branch
        return branch_of

    def replay(self, base: Floats, X: Floats) -> Replay:
        """Margins and leaves of rows, computed from the document itself."""
        margin = np.tile(base, (len(X), 1))
        leaves = np.zeros((len(X), len(self.trees)), dtype=np.int64)
        for t, (root, weight, output) in enumerate(self.trees):
            value = np.zeros((len(X), self.width))
            self._follow(root, X, np.arange(len(X)), value, leaves[:, t], 0)
            margin[:, output : output + self.width] += weight * value
        return Replay(margin, leaves)

    def _follow(
        self, node: dict[str, Any], X: Floats, rows: Ints, value: Floats, leaf: Ints, first: int
    ) -> int:
        """Fill in value and leaf of the rows below a node; returns the number of leaves there."""
        if "column" not in node:
            value[rows], leaf[rows] = self._value(node), first
            return 1
        column = self.columns.names.index(node["column"])
        levels, x = self.columns[column].levels, X[rows, column]
        missing = np.isnan(x)
        if levels:
            branch = self._branch_of_levels(node, levels)[np.where(missing, 0, x).astype(np.intp)]
        else:
            branch = np.searchsorted(np.atleast_1d(node["below"]), x, side="right")
        branch = np.where(missing, node.get("missing") or 0, branch)
        n = 0
        for number, child in enumerate(node["branches"]):
            n += self._follow(child, X, rows[branch == number], value, leaf, first + n)
        return n
