"""LightGBM's model text, taken apart strictly.

The text is what ``save_model`` writes and ``model_to_string`` returns: a header of ``key=value``
lines, a part for each tree whose sizes in bytes the header announces, the parameters, and a last
line with the categories of pandas columns. LightGBM's own parser forgives a lot and crashes on
the rest; this one accepts what LightGBM writes and nothing else.

The fields of all trees are joined before they are converted, so that a model costs a handful of
conversions, not several for each tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.errors import NotFitted, UnsupportedModel
from knothole.trees.strict import Strict

VERSIONS = ("v3", "v4")

strict = Strict("LightGBM", "Save the model again with LightGBM 4.")

# Possessive quantifiers: no backtracking, whatever a damaged text looks like.
_INTEGERS = re.compile(rb"(?:-?[0-9]++ )*+")
_NUMBERS = re.compile(rb"(?:-?(?:[0-9]++(?:\.[0-9]++)?+(?:e[+-]?[0-9]++)?+|inf) )*+")
_STATISTICS = re.compile(rb"(?:-?(?:[0-9]++(?:\.[0-9]++)?+(?:e[+-]?[0-9]++)?+|inf|nan) )*+")
_PARAMETER = re.compile(r"\[[a-z0-9_]+: [^\x00-\x1f]*\]")

_HEADER_KEYS = {
    "version",
    "num_class",
    "num_tree_per_iteration",
    "label_index",
    "max_feature_idx",
    "objective",
    "average_output",
    "feature_names",
    "monotone_constraints",
    "feature_infos",
    "tree_sizes",
}
# Fields of a tree with one entry per split, which route a row; and statistics that no prediction
# needs, but which must be well formed, or LightGBM itself would not load the text.
_SPLIT_FIELDS = (b"split_feature", b"threshold", b"decision_type", b"left_child", b"right_child")
_SPLIT_STATISTICS = (b"split_gain", b"internal_value", b"internal_weight", b"internal_count")
_LEAF_STATISTICS = (b"leaf_weight", b"leaf_count")
_TREE_KEYS = {
    *(b"num_leaves", b"num_cat", b"leaf_value", b"cat_boundaries", b"cat_threshold"),
    *(b"is_linear", b"shrinkage", *_SPLIT_FIELDS, *_SPLIT_STATISTICS, *_LEAF_STATISTICS),
}


@dataclass(frozen=True, eq=False)
class Trees:
    """The trees' fields, one tree after the other.

    Splits have one entry per inner node, leaves one per leaf; a child is the number of a split
    of the same tree, or ``~leaf``. The threshold of a categorical split is the number of its set
    within the tree; set ``s`` (counted over all trees) is the 32-bit words ``set_start[s]`` to
    ``set_start[s + 1]``.
    """

    n_leaves: Ints
    n_sets: Ints
    split_feature: Ints
    threshold: Floats
    decision_type: Ints
    left_child: Ints
    right_child: Ints
    leaf_value: Floats
    set_start: Ints
    set_words: NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class ModelText:
    """A model text taken apart; ``feature_infos`` and ``objective`` are as they stand there."""

    n_outputs: int
    objective: str | None
    averages: bool
    feature_names: tuple[str, ...]
    feature_infos: tuple[str, ...]
    declared_categorical: frozenset[int]
    pandas_levels: tuple[tuple[Hashable, ...], ...]
    trees: Trees


def parse(text: bytes) -> ModelText:
    """Take a model text apart, or raise ``DamagedFile``."""
    end_of_header = text.find(b"\n\n")
    strict.require(text.startswith(b"tree\n") and end_of_header >= 0, "the header is not complete")
    header = _header(text[len(b"tree\n") : end_of_header])
    version = header.get("version", "")
    strict.require(version in VERSIONS, f"version {version!r} is none of {', '.join(VERSIONS)}")
    n_outputs = _whole(header, "num_tree_per_iteration")
    strict.require(
        n_outputs >= 1 and n_outputs == _whole(header, "num_class"),
        "num_tree_per_iteration and num_class disagree",
    )
    _whole(header, "label_index")
    n_columns = _whole(header, "max_feature_idx") + 1
    names = tuple(header.get("feature_names", "").split(" "))
    infos = tuple(header.get("feature_infos", "").split(" "))
    problem = "feature_names or feature_infos has the wrong length"
    strict.require(len(names) == len(infos) == n_columns, problem)
    sizes = _integers(header.get("tree_sizes", "").encode(), "tree_sizes").tolist()
    if not sizes:
        raise NotFitted("LightGBM: the model has no trees. Train it first.")
    strict.require(
        len(sizes) % n_outputs == 0, "the number of trees is no multiple of the classes'"
    )
    texts, tail = _tree_texts(text, end_of_header + len(b"\n\n"), sizes)
    parameters, last_line = _end_of_text(tail)
    return ModelText(
        n_outputs=n_outputs,
        objective=header.get("objective"),
        averages="average_output" in header,
        feature_names=names,
        feature_infos=infos,
        declared_categorical=_declared_categorical(parameters, names),
        pandas_levels=_pandas_levels(last_line),
        trees=_trees(texts),
    )


def _header(text: bytes) -> dict[str, str]:
    header: dict[str, str] = {}
    for line in text.decode("utf-8").split("\n"):
        key, _, content = line.partition("=")
        strict.require(key in _HEADER_KEYS, f"unknown header line {line[:60]!r}")
        strict.require(key not in header, f"two header lines {key!r}")
        header[key] = content
    return header


def _whole(header: dict[str, str], key: str) -> int:
    numbers = _integers(header.get(key, "").encode(), key)
    strict.require(len(numbers) == 1 and 0 <= numbers[0] < 2**31, f"{key} is not one whole number")
    return int(numbers[0])


def _tree_texts(text: bytes, start: int, sizes: list[int]) -> tuple[list[bytes], bytes]:
    """The text of every tree, without its first line, and all that follows the trees."""
    texts = []
    for number, size in enumerate(sizes):
        first_line = b"Tree=%d\n" % number
        stop = start + size
        strict.require(
            size > 0 and text.startswith(first_line, start) and text.endswith(b"\n\n", 0, stop),
            f"tree {number} is not where tree_sizes says",
        )
        texts.append(text[start + len(first_line) : stop].rstrip(b"\n"))
        start = stop
    tail = text[start:]
    strict.require(tail.startswith(b"end of trees\n"), "the trees do not end where tree_sizes says")
    return texts, tail


def _trees(texts: list[bytes]) -> Trees:
    fields = [_fields(number, tree) for number, tree in enumerate(texts)]
    n_leaves = _one_each(fields, b"num_leaves")
    n_sets = _one_each(fields, b"num_cat")
    strict.require((n_leaves >= 1).all(), "a tree without leaves")
    split: dict[str, Any] = {
        key.decode(): (_numbers if key == b"threshold" else _integers)(
            _joined(fields, key, n_leaves - 1), key.decode()
        )
        for key in _SPLIT_FIELDS
    }
    set_start, set_words = _sets(fields, n_sets)
    _check_statistics(fields, n_leaves)
    return Trees(
        n_leaves=n_leaves,
        n_sets=n_sets,
        **split,
        leaf_value=_numbers(_joined(fields, b"leaf_value", n_leaves), "leaf_value"),
        set_start=set_start,
        set_words=set_words,
    )


def _fields(number: int, text: bytes) -> dict[bytes, bytes]:
    """The ``key=value`` lines of one tree."""
    lines = text.split(b"\n")
    fields = {}
    for line in lines:
        key, _, content = line.partition(b"=")
        fields[key] = content
    if fields.get(b"is_linear", b"0") != b"0":
        raise UnsupportedModel(
            "LightGBM: linear_tree=True puts a linear model into every leaf, and knothole reads "
            "trees with constant leaves only. Train with linear_tree=False."
        )
    strict.require(len(fields) == len(lines), f"tree {number} has the same field twice")
    strict.require(fields.keys() <= _TREE_KEYS, f"tree {number} has an unknown field")
    return fields


def _one_each(fields: list[dict[bytes, bytes]], key: bytes) -> Ints:
    """A field that is one whole number in every tree."""
    text = _joined(fields, key, np.ones(len(fields), dtype=np.int64))
    numbers = _integers(text, key.decode())
    strict.within(numbers, 2**31, f"{key.decode()} out of range")
    return numbers


def _joined(fields: list[dict[bytes, bytes]], key: bytes, counts: Ints) -> bytes:
    """A field of all trees in one text, each with as many entries as ``counts`` says."""
    texts = []
    for number, (tree, count) in enumerate(zip(fields, counts.tolist(), strict=True)):
        text = tree.get(key, b"")
        found = text.count(b" ") + 1 if text else 0
        strict.require(
            found == count, f"{key.decode()} of tree {number} has {found} entries, not {count}"
        )
        if text:
            texts.append(text)
    return b" ".join(texts)


def _sets(fields: list[dict[bytes, bytes]], n_sets: Ints) -> tuple[Ints, NDArray[np.uint32]]:
    """Boundaries and words of all trees' categorical sets, joined."""
    with_sets = [tree for tree, count in zip(fields, n_sets, strict=True) if count]
    counts = n_sets[n_sets > 0]
    bounds = _integers(_joined(with_sets, b"cat_boundaries", counts + 1), "cat_boundaries")
    last = np.cumsum(counts + 1) - 1  # each tree's last boundary: how many words it has
    n_words = np.delete(np.diff(bounds), last[:-1])
    ascend = (bounds[last - counts] == 0).all() and (n_words >= 0).all()
    strict.require(ascend, "cat_boundaries do not ascend from 0")
    words = _integers(_joined(with_sets, b"cat_threshold", bounds[last]), "cat_threshold")
    strict.within(words, 2**32, "cat_threshold out of range")
    return np.concatenate([[0], np.cumsum(n_words)]), words.astype(np.uint32)


def _check_statistics(fields: list[dict[bytes, bytes]], n_leaves: Ints) -> None:
    n_entries = {
        **dict.fromkeys(_SPLIT_STATISTICS, n_leaves - 1),
        **dict.fromkeys(_LEAF_STATISTICS, n_leaves),
        b"shrinkage": np.ones_like(n_leaves),
    }
    for key, counts in n_entries.items():
        there = np.array([key in tree for tree in fields]) & (n_leaves > 1)
        text = _joined([fields[i] for i in np.flatnonzero(there)], key, counts[there])
        _check_form(text, _STATISTICS, key.decode())


def _integers(text: bytes, name: str) -> Ints:
    _check_form(text, _INTEGERS, name)
    return np.fromstring(text, dtype=np.int64, sep=" ")


def _numbers(text: bytes, name: str) -> Floats:
    _check_form(text, _NUMBERS, name)
    return np.fromstring(text, dtype=np.float64, sep=" ")


def _check_form(text: bytes, form: re.Pattern[bytes], name: str) -> None:
    strict.require(not text or form.fullmatch(text + b" "), f"{name} are not numbers of that kind")


def _end_of_text(tail: bytes) -> tuple[list[str], str]:
    """The lines of the training parameters, and what follows them."""
    before, found, rest = tail.decode("utf-8").partition("\n\nend of parameters\n")
    _, begun, parameters = before.partition("\n\nparameters:\n")
    lines = parameters.split("\n")
    strict.require(found and begun, "it ends before the parameters do")
    strict.require(all(map(_PARAMETER.fullmatch, lines)), "a parameter is not in brackets")
    return lines, rest.strip("\n")


def _declared_categorical(parameters: list[str], names: tuple[str, ...]) -> frozenset[int]:
    """Columns that the training parameters call categorical."""
    declared = ""
    for line in parameters:
        if line.startswith("[categorical_feature: "):
            declared = line.removeprefix("[categorical_feature: ").removesuffix("]")
    if declared.startswith("name:"):
        wanted = set(declared.removeprefix("name:").split(","))
        return frozenset(i for i, name in enumerate(names) if name in wanted)
    numbers = _integers(declared.replace(",", " ").encode(), "categorical_feature").tolist()
    return frozenset(i for i in numbers if 0 <= i < len(names))


def _pandas_levels(last_line: str) -> tuple[tuple[Hashable, ...], ...]:
    """Categories of the pandas columns, in the order of columns and of codes."""
    if not last_line:  # saved by the command line or another language
        return ()
    key, _, content = last_line.partition(":")
    strict.require(key == "pandas_categorical", "something unknown follows the parameters")
    lists = json.loads(content)
    levels = [
        tuple(strict.of(list, column)) for column in strict.of(list, [] if lists is None else lists)
    ]
    known = all(isinstance(x, (str, int, float)) and x == x for column in levels for x in column)
    strict.require(known, "pandas_categorical has something else than categories")
    return tuple(levels)
