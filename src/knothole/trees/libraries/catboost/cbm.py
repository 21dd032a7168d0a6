"""CatBoost's binary format (cbm): a FlatBuffers model core, then tables of CTR counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from knothole.errors import DamagedFile
from knothole.trees.libraries.catboost.flatbuffer import Buffer, Table
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

MAGIC = b"CBM1"
FORMAT = "FlabuffersModel_v1"
CTR_PART = "static_provider_v1"
CTR_KINDS = (
    "Borders",
    "Buckets",
    "BinarizedTargetMeanValue",
    "FloatTargetMeanValue",
    "Counter",
    "FeatureFreq",
)
NAN_AS_TRUE = 2
NO_BUCKET = np.uint64(2**64 - 1)
BUCKET = np.dtype([("key", "<u8"), ("row", "<u4")])  # packed: 12 bytes
MEAN = np.dtype([("sum", "<f4"), ("count", "<i4")])
STEP = np.dtype([("left", "<u2"), ("right", "<u2")])


def parse(data: bytes) -> Parts:
    """Everything a cbm file says about the trees."""
    core, rest = _core(data)
    trees = core.table(1)
    refuse_text_and_embeddings(
        bool(trees.span(12)[1]), bool(trees.span(18)[1]) or bool(trees.span(13)[1])
    )
    outputs = trees.number(0, "<i", 0)
    value = trees.vector(8, "<f8")
    if outputs < 1 or len(value) % outputs:
        raise DamagedFile("catboost: the number of leaf values is not a multiple of the outputs.")
    bias = trees.vector(16, "<f8")
    if not len(bias):
        bias = np.full(outputs, trees.number(15, "<d", 0.0))
    return Parts(
        numeric=[_numeric(table) for table in trees.tables(5)],
        categorical=[_categorical(table) for table in trees.tables(4)],
        one_hot=[
            OneHotFeature(table.number(0, "<i", -1), table.vector(1, "<u4"))
            for table in trees.tables(6)
        ],
        ctrs=[_ctr(table) for table in trees.tables(7)],
        tables=_ctr_tables(rest) if CTR_PART in core.strings(3) else {},
        trees=_trees(trees, outputs, len(value)),
        value=value.reshape(-1, outputs),
        scale=trees.number(14, "<d", 1.0),
        bias=bias,
        info={entry.string(0): entry.string(1) for entry in core.tables(2)},
    )


def replace_leaf_values(data: bytes, value: NDArray[np.float64]) -> bytes:
    """The same file with other leaf values, in its own order of leaves; nothing else changes."""
    core, _ = _core(data)
    start, count = core.table(1).span(8)
    if value.size != count:
        raise DamagedFile(f"catboost: the model has {count} leaf values, not {value.size}.")
    start += len(MAGIC) + _size_at(data, len(MAGIC))[1]
    replaced = np.ascontiguousarray(value, dtype="<f8").tobytes()
    return data[:start] + replaced + data[start + len(replaced) :]


def _core(data: bytes) -> tuple[Table, bytes]:
    """The model core, and the bytes after it."""
    if not data.startswith(MAGIC):
        raise DamagedFile("catboost: not a cbm file: it does not begin with 'CBM1'.")
    size, width = _size_at(data, len(MAGIC))
    start = len(MAGIC) + width
    if start + size > len(data):
        raise DamagedFile("catboost: the file is truncated. Save the model again with catboost.")
    core = Buffer(data[start : start + size], "catboost").root()
    version = core.string(0)
    if version != FORMAT:
        raise DamagedFile(
            f"catboost: format {version!r} is unknown; this version of knothole reads {FORMAT!r}."
        )
    return core, data[start + size :]


def _size_at(data: bytes, position: int) -> tuple[int, int]:
    """A size, and the bytes that it takes: 4, or 12 where it does not fit in them."""
    buffer = Buffer(data, "catboost")
    size = buffer.number(position, "<I")
    return (size, 4) if size != 2**32 - 1 else (buffer.number(position + 4, "<Q"), 12)


def _numeric(table: Table) -> NumericFeature:
    return NumericFeature(
        column=table.number(2, "<i", -1),
        name=table.string(4),
        borders=table.vector(3, "<f4"),
        nan_right=table.number(5, "<b", 0) == NAN_AS_TRUE,
    )


def _categorical(table: Table) -> CategoricalFeature:
    return CategoricalFeature(
        column=table.number(1, "<i", -1), index=table.number(0, "<i", -1), name=table.string(2)
    )


def _ctr_key(base: Table) -> CtrKey:
    combination = base.table(0)
    kind = base.number(1, "<b", 0)
    if not 0 <= kind < len(CTR_KINDS):
        raise DamagedFile(f"catboost: no kind of CTR has number {kind}.")
    return CtrKey(
        kind=CTR_KINDS[kind],
        features=tuple(combination.vector(0, "<i4").tolist()),
        plain=not combination.span(1)[1] and not combination.span(2)[1],
        classifier=base.number(2, "<i", 0),
    )


def _ctr(table: Table) -> CtrFeature:
    ctr = table.table(0)
    return CtrFeature(
        key=_ctr_key(ctr.table(0)),
        target_border=ctr.number(1, "<i", 0),
        prior=ctr.number(2, "<f", 0.0),
        prior_weight=ctr.number(3, "<f", 1.0),
        shift=ctr.number(4, "<f", 0.0),
        scale=ctr.number(5, "<f", 1.0),
        borders=table.vector(1, "<f4"),
    )


def _ctr_tables(data: bytes) -> dict[CtrKey, CtrTable]:
    count, position = _size_at(data, 0)
    tables = {}
    for _ in range(count):
        size, width = _size_at(data, position)
        position += width
        if position + size > len(data):
            raise DamagedFile("catboost: the file is truncated in its CTR tables.")
        table = Buffer(data[position : position + size], "catboost").root()
        key = _ctr_key(table.table(0))
        tables[key] = _ctr_table(table, key)
        position += size
    return tables


def _ctr_table(table: Table, key: CtrKey) -> CtrTable:
    buckets = table.vector(1, "u1").view(BUCKET)
    buckets = buckets[buckets["key"] != NO_BUCKET]
    blob = table.vector(2, "u1")
    if key.kind in MEANS:
        means = blob.view(MEAN)
        counts = np.column_stack([means["sum"], means["count"].astype(np.float32)])
    else:
        per_row = 1 if key.kind in COUNTERS else table.number(4, "<i", 0)
        if per_row < 1 or len(blob) % (4 * per_row):
            raise DamagedFile(f"catboost: a {key.kind} table with {per_row} counts a category.")
        counts = blob.view("<i4").reshape(-1, per_row)
    if len(buckets) and buckets["row"].max() >= len(counts):
        raise DamagedFile("catboost: a category without counts in a CTR table.")
    return CtrTable(
        keys=buckets["key"].astype(np.uint64),
        counts=counts[buckets["row"]],
        denominator=table.number(3, "<i", 0),
    )


def _trees(table: Table, outputs: int, n_values: int) -> ObliviousTrees | BinaryTrees:
    split = table.vector(1, "<i4").astype(np.int64)
    size = table.vector(2, "<i4").astype(np.int64)
    start = table.vector(3, "<i4").astype(np.int64)
    if len(start) != len(size) or (size < 0).any() or int(size.sum()) != len(split):
        raise DamagedFile("catboost: the trees' sizes do not add up.")
    if not np.array_equal(start, np.cumsum(size) - size):
        raise DamagedFile("catboost: the trees do not follow each other.")
    step = table.vector(10, STEP)
    if not len(step):
        leaves_of_oblivious(size, outputs, n_values)
        return ObliviousTrees(depth=size, split=split)
    leaf = table.vector(11, "<u4").astype(np.int64)
    if len(step) != len(split) or len(leaf) != len(split) or (size == 0).any():
        raise DamagedFile("catboost: node arrays of different lengths.")
    tree = np.repeat(np.arange(len(size)), size)
    return _binary(start, tree, split, step, leaf, outputs, n_values)


def _binary(
    start: NDArray[np.int64],
    tree: NDArray[np.int64],
    split: NDArray[np.int64],
    step: NDArray[np.void],
    leaf: NDArray[np.int64],
    outputs: int,
    n_values: int,
) -> BinaryTrees:
    """Trees of steps: a step of 0 ends at the node itself, which then is a leaf as well.

    A node that splits and has one such side gets a leaf of its own for it.
    """
    here = np.arange(len(split))
    left, right = here + step["left"], here + step["right"]
    ends_left = (step["left"] == 0) & (step["right"] != 0)
    ends_right = (step["right"] == 0) & (step["left"] != 0)
    ends = ends_left | ends_right
    extra = len(split) + np.cumsum(ends) - 1
    left = np.where(ends_left, extra, left)
    right = np.where(ends_right, extra, right)
    own = np.arange(len(split), len(split) + int(ends.sum()))
    value_node = (step["left"] == 0) | (step["right"] == 0)
    used = leaf[value_node]
    if (used % outputs).any() or (used >= n_values).any():
        raise DamagedFile("catboost: a leaf without a value.")
    first = np.minimum.reduceat(np.where(value_node, leaf, n_values), start)
    return BinaryTrees(
        roots=start,
        tree=np.concatenate([tree, tree[ends]]),
        split=np.concatenate([split, np.zeros(len(own), dtype=np.int64)]),
        left=np.concatenate([left, own]),
        right=np.concatenate([right, own]),
        leaf=np.concatenate([np.where(value_node, leaf, 0), leaf[ends]]) // outputs,
        first_leaf=first // outputs,
    )
