"""CatBoost's JSON format, read strictly: a number must be a number, and nothing may be missing."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile
from knothole.trees.libraries.catboost.parts import (
    COUNTERS,
    MEANS,
    BinaryTrees,
    CategoricalFeature,
    CtrFeature,
    CtrKey,
    CtrTable,
    NumericFeature,
    ObliviousTrees,
    OneHotFeature,
    Parts,
    leaves_of_oblivious,
    refuse_text_and_embeddings,
)

NAN_TREATMENTS = ("AsIs", "AsFalse", "AsTrue")
NO_BUCKET = 2**64 - 1


def parse(data: bytes) -> Parts:
    """Everything a JSON file says about the trees."""
    model = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    features = _of(dict, model["features_info"])
    refuse_text_and_embeddings("text_features" in features, "embedding_features" in features)
    categorical = _records(features, "categorical_features")
    numeric = [_numeric(record) for record in _records(features, "float_features")]
    one_hot = [
        OneHotFeature(_whole(record["feature_index"]), _hashes(record["values"]))
        for record in categorical
        if "values" in record
    ]
    ctrs = [_ctr(record) for record in _records(features, "ctrs")]
    thresholds = [f.borders for f in numeric] + [f.hashes.view(np.int32) for f in one_hot]
    thresholds += [f.borders for f in ctrs]
    asked = np.concatenate([np.zeros(0), *thresholds])
    trees: ObliviousTrees | BinaryTrees
    if "oblivious_trees" in model:
        trees, value = _oblivious(_of(list, model["oblivious_trees"]), asked)
    else:
        trees, value = _nested(_of(list, model["trees"]), asked)
    scale, bias = model["scale_and_bias"]
    bias = _numbers(bias)
    return Parts(
        numeric=numeric,
        categorical=[
            CategoricalFeature(
                column=_whole(record["flat_feature_index"]),
                index=_whole(record["feature_index"]),
                name=_of(str, record.get("feature_id", "")),
            )
            for record in categorical
        ],
        one_hot=one_hot,
        ctrs=ctrs,
        tables=_tables(_of(dict, model.get("ctr_data") or {})),
        trees=trees,
        value=value if value.size else value.reshape(0, len(bias)),
        scale=float(_numbers([scale])[0]),
        bias=bias,
        info=_of(dict, model.get("model_info", {})),
        level_names={
            _whole(record["hash"]) % 2**32: _of(str, record["value"])
            for record in _records(features, "cat_features_hash")
        },
    )


def _refuse_constant(name: str) -> NoReturn:
    raise DamagedFile(f"catboost: {name} is not a number that a model can hold.")


def _of(kind: type, item: Any) -> Any:
    if not isinstance(item, kind):
        raise DamagedFile(
            f"catboost: expected {kind.__name__}, found {type(item).__name__} in the JSON file."
        )
    return item


def _whole(item: Any) -> int:
    if isinstance(item, bool) or not isinstance(item, int):
        raise DamagedFile(f"catboost: expected a whole number in the JSON file, found {item!r}.")
    return item


def _numbers(items: Any) -> NDArray[np.float64]:
    """A list of numbers; text that looks like a number is not one."""
    array = np.array(_of(list, items), dtype=object)
    if array.ndim != 1 or not {type(item) for item in items} <= {int, float}:
        raise DamagedFile("catboost: expected a list of numbers in the JSON file.")
    return array.astype(np.float64)


def _records(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [_of(dict, record) for record in _of(list, parent.get(key) or [])]


def _borders(items: Any) -> NDArray[np.float32]:
    return _numbers(items or []).astype(np.float32)


def _hashes(items: Any) -> NDArray[np.uint32]:
    return np.array([_whole(item) for item in _of(list, items)], dtype=np.int32).view(np.uint32)


def _numeric(record: dict[str, Any]) -> NumericFeature:
    treatment = record["nan_value_treatment"]
    if treatment not in NAN_TREATMENTS:
        raise DamagedFile(f"catboost: unknown nan_value_treatment {treatment!r}.")
    return NumericFeature(
        column=_whole(record["flat_feature_index"]),
        name=_of(str, record.get("feature_id", "")),
        borders=_borders(record["borders"]),
        nan_right=treatment == "AsTrue",
    )


def _key(kind: Any, elements: Any) -> CtrKey:
    elements = [_of(dict, element) for element in _of(list, elements)]
    plain = [e for e in elements if e["combination_element"] == "cat_feature_value"]
    return CtrKey(
        kind=_of(str, kind),
        features=tuple(_whole(element["cat_feature_index"]) for element in plain),
        plain=len(plain) == len(elements),
    )


def _ctr(record: dict[str, Any]) -> CtrFeature:
    prior, weight, shift, scale = _numbers(
        [record[name] for name in ("prior_numerator", "prior_denomerator", "shift", "scale")]
    )
    return CtrFeature(
        key=_key(record["ctr_type"], record["elements"]),
        target_border=_whole(record["target_border_idx"]),
        prior=float(prior),
        prior_weight=float(weight),
        shift=float(shift),
        scale=float(scale),
        borders=_borders(record["borders"]),
    )


def _tables(ctr_data: dict[str, Any]) -> dict[CtrKey, CtrTable]:
    tables = {}
    for text, content in ctr_data.items():
        name = _of(dict, json.loads(text, parse_constant=_refuse_constant))
        key = _key(name["type"], name["identifier"])
        tables[key] = _table(_of(dict, content), key)
    return tables


def _table(content: dict[str, Any], key: CtrKey) -> CtrTable:
    stride = _whole(content["hash_stride"])
    flat = _of(list, content["hash_map"])
    width = 2 if key.kind in COUNTERS else 3
    if stride < width or (stride > width and key.kind in MEANS + COUNTERS) or len(flat) % stride:
        raise DamagedFile(f"catboost: a {key.kind} table with {stride} numbers a category.")
    keys = [int(_of(str, item)) for item in flat[::stride]]
    counts = np.column_stack([_numbers(flat[i::stride]) for i in range(1, stride)])
    whole = np.abs(counts) < 2**31
    if not whole.all() or (key.kind not in MEANS and (counts != np.floor(counts)).any()):
        raise DamagedFile(f"catboost: a {key.kind} table with impossible counts.")
    used = np.array([item != NO_BUCKET for item in keys])
    return CtrTable(
        keys=np.array(keys, dtype=np.uint64)[used],
        counts=counts[used].astype(np.float32 if key.kind in MEANS else np.int32),
        denominator=_whole(content["counter_denominator"]),
    )


def _oblivious(
    trees: list[Any], asked: NDArray[np.float64]
) -> tuple[ObliviousTrees, NDArray[np.float64]]:
    splits = [_of(list, _of(dict, tree).get("splits") or []) for tree in trees]
    flat = [split for tree in splits for split in tree]
    depth = np.array([len(tree) for tree in splits], dtype=np.int64)
    per_tree = [_of(list, tree["leaf_values"]) for tree in trees]
    value = _numbers([item for values in per_tree for item in values])
    outputs = len(per_tree[0]) >> int(depth[0]) if trees and depth[0] < 64 else 1
    leaves_of_oblivious(depth, outputs, len(value))
    if any(len(values) != outputs << int(d) for values, d in zip(per_tree, depth, strict=True)):
        raise DamagedFile("catboost: a tree's leaf values are not as many as its leaves.")
    return ObliviousTrees(depth, _split_numbers(flat, asked)), value.reshape(-1, outputs)


def _nested(
    trees: list[Any], asked: NDArray[np.float64]
) -> tuple[BinaryTrees, NDArray[np.float64]]:
    """Trees whose nodes hold each other: numbered depth first, left to right, as CatBoost does."""
    roots, first_leaf = [], []
    left: list[int] = []
    right: list[int] = []
    leaf, owner = [], []
    at: list[int] = []  # nodes that split
    splits: list[Any] = []
    values: list[Any] = []
    for number, tree in enumerate(trees):
        roots.append(len(left))
        first_leaf.append(len(values))
        # A node, and where to note its position.
        waiting: list[tuple[Any, list[int], int]] = [(tree, left, -1)]
        while waiting:
            node, side, parent = waiting.pop()
            here = len(left)
            left.append(here)
            right.append(here)
            leaf.append(0)
            owner.append(number)
            if parent >= 0:
                side[parent] = here
            if "value" in _of(dict, node):
                leaf[here] = len(values)
                values.append(node["value"] if type(node["value"]) is list else [node["value"]])
            else:
                at.append(here)
                splits.append(node["split"])
                waiting.append((node["right"], right, here))
                waiting.append((node["left"], left, here))
    outputs = len(values[0]) if values else 1
    if any(len(value) != outputs for value in values):
        raise DamagedFile("catboost: leaves with different numbers of values.")
    split = np.zeros(len(left), dtype=np.int64)
    split[at] = _split_numbers(splits, asked)
    binary = BinaryTrees(
        roots=np.array(roots, dtype=np.int64),
        tree=np.array(owner, dtype=np.int64),
        split=split,
        left=np.array(left, dtype=np.int64),
        right=np.array(right, dtype=np.int64),
        leaf=np.array(leaf, dtype=np.int64),
        first_leaf=np.array(first_leaf, dtype=np.int64),
    )
    return binary, _numbers([item for value in values for item in value]).reshape(-1, outputs)


def _split_numbers(splits: list[Any], asked: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers of the splits; what each says about itself must be what that number stands for."""
    number = np.array([_whole(_of(dict, s)["split_index"]) for s in splits], dtype=np.int64)
    if len(number) and not 0 <= number.min() <= number.max() < len(asked):
        raise DamagedFile("catboost: a split on a border that the model does not have.")
    said = _numbers([split["border"] if "border" in split else split["value"] for split in splits])
    if not np.array_equal(said.astype(np.float32), asked[number].astype(np.float32)):
        raise DamagedFile("catboost: a split's border is not the one it is numbered as.")
    return number
