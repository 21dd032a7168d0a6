"""LightGBM: Booster, LGBMRegressor, LGBMClassifier, LGBMRanker, and model text files.

Live models and files go through one parser of the model text (:mod:`.lightgbm_text`). LightGBM
goes left iff x <= threshold in float64, where a value within ``ZERO`` of zero counts as 0.0. What
a NaN does depends on the split's missing type: *none* turns it into 0.0, *zero* sends both NaN and
zero in the split's default direction, *nan* sends only NaN there. At a categorical split, NaN and
every category outside the set go right. Shrinkage, DART's weights and the initial score are
already in the leaf values; a random forest divides the sum by the number of iterations.

LightGBM splits categories by integer codes. What a code means depends on the training table:

- a pandas ``category`` column: code ``c`` is the column's category ``c``. The model text lists the
  categories of all such columns in order, but not which columns they belong to;
- integers declared by ``categorical_feature``: a code is the integer itself. The levels are 0 to
  the largest code the model knows; if that exceeds ``SPARSE``, only the codes it knows;
- an *ordered* pandas ``category`` column is a number to LightGBM, but still a category in the
  table: its splits become sets of its categories.

New leaf values are set by ``set_leaf_output``, exact in float64 except next to zero.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask, Words
from knothole.bits import pack, starts
from knothole.checks import check_within, require
from knothole.columns.columns import Column, Columns, Kind
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import MEDIAN, Ensemble, Nodes, Recipe
from knothole.trees.libraries import ModelReading, Replay, not_fitted
from knothole.trees.links import IDENTITY, Link
from knothole.trees.readers.lightgbm_text import ModelText, TextTrees, parse
from knothole.trees.thresholds import exact_less_equal

Levels = tuple[Hashable, ...]
Ranges = dict[int, tuple[float, float]]
# Pairs (split, category code) as two arrays.
Members = tuple[Ints, Ints]

# LightGBM's kZeroThreshold, a float32: values this close to zero are zero.
ZERO = float(np.float32(1e-35))
# LightGBM turns a leaf value this close to zero into 0.0.
ROUNDED_TO_ZERO = ZERO
# Integer categories up to this one are assumed to be numbered from 0 without gaps.
SPARSE = 4096
LIBRARY = "LightGBM"
WAY_OUT = "Save the model again with LightGBM 4."
SUFFIXES = (".txt",)

LINKS = {
    **dict.fromkeys(["regression", "regression_l1", "huber", "fair", "quantile"], "identity"),
    **dict.fromkeys(["mape", "lambdarank", "rank_xendcg"], "identity"),
    **dict.fromkeys(["poisson", "gamma", "tweedie"], "exp"),
    **dict.fromkeys(["binary", "multiclassova", "cross_entropy"], "sigmoid"),
    "multiclass": "softmax",
}
# Settings that may follow the objective's name in the objective line.
SETTINGS = {
    "binary": {"sigmoid"},
    "multiclass": {"num_class"},
    "multiclassova": {"num_class", "sigmoid"},
}

_NUMBER = r"(-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|inf))"
_RANGE = re.compile(rf"\[{_NUMBER}:{_NUMBER}\]")
_CODES = re.compile(r"-?[0-9]{1,10}(:-?[0-9]{1,10})*")


def read(model: Any) -> ModelReading:
    """Read a fitted Booster or scikit-learn wrapper, up to its best iteration."""
    booster = booster_of(model)
    text = parse(booster.model_to_string().encode())
    ensemble, categories = understand(text, _classes(model))
    n_iterations = len(text.trees.n_leaves) // text.n_outputs

    def replay(X: Floats) -> Replay:
        native = _native_codes(X, categories)
        margin = booster.predict(native, raw_score=True, num_threads=1)
        if text.averages:
            margin = margin / n_iterations
        leaves = booster.predict(native, pred_leaf=True, num_threads=1)
        leaves = leaves.reshape(len(X), -1).astype(np.int64)
        return Replay(margin.reshape(len(X), text.n_outputs), leaves)

    return ModelReading(ensemble, replay)


def booster_of(model: Any) -> Any:
    """The Booster inside a wrapper, or the Booster itself."""
    if not hasattr(model, "fit"):
        return model
    if not model.__sklearn_is_fitted__():
        raise not_fitted(model)
    if model.get_params().get("pred_early_stop", False):
        raise UnsupportedModel(
            "LightGBM: with pred_early_stop=True the model's own predictions leave out trees. Set "
            "it to False: set_params(pred_early_stop=False)."
        )
    return model.booster_


def begins(head: bytes) -> bool:
    """Whether a file with these first bytes may be LightGBM's."""
    return head.startswith((b"tree\n", b"tree\r\n"))


def read_file(path: Path) -> Ensemble:
    """Read a model text file with our own parser."""
    text = parse(path.read_bytes())
    ensemble, _ = understand(text, _labels(text))
    return ensemble


def _labels(text: ModelText) -> tuple[int, ...] | None:
    """Numbers of classes, for objectives with classes: the text does not store their names."""
    name = (text.objective or "").partition(" ")[0]
    if name not in ("binary", "multiclass", "multiclassova"):
        return None
    return tuple(range(max(2, text.n_outputs)))


def load(path: Path) -> Any:
    """Let LightGBM load a model text file."""
    import lightgbm

    return lightgbm.Booster(model_file=str(path))


def save(model: Any, path: Path) -> None:
    """Let LightGBM save a model."""
    booster_of(model).save_model(str(path))


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of a Booster or wrapper whose leaves hold the values of ``ensemble``."""
    original = booster_of(model)
    booster = copy.deepcopy(original)
    # What deepcopy of a Booster does not copy.
    for name in ("best_iteration", "best_score", "params"):
        setattr(booster, name, copy.deepcopy(getattr(original, name)))
    leaves = (ensemble.leaf_tree, ensemble.native_leaf, ensemble.value[:, 0])
    for tree, leaf, value in zip(*(part.tolist() for part in leaves), strict=True):
        booster.set_leaf_output(tree, leaf, value)
    return copy.deepcopy(model, {id(original): booster})


def _classes(model: Any) -> tuple[Hashable, ...] | None:
    """Labels of a classifier; None if the user's own objective makes it return margins."""
    if not hasattr(model, "classes_") or callable(model.objective_):
        return None
    return tuple(model.classes_.tolist())


def _native_codes(X: Floats, categories: dict[int, Categories]) -> Floats:
    """Encoded rows with LightGBM's codes in place of ours."""
    native = X.copy()
    for column, known in categories.items():
        observed = ~np.isnan(X[:, column])
        codes = np.append(known.codes.astype(np.float64), known.unseen)
        native[observed, column] = codes[X[observed, column].astype(np.int64)]
    return native


def _link(text: ModelText) -> Link:
    """The link, from the objective line; no line (the user's own objective) means the identity."""
    if text.objective is None:
        return IDENTITY
    name, *words = text.objective.split(" ")
    settings = dict(word.partition(":")[::2] for word in words)
    if name not in LINKS or "sqrt" in settings:
        what = "reg_sqrt=True" if "sqrt" in settings else f"objective {name!r}"
        raise UnsupportedModel(
            f"LightGBM: {what} transforms the margin in a way that knothole does not know. It "
            f"reads {', '.join(LINKS)}, without reg_sqrt; train on a transformed target instead."
        )
    problem = f"objective {text.objective!r} makes no sense for {text.n_outputs} trees an iteration"
    require(settings.keys() == SETTINGS.get(name, set()), problem)
    scale = float(settings.get("sigmoid", 1.0))
    n_classes = int(settings.get("num_class", 1))
    require(n_classes == text.n_outputs and 0 < scale < np.inf, problem)
    return Link(LINKS[name], scale)


def _recipe(text: ModelText) -> Recipe:
    """The recipe, from the objective line and, where the text has them, the training parameters."""
    name = (text.objective or "").partition(" ")[0]
    given = text.parameters
    levels: tuple[Any, ...] = MEDIAN if name in ("regression_l1", "mape") else ()
    loss = name if LINKS.get(name) in ("identity", "exp") else ""
    if name == "huber":
        return Recipe.of((), given.get("learning_rate"), "Huber", given.get("alpha"))
    if name == "quantile" and "alpha" in given:
        levels = (given["alpha"],)
    if name in ("regression", "regression_l1") or (levels and name == "quantile"):
        loss = ""
    return Recipe.of(levels, given.get("learning_rate"), loss)


def understand(
    text: ModelText, classes: tuple[Hashable, ...] | None
) -> tuple[Ensemble, dict[int, Categories]]:
    """The ensemble, and LightGBM's codes for the levels of its categorical columns."""
    trees = text.trees
    n_columns = len(text.feature_names)
    problem = "a split on a column that the model does not have"
    check_within(trees.split_feature, n_columns, problem)
    members = _set_members(trees)
    categories = find_categories(text, _codes_in_sets(trees, members))
    _require_expressible(trees, categories)
    ensemble = Ensemble.build(
        _nodes(text, *_sets(trees, members, categories)),
        columns=describe(text, categories),
        base=np.zeros(text.n_outputs),
        library=LIBRARY,
        precision="float64",
        link=_link(text),
        classes=classes,
        sentinel=_sentinel(trees, categories, n_columns),
    ).trained_by(_recipe(text))
    complete = ensemble.n_leaves == trees.n_leaves.sum()
    require(complete, "a tree has leaves that no split leads to")
    return ensemble, categories


def _nodes(text: ModelText, set_start: Ints, sets: Words) -> Nodes:
    """All splits first, then all leaves, both one tree after the other."""
    trees = text.trees
    n_trees = len(trees.n_leaves)
    n_splits = trees.n_leaves - 1
    total, n_leaves = int(n_splits.sum()), int(trees.n_leaves.sum())
    first_split, first_leaf = starts(n_splits), total + starts(trees.n_leaves)
    tree = np.repeat(np.arange(n_trees), n_splits)

    def position(child: Ints) -> Ints:
        inside = (child >= -trees.n_leaves[tree]) & (child < n_splits[tree])
        require(inside.all(), "a split's child is not a node of its tree")
        return np.where(child >= 0, first_split[tree] + child, first_leaf[tree] + ~child)

    def with_leaves(of_splits: Any, of_leaves: Any) -> NDArray[Any]:
        return np.concatenate([of_splits, np.broadcast_to(of_leaves, n_leaves)])

    number_in_tree = np.arange(total, total + n_leaves) - np.repeat(first_leaf, trees.n_leaves)
    return Nodes(
        roots=np.where(n_splits > 0, first_split, first_leaf),
        feature=with_leaves(trees.split_feature, -1),
        threshold=with_leaves(exact_less_equal(_snapped(trees.threshold)), np.nan),
        left=with_leaves(position(trees.left_child), -1),
        right=with_leaves(position(trees.right_child), -1),
        missing_left=with_leaves(_missing_left(trees), False),
        value=with_leaves(np.zeros(total), trees.leaf_value),
        native_leaf=with_leaves(np.zeros(total, dtype=np.int64), number_in_tree),
        set_start=with_leaves(set_start, -1),
        sets=sets,
        tree_output=np.arange(n_trees) % text.n_outputs,
        tree_weight=np.full(n_trees, text.n_outputs / n_trees if text.averages else 1.0),
    )


def _snapped(threshold: Floats) -> Floats:
    """Thresholds moved so that values within ``ZERO`` of zero go where zero goes."""
    below = np.nextafter(-ZERO, -np.inf)
    near = np.abs(threshold) <= ZERO
    return np.where(near, np.where(threshold >= 0, ZERO, below), threshold)


def _missing_left(trees: TextTrees) -> Mask:
    own_side = trees.zero_is_missing | trees.nan_is_missing
    return ~trees.is_set & np.where(own_side, trees.default_left, trees.threshold >= 0)


def _on(columns: Any, trees: TextTrees) -> Mask:
    """Which splits are on any of these columns."""
    return np.isin(trees.split_feature, list(columns))


def _require_expressible(trees: TextTrees, categories: dict[int, Categories]) -> None:
    """Refuse combinations of splits, possible after continued training, that no column allows."""
    numeric = ~trees.is_set
    integers = [i for i, known in categories.items() if not np.isnan(known.unseen)]
    if (numeric & _on(integers, trees)).any():
        raise UnsupportedModel(
            "LightGBM: some trees take a column for a number and others for a category. Train all "
            "of them with the same categorical_feature."
        )
    zero_is_missing = np.unique(trees.split_feature[numeric & trees.zero_is_missing])
    differ = numeric & trees.nan_is_missing & (trees.default_left != (trees.threshold >= 0))
    if (differ & _on(zero_is_missing, trees)).any():
        raise UnsupportedModel(
            "LightGBM: some trees take zero for missing in a column and others do not. Train all "
            "of them with the same zero_as_missing."
        )


def _sentinel(trees: TextTrees, categories: dict[int, Categories], n_columns: int) -> Floats:
    """The interval around zero that counts as NaN, for columns where zero is missing.

    Categorical columns have it in their sets. It also suits splits of type *none* on the same
    column: there a NaN counts as zero.
    """
    sentinel = np.full((n_columns, 2), np.nan)
    zero = trees.zero_is_missing & ~trees.is_set & ~_on(categories, trees)
    sentinel[trees.split_feature[zero]] = (-ZERO, ZERO)
    return sentinel


def _set_members(trees: TextTrees) -> Members:
    """Pairs (split, category code) of all categorical sets."""
    splits = np.flatnonzero(trees.is_set)
    tree = np.repeat(np.arange(len(trees.n_leaves)), trees.n_leaves - 1)[splits]
    first_set = starts(trees.n_sets)
    number = trees.threshold[splits]
    n_sets = int(trees.n_sets.sum())
    within = (number >= 0) & (number < trees.n_sets[tree])
    owner = first_set[tree] + np.where(within, number, -1).astype(np.int64)
    # Each set belongs to exactly one split; this also keeps a short text from using much memory.
    matched = within.all() and np.array_equal(np.sort(owner), np.arange(n_sets))
    require(matched, "categorical splits and sets do not match one to one")
    split_of_set = splits[np.argsort(owner)]
    bits = np.unpackbits(trees.set_words.view(np.uint8), bitorder="little")
    word, bit = np.divmod(np.flatnonzero(bits), 32)
    which = np.searchsorted(trees.set_start, word, side="right") - 1
    return split_of_set[which], (word - trees.set_start[which]) * 32 + bit


def _codes_in_sets(trees: TextTrees, members: Members) -> dict[int, set[int]]:
    """For every column with categorical splits, the codes that occur in its sets."""
    split, code = members
    column = trees.split_feature[split]
    with_sets = np.unique(trees.split_feature[trees.is_set]).tolist()
    return {c: set(np.unique(code[column == c]).tolist()) for c in with_sets}


def _sets(
    trees: TextTrees, members: Members, categories: dict[int, Categories]
) -> tuple[Ints, Words]:
    """First word of each split's set (-1 for none), and the words of all sets."""
    has_set = _on(categories, trees)
    n_levels = np.zeros(len(has_set), dtype=np.int64)
    pairs = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))]
    split, code = members
    for column, known in categories.items():
        n_levels[trees.split_feature == column] = len(known.codes)
        here = trees.split_feature[split] == column
        place = np.searchsorted(known.codes, code[here])
        problem = f"a set has a category that column {column} has not"
        require((place < len(known.codes)).all(), problem)
        pairs += [(split[here], place), _numeric_members(trees, column, len(known.codes))]
    owner, level = (np.concatenate(part) for part in zip(*pairs, strict=True))
    start, sets = pack(n_levels[has_set], (np.cumsum(has_set) - 1)[owner], level)
    set_start = np.full(len(has_set), -1)
    set_start[has_set] = start
    return set_start, sets


def _numeric_members(trees: TextTrees, column: int, n_levels: int) -> Members:
    """Splits on an ordered categorical column: codes up to the threshold go left.

    A category that the model does not know becomes NaN in pandas, and goes where NaN goes.
    """
    splits = np.flatnonzero((trees.split_feature == column) & ~trees.is_set)
    goes_left = np.arange(n_levels + 1) <= trees.threshold[splits, None]
    missing_left = _missing_left(trees)[splits]
    goes_left[:, 0] = np.where(trees.zero_is_missing[splits], missing_left, goes_left[:, 0])
    goes_left[:, n_levels] = missing_left
    split, code = np.nonzero(goes_left)
    return splits[split], code


# ---- categories ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Categories:
    """A categorical column: LightGBM's code and the level for each of our codes.

    ``handle_unknown`` is what LightGBM gets for an unknown category: NaN where the column was
    pandas', otherwise an integer that is in no set.
    """

    codes: Ints
    levels: Levels
    unseen: float


def find_categories(text: ModelText, in_sets: dict[int, set[int]]) -> dict[int, Categories]:
    """Categorical columns by position, given the codes in the sets of their splits."""
    ranges, known = _seen_values(text)
    categorical = known.keys() | in_sets.keys() | text.declared_categorical
    for column in categorical:
        known[column] = known.get(column, set()) | in_sets.get(column, set())
    matched = _match_pandas(text, sorted(categorical), ranges, known)
    categories = {}
    for column in sorted(categorical | matched.keys()):
        if column in matched:
            levels = matched[column]
            require(len(set(levels)) == len(levels), f"column {column} has a category twice")
            if levels:  # no levels: the column was empty in training
                categories[column] = Categories(np.arange(len(levels)), levels, np.nan)
        elif known[column]:
            categories[column] = _integer_categories(known[column])
    return categories


def describe(text: ModelText, categories: dict[int, Categories]) -> Columns:
    """The model's columns with the levels found."""
    columns = tuple(
        Column(name, Kind.CATEGORICAL, categories[i].levels) if i in categories else Column(name)
        for i, name in enumerate(text.feature_names)
    )
    made_up = all(name == f"Column_{i}" for i, name in enumerate(text.feature_names))
    return Columns(columns, named=not made_up)


def _integer_categories(known: set[int]) -> Categories:
    largest = max(known)
    codes = list(range(largest + 1)) if largest < SPARSE else sorted(known)
    taken = set(codes)
    absent = next(code for code in range(len(codes) + 1) if code not in taken)
    return Categories(np.array(codes), tuple(codes), float(absent))


def _seen_values(text: ModelText) -> tuple[Ranges, dict[int, set[int]]]:
    """What feature_infos says of each column: a range of numbers, or the known categories."""
    ranges = {}
    known = {}
    for column, info in enumerate(text.feature_infos):
        if ends := _RANGE.fullmatch(info):
            ranges[column] = (float(ends[1]), float(ends[2]))
        elif _CODES.fullmatch(info):
            known[column] = {int(code) for code in info.split(":")} - {-1}  # -1 stands for NaN
            possible = all(0 <= code < 2**31 for code in known[column])
            require(possible, f"column {column} has impossible categories: {info}")
        else:
            require(info == "none", f"feature_infos of column {column} is {info[:60]!r}")
    return ranges, known


def _match_pandas(
    text: ModelText, categorical: list[int], ranges: Ranges, known: dict[int, set[int]]
) -> dict[int, Levels]:
    """Which column each list of pandas categories belongs to.

    Both are in the same order. With as many lists as categorical columns, each column has its own,
    LightGBM's default. With more lists, some belong to ordered columns; with fewer, some
    categorical columns hold declared integers. The codes seen in training must then leave exactly
    one choice.
    """
    lists = text.pandas_levels
    largest = {column: max(codes, default=-1) for column, codes in known.items()}

    def fits(levels: Levels, column: int) -> bool:
        if column in ranges:
            low, high = ranges[column]
            return low >= 0 and high < len(levels) and low.is_integer() and high.is_integer()
        return largest.get(column, -1) < len(levels)

    more = len(lists) > len(categorical)
    candidates = list(range(len(text.feature_names))) if more else categorical
    required = set(categorical) if len(lists) >= len(categorical) else set()
    ways = _ways_to_match(lists, candidates, required, fits)
    if len(ways) != 1:
        raise UnsupportedModel(
            f"LightGBM: the model has the categories of {len(lists)} pandas columns and "
            f"{len(categorical)} categorical features, and does not say which belong together. "
            f"Train with categorical_feature='auto' on unordered categories, and pass other "
            f"columns as numbers (an ordered column as its .cat.codes)."
        )
    return ways[0]


def _ways_to_match(
    lists: Sequence[Levels],
    columns: Sequence[int],
    required: set[int],
    fits: Callable[[Levels, int], bool],
) -> list[dict[int, Levels]]:
    """Up to two of the ways to assign the lists, in order, to columns that they fit.

    Works from the last column to the first: ``ways[i]`` assigns the lists from ``i`` on to the
    columns handled so far, all required ones among them. A way is a linked list (column, rest).
    """
    if len(lists) > len(columns):
        return []
    ways: list[list[Any]] = [[] for _ in lists] + [[()]]
    for column in reversed(columns):
        for i in range(len(lists) + 1):
            without = [] if column in required else ways[i]
            take = i < len(lists) and ways[i + 1] and fits(lists[i], column)
            ways[i] = ([(column, rest) for rest in ways[i + 1]] if take else []) + without
            del ways[i][2:]
    return [dict(zip(_chain(way), lists, strict=True)) for way in ways[0]]


def _chain(way: Any) -> Iterator[int]:
    while way:
        column, way = way
        yield column
