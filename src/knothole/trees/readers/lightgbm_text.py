"""A strict parser of LightGBM's model text.

The text is what ``save_model`` writes and ``model_to_string`` returns: a header of ``key=value``
lines, a part for each tree (the header has their sizes in bytes), the parameters, and a last line
with the categories of pandas columns. LightGBM's own parser accepts much damage and crashes on the
rest; this one accepts only what LightGBM writes.

Fields of all trees are joined before they are converted, so the number of conversions does not
grow with the number of trees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask
from knothole.checks import check_within, require, typed
from knothole.errors import DamagedFile, NotFitted, UnsupportedModel

VERSIONS = ("v3", "v4")

# Possessive quantifiers: no backtracking, whatever a damaged text looks like.
_INTEGERS = re.compile(r"(?:-?[0-9]++ )*+")
_NUMBERS = re.compile(r"(?:-?(?:[0-9]++(?:\.[0-9]++)?+(?:e[+-]?[0-9]++)?+|inf) )*+")
_STATISTICS = re.compile(r"(?:-?(?:[0-9]++(?:\.[0-9]++)?+(?:e[+-]?[0-9]++)?+|inf|nan) )*+")
_PARAMETER = re.compile(r"\[[a-z0-9_]+: [^\x00-\x1f]*\]")

_HEADER_KEYS = {
    *("version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx"),
    *("objective", "average_output", "feature_names", "monotone_constraints", "feature_infos"),
    "tree_sizes",
}
# Fields of a tree with one entry per split: those that route a row, and statistics that no
# prediction needs but that must be well formed: LightGBM can loop for ever over malformed ones.
_ROUTES = ("split_feature", "left_child", "right_child")
_SPLIT_STATISTICS = ("split_gain", "internal_value", "internal_weight", "internal_count")
_LEAF_STATISTICS = ("leaf_weight", "leaf_count")
_TREE_KEYS = {
    *("num_leaves", "num_cat", "threshold", "leaf_value", "cat_boundaries", "cat_threshold"),
    *("decision_type", "is_linear", "shrinkage", *_ROUTES, *_SPLIT_STATISTICS, *_LEAF_STATISTICS),
}

Fields = list[dict[str, str]]


@dataclass(frozen=True, eq=False)
class TextTrees:
    """The fields of all trees, one tree after the other.

    Fields of splits have one entry per inner node, fields of leaves one per leaf. A child is the
    number of a split in the same tree, or ``~leaf``. The threshold of a categorical split is the
    number of its set within the tree. Set ``s``, counted over all trees, is the 32-bit words
    ``set_start[s]`` to ``set_start[s + 1]``. The last four fields come from ``decision_type``:
    whether the split is categorical, its default direction, and whether zero or only NaN takes it.
    """

    n_leaves: Ints
    n_sets: Ints
    split_feature: Ints
    threshold: Floats
    left_child: Ints
    right_child: Ints
    leaf_value: Floats
    set_start: Ints
    set_words: NDArray[np.uint32]
    is_set: Mask
    default_left: Mask
    zero_is_missing: Mask
    nan_is_missing: Mask


@dataclass(frozen=True, eq=False)
class ModelText:
    """A parsed model text; ``feature_infos`` and ``objective`` are unparsed."""

    n_outputs: int
    objective: str | None
    averages: bool
    feature_names: tuple[str, ...]
    feature_infos: tuple[str, ...]
    declared_categorical: frozenset[int]
    parameters: dict[str, str]
    pandas_levels: tuple[tuple[Hashable, ...], ...]
    trees: TextTrees


def parse(text: bytes) -> ModelText:
    """Parse a model text, or raise ``DamagedFile``."""
    end_of_header = text.find(b"\n\n")
    require(text.startswith(b"tree\n") and end_of_header >= 0, "the header is not complete")
    header = _header(text[len(b"tree\n") : end_of_header])
    version = header.get("version", "")
    require(version in VERSIONS, f"version {version!r} is none of {', '.join(VERSIONS)}")
    n_outputs = _whole(header, "num_tree_per_iteration")
    agree = n_outputs >= 1 and n_outputs == _whole(header, "num_class")
    require(agree, "num_tree_per_iteration and num_class disagree")
    _whole(header, "label_index")
    n_columns = _whole(header, "max_feature_idx") + 1
    names = tuple(header.get("feature_names", "").split(" "))
    infos = tuple(header.get("feature_infos", "").split(" "))
    problem = "feature_names or feature_infos has the wrong length"
    require(len(names) == len(infos) == n_columns, problem)
    sizes = _integers(header.get("tree_sizes", ""), "tree_sizes").tolist()
    if not sizes:
        raise NotFitted("LightGBM: the model has no trees. Train it first.")
    require(len(sizes) % n_outputs == 0, "some classes have more trees than others")
    texts, tail = _tree_texts(text, end_of_header + len(b"\n\n"), sizes)
    parameters, last_line = _end_of_text(tail)
    return ModelText(
        n_outputs=n_outputs,
        objective=header.get("objective"),
        averages="average_output" in header,
        feature_names=names,
        feature_infos=infos,
        declared_categorical=_declared_categorical(parameters, names),
        parameters=parameters,
        pandas_levels=_pandas_levels(last_line),
        trees=_trees(texts),
    )


def _header(text: bytes) -> dict[str, str]:
    header: dict[str, str] = {}
    for line in text.decode("utf-8").split("\n"):
        key, _, content = line.partition("=")
        require(key in _HEADER_KEYS, f"unknown header line {line[:60]!r}")
        require(key not in header, f"two header lines {key!r}")
        header[key] = content
    return header


def _whole(header: dict[str, str], key: str) -> int:
    numbers = _integers(header.get(key, ""), key, stop=2**31)
    require(len(numbers) == 1, f"{key} is not one whole number")
    return int(numbers[0])


def _tree_texts(text: bytes, start: int, sizes: list[int]) -> tuple[list[str], str]:
    """The text of every tree without its first line, and the text after the trees."""
    texts = []
    for number, size in enumerate(sizes):
        first_line = b"Tree=%d\n" % number
        stop = start + size
        require(
            size > 0 and text.startswith(first_line, start) and text.endswith(b"\n\n", 0, stop),
            f"tree {number} is not where tree_sizes says",
        )
        texts.append(text[start + len(first_line) : stop].rstrip(b"\n").decode("ascii"))
        start = stop
    tail = text[start:].decode("utf-8")
    require(tail.startswith("end of trees\n"), "the trees do not end where tree_sizes says")
    return texts, tail


def _trees(texts: list[str]) -> TextTrees:
    fields = [_fields(number, text) for number, text in enumerate(texts)]
    one = np.ones(len(fields), dtype=np.int64)
    n_leaves = _integers(_joined(fields, "num_leaves", one), "num_leaves", stop=2**31)
    n_sets = _integers(_joined(fields, "num_cat", one), "num_cat", stop=2**31)
    require((n_leaves >= 1).all(), "a tree without leaves")
    routes = {key: _integers(_joined(fields, key, n_leaves - 1), key) for key in _ROUTES}
    # Bits: categorical, default direction, and from the third on the missing type.
    decision = _integers(_joined(fields, "decision_type", n_leaves - 1), "decision_type")
    check_within(decision >> 2, 3, "a split has a decision_type that does not exist")
    set_start, set_words = _sets(fields, n_sets)
    _check_statistics(fields, n_leaves)
    return TextTrees(
        n_leaves=n_leaves,
        n_sets=n_sets,
        threshold=_numbers(_joined(fields, "threshold", n_leaves - 1), "threshold"),
        leaf_value=_numbers(_joined(fields, "leaf_value", n_leaves), "leaf_value"),
        set_start=set_start,
        set_words=set_words,
        is_set=(decision & 1) > 0,
        default_left=(decision & 2) > 0,
        zero_is_missing=decision >> 2 == 1,
        nan_is_missing=decision >> 2 == 2,
        **routes,
    )


def _fields(number: int, text: str) -> dict[str, str]:
    """The ``key=value`` lines of one tree."""
    lines = text.split("\n")
    fields = dict(line.partition("=")[::2] for line in lines)
    if fields.get("is_linear", "0") != "0":
        raise UnsupportedModel(
            "LightGBM: linear_tree=True puts a linear model into every leaf, and knothole reads "
            "trees with constant leaves only. Train with linear_tree=False."
        )
    require(len(fields) == len(lines), f"tree {number} has the same field twice")
    require(fields.keys() <= _TREE_KEYS, f"tree {number} has an unknown field")
    return fields


def _joined(fields: Fields, key: str, counts: Ints) -> str:
    """A field of all trees, joined into one text; every tree must have ``counts`` entries."""
    texts = [tree.get(key, "") for tree in fields]
    for number, (text, count) in enumerate(zip(texts, counts.tolist(), strict=True)):
        n_entries = text.count(" ") + 1 if text else 0
        if n_entries != count:
            raise DamagedFile(f"{key} of tree {number} has {n_entries} entries, not {count}")
    return " ".join(filter(None, texts))


def _sets(fields: Fields, n_sets: Ints) -> tuple[Ints, NDArray[np.uint32]]:
    """Boundaries and words of the categorical sets of all trees."""
    with_sets = [tree for tree, count in zip(fields, n_sets, strict=True) if count]
    counts = n_sets[n_sets > 0]
    bounds = _integers(_joined(with_sets, "cat_boundaries", counts + 1), "cat_boundaries")
    last = np.cumsum(counts + 1) - 1  # each tree's last boundary is its number of words
    n_words = np.delete(np.diff(bounds), last[:-1])
    ascend = (bounds[last - counts] == 0).all() and (n_words >= 0).all()
    require(ascend, "cat_boundaries do not ascend from 0")
    text = _joined(with_sets, "cat_threshold", bounds[last])
    words = _integers(text, "cat_threshold", stop=2**32)
    return np.append(0, np.cumsum(n_words)), words.astype(np.uint32)


def _check_statistics(fields: Fields, n_leaves: Ints) -> None:
    n_entries = {
        **dict.fromkeys(_SPLIT_STATISTICS, n_leaves - 1),
        **dict.fromkeys(_LEAF_STATISTICS, n_leaves),
        "shrinkage": np.ones_like(n_leaves),
    }
    for key, counts in n_entries.items():
        there = np.array([key in tree for tree in fields]) & (n_leaves > 1)
        text = _joined([fields[i] for i in np.flatnonzero(there)], key, counts[there])
        _check_form(text, _STATISTICS, key)


def _integers(text: str, name: str, stop: int | None = None) -> Ints:
    _check_form(text, _INTEGERS, name)
    numbers = np.fromstring(text, dtype=np.int64, sep=" ")
    if stop is not None:
        check_within(numbers, stop, f"{name} out of range")
    return numbers


def _numbers(text: str, name: str) -> Floats:
    _check_form(text, _NUMBERS, name)
    return np.fromstring(text, dtype=np.float64, sep=" ")


def _check_form(text: str, form: re.Pattern[str], name: str) -> None:
    require(not text or form.fullmatch(text + " "), f"{name} are not numbers of that kind")


def _end_of_text(tail: str) -> tuple[dict[str, str], str]:
    """The training parameters, and the text after them."""
    before, ended, rest = tail.partition("\n\nend of parameters\n")
    _, begun, parameters = before.partition("\n\nparameters:\n")
    lines = parameters.split("\n")
    require(ended and begun, "it ends before the parameters do")
    require(all(map(_PARAMETER.fullmatch, lines)), "a parameter is not in brackets")
    return dict(line[1:-1].split(": ", 1) for line in lines), rest.strip("\n")


def _declared_categorical(parameters: dict[str, str], names: tuple[str, ...]) -> frozenset[int]:
    """Columns that the training parameters declare as categorical."""
    declared = parameters.get("categorical_feature", "")
    if declared.startswith("name:"):
        wanted = set(declared.removeprefix("name:").split(","))
        return frozenset(i for i, name in enumerate(names) if name in wanted)
    numbers = _integers(declared.replace(",", " "), "categorical_feature").tolist()
    return frozenset(i for i in numbers if 0 <= i < len(names))


def _pandas_levels(last_line: str) -> tuple[tuple[Hashable, ...], ...]:
    """Categories of the pandas columns, in the order of columns and of codes."""
    if not last_line:  # saved by the command line or another language
        return ()
    key, _, content = last_line.partition(":")
    require(key == "pandas_categorical", "something unknown follows the parameters")
    lists = json.loads(content)
    lists = typed(list, [] if lists is None else lists)
    levels = [tuple(typed(list, column)) for column in lists]
    known = all(isinstance(x, (str, int, float)) and x == x for column in levels for x in column)
    require(known, "pandas_categorical has something else than categories")
    return tuple(levels)
