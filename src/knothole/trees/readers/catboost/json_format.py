"""CatBoost's JSON format, read strictly: a number must be a number, and nothing may be missing."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.trees.readers.catboost import forest, parts
from knothole.trees.readers.catboost.forest import NO_SUCH_SPLIT, Forest, strict
from knothole.trees.readers.catboost.parts import CtrKey, CtrTable, Parts

NAN_TREATMENTS = ("AsIs", "AsFalse", "AsTrue")
NO_BUCKET = 2**64 - 1


def parse(data: bytes) -> Parts:
    """Everything a JSON file says about the trees."""
    model = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    features = strict.of(dict, model["features_info"])
    parts.refuse_text_and_embeddings("text_features" in features, "embedding_features" in features)
    categorical = _records(features, "categorical_features")
    numeric = [_numeric(record) for record in _records(features, "float_features")]
    one_hot = [
        (strict.of(int, record["feature_index"]), _hashes(record["values"]))
        for record in categorical
        if "values" in record
    ]
    ctrs = [_ctr(record) for record in _records(features, "ctrs")]
    thresholds = [f.borders for f in numeric] + [hashes.view(np.int32) for _, hashes in one_hot]
    thresholds += [f.borders for f in ctrs]
    asked = np.concatenate([np.zeros(0), *thresholds])
    if "oblivious_trees" in model:
        trees, value = _oblivious(strict.of(list, model["oblivious_trees"]), asked)
    else:
        trees, value = _nested(strict.of(list, model["trees"]), asked)
    scale, bias = model["scale_and_bias"]
    bias = _numbers(bias, "bias")
    return Parts(
        numeric=numeric,
        categorical=[
            parts.CategoricalFeature(
                column=strict.of(int, record["flat_feature_index"]),
                index=strict.of(int, record["feature_index"]),
                name=strict.of(str, record.get("feature_id", "")),
            )
            for record in categorical
        ],
        one_hot=one_hot,
        ctrs=ctrs,
        tables=_tables(strict.of(dict, model.get("ctr_data") or {})),
        trees=trees,
        value=value if value.size else value.reshape(0, len(bias)),
        scale=float(_numbers([scale], "scale")[0]),
        bias=bias,
        info=strict.of(dict, model.get("model_info", {})),
        level_names={
            strict.of(int, record["hash"]) % 2**32: strict.of(str, record["value"])
            for record in _records(features, "cat_features_hash")
        },
    )


def _refuse_constant(name: str) -> NoReturn:
    raise strict.damage(f"{name} is not a number that a model can hold")


def _numbers(items: Any, name: str) -> Floats:
    return strict.numbers(strict.of(list, items), name).astype(np.float64)


def _records(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [strict.of(dict, record) for record in strict.of(list, parent.get(key) or [])]


def _borders(items: Any) -> NDArray[np.float32]:
    return _numbers(items or [], "borders").astype(np.float32)


def _hashes(items: Any) -> NDArray[np.uint32]:
    signed = np.array([strict.of(int, item) for item in strict.of(list, items)], dtype=np.int32)
    return signed.view(np.uint32)


def _numeric(record: dict[str, Any]) -> parts.NumericFeature:
    treatment = record["nan_value_treatment"]
    strict.require(treatment in NAN_TREATMENTS, f"unknown nan_value_treatment {treatment!r}")
    return parts.NumericFeature(
        column=strict.of(int, record["flat_feature_index"]),
        name=strict.of(str, record.get("feature_id", "")),
        borders=_borders(record["borders"]),
        nan_right=treatment == "AsTrue",
    )


def _key(kind: Any, elements: Any) -> CtrKey:
    elements = [strict.of(dict, element) for element in strict.of(list, elements)]
    plain = [e for e in elements if e["combination_element"] == "cat_feature_value"]
    return CtrKey(
        kind=strict.of(str, kind),
        features=tuple(strict.of(int, element["cat_feature_index"]) for element in plain),
        plain=len(plain) == len(elements),
    )


def _ctr(record: dict[str, Any]) -> parts.CtrFeature:
    names = ("prior_numerator", "prior_denomerator", "shift", "scale")
    return parts.CtrFeature(
        _key(record["ctr_type"], record["elements"]),
        _borders(record["borders"]),
        strict.of(int, record["target_border_idx"]),
        *_numbers([record[name] for name in names], "CTR").tolist(),
    )


def _tables(ctr_data: dict[str, Any]) -> dict[CtrKey, CtrTable]:
    tables = {}
    for text, content in ctr_data.items():
        name = strict.of(dict, json.loads(text, parse_constant=_refuse_constant))
        key = _key(name["type"], name["identifier"])
        tables[key] = _table(strict.of(dict, content), key)
    return tables


def _table(content: dict[str, Any], key: CtrKey) -> CtrTable:
    stride = strict.of(int, content["hash_stride"])
    flat = strict.of(list, content["hash_map"])
    width = 2 if key.kind in parts.COUNTERS else 3
    fits = stride == width or (stride > width and key.kind not in parts.MEANS + parts.COUNTERS)
    problem = f"a {key.kind} table with {stride} numbers a category"
    strict.require(fits and len(flat) % stride == 0, problem)
    keys = [int(strict.of(str, item)) for item in flat[::stride]]
    counts = np.column_stack([_numbers(flat[i::stride], "hash_map") for i in range(1, stride)])
    whole = key.kind in parts.MEANS or (counts == np.floor(counts)).all()
    possible = whole and (np.abs(counts) < 2**31).all()
    strict.require(possible, f"a {key.kind} table with impossible counts")
    used = np.array([item != NO_BUCKET for item in keys])
    return CtrTable(
        keys=np.array(keys, dtype=np.uint64)[used],
        counts=counts[used].astype(np.float32 if key.kind in parts.MEANS else np.int32),
        denominator=strict.of(int, content["counter_denominator"]),
    )


def _oblivious(trees: list[Any], asked: Floats) -> tuple[Forest, Floats]:
    splits = [strict.of(list, strict.of(dict, tree).get("splits") or []) for tree in trees]
    depth = np.array([len(tree) for tree in splits], dtype=np.int64)
    per_tree = [strict.of(list, tree["leaf_values"]) for tree in trees]
    outputs = max(1, len(per_tree[0]) >> int(depth[0])) if trees and depth[0] < 64 else 1
    forest.check_symmetric(depth, sum(map(len, per_tree)) // outputs)
    for values, in_tree in zip(per_tree, (1 << depth).tolist(), strict=True):
        strict.count("leaf values of a tree", len(values), outputs * in_tree)
    value = _numbers([item for values in per_tree for item in values], "leaf_values")
    number = _split_numbers([split for tree in splits for split in tree], asked)
    return forest.symmetric(depth, number), value.reshape(-1, outputs)


def _nested(trees: list[Any], asked: Floats) -> tuple[Forest, Floats]:
    """Trees whose nodes hold each other: numbered depth first, left to right, as CatBoost does."""
    first: list[tuple[int, int]] = []  # node and leaf of each tree
    nodes: list[list[int]] = []  # left child, right child, tree, leaf
    at, splits = [], []  # nodes that split
    values: list[list[Any]] = []
    for number, tree in enumerate(trees):
        first.append((len(nodes), len(values)))
        waiting = [(tree, -1, 0)]  # a node, its parent, and on which side
        while waiting:
            node, parent, side = waiting.pop()
            here = len(nodes)
            nodes.append([0, 0, number, 0])
            if parent >= 0:
                nodes[parent][side] = here
            if "value" in strict.of(dict, node):
                nodes[here][-1] = len(values)
                values.append(node["value"] if type(node["value"]) is list else [node["value"]])
            else:
                at.append(here)
                splits.append(node["split"])
                waiting += [(node["right"], here, 1), (node["left"], here, 0)]
    outputs = len(values[0]) if values else 1
    same = all(len(value) == outputs for value in values)
    strict.require(same, "leaves with different numbers of values")
    split = np.full(len(nodes), -1)
    split[at] = _split_numbers(splits, asked)
    left, right, owner, leaf = np.array(nodes, dtype=np.int64).reshape(-1, 4).T
    roots, first_leaf = np.array(first, dtype=np.int64).reshape(-1, 2).T
    flat = _numbers([item for value in values for item in value], "value")
    grown = Forest(roots, owner, split, left, right, leaf, first_leaf)
    return grown, flat.reshape(-1, outputs)


def _split_numbers(splits: list[Any], asked: Floats) -> Ints:
    """Numbers of the splits; what each says about itself must be what that number stands for."""
    numbers = [strict.of(int, strict.of(dict, split)["split_index"]) for split in splits]
    number = np.array(numbers, dtype=np.int64)
    strict.within(number, len(asked), NO_SUCH_SPLIT)
    said = [split["border"] if "border" in split else split["value"] for split in splits]
    same = _numbers(said, "border").astype(np.float32) == asked[number].astype(np.float32)
    strict.require(same.all(), "a split's border is not the one it is numbered as")
    return number
