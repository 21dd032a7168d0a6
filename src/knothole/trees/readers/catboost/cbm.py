"""CatBoost's binary format (cbm): a FlatBuffers model core, then tables of CTR counts."""

from __future__ import annotations

import numpy as np

from knothole.arrays import Floats
from knothole.compiled.bits import starts
from knothole.trees.readers.catboost import forest, parts
from knothole.trees.readers.catboost.flatbuffer import Buffer, Table
from knothole.trees.readers.catboost.forest import NO_SUCH_SPLIT, Forest, strict
from knothole.trees.readers.catboost.parts import CtrKey, CtrTable, Parts

MAGIC = b"CBM1"
FORMAT = "FlabuffersModel_v1"
CTR_PART = "static_provider_v1"
CTR_KINDS = (*parts.CLASSES, *parts.MEANS, *parts.COUNTERS)  # by number
NAN_AS_TRUE = 2
NO_BUCKET = np.uint64(2**64 - 1)
BUCKET = np.dtype([("key", "<u8"), ("row", "<u4")])  # packed: 12 bytes
MEAN = np.dtype([("sum", "<f4"), ("count", "<i4")])
STEP = np.dtype([("left", "<u2"), ("right", "<u2")])


def parse(data: bytes) -> Parts:
    """Everything a cbm file says about the trees."""
    core, rest = _core(data)
    trees = core.table(1)
    embeddings = trees.span(18)[1] or trees.span(13)[1]
    parts.refuse_text_and_embeddings(bool(trees.span(12)[1]), bool(embeddings))
    outputs = trees.number(0, "<i", 0)
    value = trees.vector(8, "<f8")
    whole = outputs >= 1 and len(value) % outputs == 0
    strict.require(whole, "the number of leaf values is not a multiple of the outputs")
    bias = trees.vector(16, "<f8")
    if not len(bias):
        bias = np.full(outputs, trees.number(15, "<d", 0.0))
    return Parts(
        numeric=[_numeric(table) for table in trees.tables(5)],
        categorical=[_categorical(table) for table in trees.tables(4)],
        one_hot=[(table.number(0, "<i", -1), table.vector(1, "<u4")) for table in trees.tables(6)],
        ctrs=[_ctr(table) for table in trees.tables(7)],
        tables=_ctr_tables(rest) if CTR_PART in core.strings(3) else {},
        trees=_trees(trees, outputs, len(value) // outputs),
        value=value.reshape(-1, outputs),
        scale=trees.number(14, "<d", 1.0),
        bias=bias,
        info={entry.string(0): entry.string(1) for entry in core.tables(2)},
    )


def replace_leaf_values(data: bytes, value: Floats) -> bytes:
    """The same file with other leaf values, in its own order of leaves; nothing else changes."""
    core, _ = _core(data)
    start, count = core.table(1).span(8)
    strict.count("leaf values", value.size, count)
    start += len(MAGIC) + _size_at(data, len(MAGIC))[1]
    replaced = np.ascontiguousarray(value, dtype="<f8").tobytes()
    return data[:start] + replaced + data[start + len(replaced) :]


def _core(data: bytes) -> tuple[Table, bytes]:
    """The model core, and the bytes after it."""
    strict.require(data.startswith(MAGIC), "not a cbm file: it does not begin with 'CBM1'")
    size, width = _size_at(data, len(MAGIC))
    start = len(MAGIC) + width
    strict.require(start + size <= len(data), "the file is truncated")
    core = Buffer(data[start : start + size]).root()
    version = core.string(0)
    strict.require(version == FORMAT, f"format {version!r} is unknown; {FORMAT!r} is read")
    return core, data[start + size :]


def _size_at(data: bytes, position: int) -> tuple[int, int]:
    """A size, and the bytes that it takes: 4, or 12 where it does not fit in them."""
    buffer = Buffer(data)
    size = buffer.number(position, "<I")
    return (size, 4) if size != 2**32 - 1 else (buffer.number(position + 4, "<Q"), 12)


def _numeric(table: Table) -> parts.NumericFeature:
    return parts.NumericFeature(
        column=table.number(2, "<i", -1),
        name=table.string(4),
        borders=table.vector(3, "<f4"),
        nan_right=table.number(5, "<b", 0) == NAN_AS_TRUE,
    )


def _categorical(table: Table) -> parts.CategoricalFeature:
    return parts.CategoricalFeature(
        column=table.number(1, "<i", -1), index=table.number(0, "<i", -1), name=table.string(2)
    )


def _ctr_key(base: Table) -> CtrKey:
    combination = base.table(0)
    kind = base.number(1, "<b", 0)
    strict.require(0 <= kind < len(CTR_KINDS), f"no kind of CTR has number {kind}")
    return CtrKey(
        kind=CTR_KINDS[kind],
        features=tuple(combination.vector(0, "<i4").tolist()),
        plain=not combination.span(1)[1] and not combination.span(2)[1],
        classifier=base.number(2, "<i", 0),
    )


def _ctr(table: Table) -> parts.CtrFeature:
    ctr = table.table(0)
    return parts.CtrFeature(
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
        strict.require(position + size <= len(data), "the file is truncated in its CTR tables")
        table = Buffer(data[position : position + size]).root()
        key = _ctr_key(table.table(0))
        tables[key] = _ctr_table(table, key)
        position += size
    return tables


def _ctr_table(table: Table, key: CtrKey) -> CtrTable:
    buckets = table.vector(1, "u1").view(BUCKET)
    buckets = buckets[buckets["key"] != NO_BUCKET]
    blob = table.vector(2, "u1")
    if key.kind in parts.MEANS:
        means = blob.view(MEAN)
        counts = np.column_stack([means["sum"], means["count"].astype(np.float32)])
    else:
        per_row = 1 if key.kind in parts.COUNTERS else table.number(4, "<i", 0)
        strict.require(
            per_row >= 1 and len(blob) % (4 * per_row) == 0,
            f"a {key.kind} table with {per_row} counts a category",
        )
        counts = blob.view("<i4").reshape(-1, per_row)
    strict.within(buckets["row"], len(counts), "a category without counts in a CTR table")
    return CtrTable(
        keys=buckets["key"].astype(np.uint64),
        counts=counts[buckets["row"]],
        denominator=table.number(3, "<i", 0),
    )


def _trees(table: Table, outputs: int, n_leaves: int) -> Forest:
    split = table.vector(1, "<i4").astype(np.int64)
    size = table.vector(2, "<i4").astype(np.int64)
    start = table.vector(3, "<i4").astype(np.int64)
    complete = len(start) == len(size) and (size >= 0).all() and int(size.sum()) == len(split)
    strict.require(complete, "the trees' sizes do not add up")
    strict.require(np.array_equal(start, starts(size)), "the trees do not follow each other")
    step = table.vector(10, STEP)
    if not len(step):
        forest.check_symmetric(size, n_leaves)
        strict.require((split >= 0).all(), NO_SUCH_SPLIT)
        return forest.symmetric(size, split)
    value = table.vector(11, "<u4").astype(np.int64)
    strict.count("steps", len(step), len(split))
    strict.count("leaf values", len(value), len(split))
    strict.require((size > 0).all(), "a tree without nodes")
    # A step of 0 ends at the node itself, which then is a leaf as well. A node that splits and has
    # one such side gets a leaf of its own for it.
    to_left, to_right = step["left"].astype(np.int64), step["right"].astype(np.int64)
    is_leaf = (to_left == 0) & (to_right == 0)
    ends = (to_left == 0) ^ (to_right == 0)
    has_value = is_leaf | ends
    strict.require((split >= 0)[~is_leaf].all(), NO_SUCH_SPLIT)
    problem = "a leaf without a value"
    strict.require(not (value[has_value] % outputs).any(), problem)
    leaf = np.where(has_value, value // outputs, n_leaves)
    strict.within(leaf[has_value], n_leaves, problem)
    here = np.arange(len(split))
    extra = len(split) + np.cumsum(ends) - 1
    own = extra[ends]
    tree = np.repeat(np.arange(len(size)), size)
    return Forest(
        roots=start,
        tree=np.concatenate([tree, tree[ends]]),
        split=np.concatenate([np.where(is_leaf, -1, split), np.full(len(own), -1)]),
        left=np.concatenate([np.where(ends & (to_left == 0), extra, here + to_left), own]),
        right=np.concatenate([np.where(ends & (to_right == 0), extra, here + to_right), own]),
        leaf=np.concatenate([np.where(is_leaf, leaf, 0), leaf[ends]]),
        first_leaf=np.minimum.reduceat(leaf, start),
    )
