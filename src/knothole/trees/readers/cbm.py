"""CatBoost's binary format (cbm): a FlatBuffers model core, then tables of CTR counts.

CatBoost numbers every test that a tree can make: first the borders of all numeric features, then
the values of all one-hot features, then the borders of all CTR features. Trees refer to their
splits by that number. A row goes right iff ``float32(x) > border``, the category equals the value,
or the category's CTR is above the border.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.bits import starts
from knothole.checks import check_count, check_within, require
from knothole.errors import DamagedFile, UnsupportedModel
from knothole.trees.ensemble import MEDIAN, Recipe

MAGIC = b"CBM1"
FORMAT = "FlabuffersModel_v1"
CTR_PART = "static_provider_v1"
# Kinds of CTR: counts by class of the target, means of the target, counts of rows.
CLASSES = ("Borders", "Buckets")
MEANS = ("BinarizedTargetMeanValue", "FloatTargetMeanValue")
COUNTERS = ("Counter", "FeatureFreq")
CTR_KINDS = (*CLASSES, *MEANS, *COUNTERS)  # by number
# Squared and absolute errors, quantiles, log losses: a recipe describes them without a name.
IMPLIED_LOSSES = (
    *("RMSE", "MultiRMSE", "MultiRMSEWithMissingValues", "MAE", "Quantile", "MultiQuantile"),
    *("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"),
    *("MultiLogloss", "MultiCrossEntropy"),
)
NAN_AS_TRUE = 2
NO_BUCKET = np.uint64(2**64 - 1)
BUCKET = np.dtype([("key", "<u8"), ("row", "<u4")])  # packed: 12 bytes
MEAN = np.dtype([("sum", "<f4"), ("count", "<i4")])
STEP = np.dtype([("left", "<u2"), ("right", "<u2")])
# A tree with more splits on every path cannot be trained, and would not fit in memory.
DEEPEST = 24
NO_SUCH_SPLIT = "a split on a border that the model does not have"
# Builders share small tables between parents, so some bytes are legitimately read repeatedly.
SHARING = 8
TRUNCATED = "the file is truncated or corrupt"


@dataclass(frozen=True, eq=False)
class NumericFeature:
    """A numeric column: position, name, borders in use, and direction of NaN."""

    column: int
    name: str
    borders: NDArray[np.float32]
    nan_right: bool


@dataclass(frozen=True)
class CategoricalFeature:
    """A categorical column: position among all columns and among the categorical ones."""

    column: int
    index: int
    name: str


@dataclass(frozen=True)
class CtrKey:
    """Identifies a statistic of the target: its kind, the categorical features it is over, and
    whether numeric or one-hot splits take part.
    """

    kind: str
    features: tuple[int, ...]
    plain: bool = True
    classifier: int = 0


@dataclass(frozen=True, eq=False)
class CtrFeature:
    """A CTR: how its table's counts become a number, and the borders that split that number."""

    key: CtrKey
    borders: NDArray[np.float32]
    target_border: int
    prior: float
    prior_weight: float
    shift: float
    scale: float


@dataclass(frozen=True, eq=False)
class CtrTable:
    """Counts (categories, numbers) for every category in training, by hashed category."""

    keys: NDArray[np.uint64]
    counts: NDArray[Any]
    denominator: int


@dataclass(frozen=True, eq=False)
class BinaryTrees:
    """All trees of a model: nodes in any order, children by position.

    ``tree``: the tree of each node; ``split``: the number of its split (-1 at a leaf); ``leaf``: a
    leaf's position in the model's leaf values (0 elsewhere); ``first_leaf``: the position of each
    tree's first leaf.
    """

    roots: Ints
    tree: Ints
    split: Ints
    left: Ints
    right: Ints
    leaf: Ints
    first_leaf: Ints


@dataclass(frozen=True, eq=False)
class CatBoostModel:
    """A model as stored in its file."""

    numeric: list[NumericFeature]
    categorical: list[CategoricalFeature]
    one_hot: list[tuple[int, NDArray[np.uint32]]]  # feature, hashes split singly
    ctrs: list[CtrFeature]
    tables: dict[CtrKey, CtrTable]
    trees: BinaryTrees
    value: Floats  # (leaves, outputs)
    scale: float
    bias: Floats
    info: dict[str, str]  # metadata; many of the texts are JSON

    @property
    def loss(self) -> str:
        """Name of the loss that the model was trained on; empty where the file does not say."""
        return str(self._loss.get("type", ""))

    @property
    def _loss(self) -> dict[str, Any]:
        for place in (self._options("params").get("loss_function"), self._options("loss_function")):
            if isinstance(place, dict) and isinstance(place.get("type"), str):
                return place
        return {}

    @property
    def recipe(self) -> Recipe:
        """Quantiles of the loss, and the learning rate."""
        levels: Sequence[Any] = MEDIAN if self.loss in ("MAE", "MAPE") else ()
        given = self._loss.get("params", {})
        if self.loss in ("Quantile", "MultiQuantile"):
            levels = str(given.get("alpha", MEDIAN[0])).split(",")
        loss = "" if self.loss in IMPLIED_LOSSES else self.loss
        boosting = self._options("params").get("boosting_options", {})
        delta = given.get("delta") if loss == "Huber" else None
        return Recipe.of(levels, boosting.get("learning_rate"), loss, delta)

    @property
    def classes(self) -> tuple[Hashable, ...]:
        """Class labels in the order of outputs, as the library reports them; empty if none."""
        options = self._options("class_params") or self._options("multiclass_params")
        given = self._options("params").get("data_processing_options", {}).get("class_names")
        labels = options.get("class_names") or []
        if not labels and options.get("classes_count"):
            labels = range(options["classes_count"])
        if not labels and "class_to_label" in options:
            labels = [int(label) for label in options["class_to_label"]]
        if options.get("class_label_type") == "Float":
            labels = [float(label) for label in labels]
        return tuple(labels or given or ())

    def _options(self, key: str) -> dict[str, Any]:
        """A part of the model's metadata."""
        options = json.loads(self.info.get(key) or "{}")
        return options if isinstance(options, dict) else {}


def parse(data: bytes) -> CatBoostModel:
    """Everything that a cbm file says about the trees."""
    core, rest = _core(data)
    trees = core.table(1)
    for kind, slots in (("text", (12,)), ("embedding", (13, 18))):
        if any(trees.span(slot)[1] for slot in slots):
            raise UnsupportedModel(
                f"catboost: the model has {kind} features, which cannot be read as splits on "
                f"columns. Train it without them, or on numeric features computed from them "
                f"beforehand."
            )
    outputs = trees.number(0, "<i", 0)
    value = trees.vector(8, "<f8")
    whole = outputs >= 1 and len(value) % outputs == 0
    require(whole, "the number of leaf values is not a multiple of the outputs")
    bias = trees.vector(16, "<f8")
    if not len(bias):
        bias = np.full(outputs, trees.number(15, "<d", 0.0))
    return CatBoostModel(
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
    """The same file with other leaf values, in its own order of leaves."""
    core, _ = _core(data)
    start, count = core.table(1).span(8)
    check_count("leaf values", value.size, count)
    start += len(MAGIC) + _size_at(data, len(MAGIC))[1]
    replaced = np.ascontiguousarray(value, dtype="<f8").tobytes()
    return data[:start] + replaced + data[start + len(replaced) :]


def _core(data: bytes) -> tuple[FlatTable, bytes]:
    """The model core, and the bytes that follow it."""
    require(data.startswith(MAGIC), "not a cbm file: it does not begin with 'CBM1'")
    size, width = _size_at(data, len(MAGIC))
    start = len(MAGIC) + width
    require(start + size <= len(data), "the file is truncated")
    core = Buffer(data[start : start + size]).root()
    version = core.string(0)
    require(version == FORMAT, f"format {version!r} is unknown; {FORMAT!r} is read")
    return core, data[start + size :]


def _size_at(data: bytes, position: int) -> tuple[int, int]:
    """A size, and how many bytes it takes: 4, or 12 for large ones."""
    buffer = Buffer(data)
    size = buffer.number(position, "<I")
    return (size, 4) if size != 2**32 - 1 else (buffer.number(position + 4, "<Q"), 12)


def _numeric(table: FlatTable) -> NumericFeature:
    return NumericFeature(
        column=table.number(2, "<i", -1),
        name=table.string(4),
        borders=table.vector(3, "<f4"),
        nan_right=table.number(5, "<b", 0) == NAN_AS_TRUE,
    )


def _categorical(table: FlatTable) -> CategoricalFeature:
    return CategoricalFeature(
        column=table.number(1, "<i", -1), index=table.number(0, "<i", -1), name=table.string(2)
    )


def _ctr_key(base: FlatTable) -> CtrKey:
    combination = base.table(0)
    kind = base.number(1, "<b", 0)
    require(0 <= kind < len(CTR_KINDS), f"no kind of CTR has number {kind}")
    return CtrKey(
        kind=CTR_KINDS[kind],
        features=tuple(combination.vector(0, "<i4").tolist()),
        plain=not combination.span(1)[1] and not combination.span(2)[1],
        classifier=base.number(2, "<i", 0),
    )


def _ctr(table: FlatTable) -> CtrFeature:
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
        require(position + size <= len(data), "the file is truncated in its CTR tables")
        table = Buffer(data[position : position + size]).root()
        key = _ctr_key(table.table(0))
        tables[key] = _ctr_table(table, key)
        position += size
    return tables


def _ctr_table(table: FlatTable, key: CtrKey) -> CtrTable:
    buckets = table.vector(1, "u1").view(BUCKET)
    buckets = buckets[buckets["key"] != NO_BUCKET]
    blob = table.vector(2, "u1")
    if key.kind in MEANS:
        means = blob.view(MEAN)
        counts = np.column_stack([means["sum"], means["count"].astype(np.float32)])
    else:
        per_row = 1 if key.kind in COUNTERS else table.number(4, "<i", 0)
        require(
            per_row >= 1 and len(blob) % (4 * per_row) == 0,
            f"a {key.kind} table with {per_row} counts a category",
        )
        counts = blob.view("<i4").reshape(-1, per_row)
    check_within(buckets["row"], len(counts), "a category without counts in a CTR table")
    return CtrTable(
        keys=buckets["key"].astype(np.uint64),
        counts=counts[buckets["row"]],
        denominator=table.number(3, "<i", 0),
    )


def _trees(table: FlatTable, outputs: int, n_leaves: int) -> BinaryTrees:
    split = table.vector(1, "<i4").astype(np.int64)
    size = table.vector(2, "<i4").astype(np.int64)
    start = table.vector(3, "<i4").astype(np.int64)
    complete = len(start) == len(size) and (size >= 0).all() and int(size.sum()) == len(split)
    require(complete, "the trees' sizes do not add up")
    require(np.array_equal(start, starts(size)), "the trees do not follow each other")
    step = table.vector(10, STEP)
    if not len(step):
        check_within(size, DEEPEST + 1, f"a tree's depth is not between 0 and {DEEPEST}")
        check_count("leaves", int((1 << size).sum()), n_leaves)
        require((split >= 0).all(), NO_SUCH_SPLIT)
        return _symmetric(size, split)
    value = table.vector(11, "<u4").astype(np.int64)
    check_count("steps", len(step), len(split))
    check_count("leaf values", len(value), len(split))
    require((size > 0).all(), "a tree without nodes")
    # A step of 0 leads to the node itself, which then serves as a leaf too. A node that splits and
    # has one such side gets a separate leaf for it.
    to_left, to_right = step["left"].astype(np.int64), step["right"].astype(np.int64)
    is_leaf = (to_left == 0) & (to_right == 0)
    ends = (to_left == 0) ^ (to_right == 0)
    has_value = is_leaf | ends
    require((split >= 0)[~is_leaf].all(), NO_SUCH_SPLIT)
    problem = "a leaf without a value"
    require(not (value[has_value] % outputs).any(), problem)
    leaf = np.where(has_value, value // outputs, n_leaves)
    check_within(leaf[has_value], n_leaves, problem)
    here = np.arange(len(split))
    extra = len(split) + np.cumsum(ends) - 1
    added = extra[ends]
    tree = np.repeat(np.arange(len(size)), size)
    return BinaryTrees(
        roots=start,
        tree=np.concatenate([tree, tree[ends]]),
        split=np.concatenate([np.where(is_leaf, -1, split), np.full(len(added), -1)]),
        left=np.concatenate([np.where(ends & (to_left == 0), extra, here + to_left), added]),
        right=np.concatenate([np.where(ends & (to_right == 0), extra, here + to_right), added]),
        leaf=np.concatenate([np.where(is_leaf, leaf, 0), leaf[ends]]),
        first_leaf=np.minimum.reduceat(leaf, start),
    )


def _symmetric(depth: Ints, split: Ints) -> BinaryTrees:
    """Binary trees from symmetric ones, in which a level has the same split everywhere.

    Bit k of a leaf's number is the outcome of the tree's k-th split. Each tree becomes a heap: node
    i has the children 2 i + 1 and 2 i + 2, and level 0 has the tree's last split. The leaves, from
    left to right, then have CatBoost's own numbers.
    """
    in_tree = 1 << depth
    n_nodes = 2 * in_tree - 1
    roots, first_leaf = starts(n_nodes), starts(in_tree)
    tree = np.repeat(np.arange(len(depth)), n_nodes)
    node = np.arange(len(tree)) - roots[tree]
    inner = node < in_tree[tree] - 1
    level = np.frexp(node + 1.0)[1] - 1
    question = starts(depth)[tree] + depth[tree] - 1 - level
    left = np.where(inner, np.arange(len(tree)) + node + 1, 0)
    return BinaryTrees(
        roots=roots,
        tree=tree,
        split=np.where(inner, np.append(split, 0)[np.where(inner, question, 0)], -1),
        left=left,
        right=left + 1,
        leaf=np.where(inner, 0, first_leaf[tree] + node - (in_tree[tree] - 1)),
        first_leaf=first_leaf,
    )


# ---- FlatBuffers ------------------------------------------------------------------------------


class Buffer:
    """Bytes of FlatBuffers tables, with every offset checked.

    A table starts with the distance to its vtable, which lists where each field lies; vectors,
    strings and tables are reached by offsets from their field. Offsets outside the buffer are
    refused, and so is a buffer whose vectors together are far larger than itself: offsets that
    point at the same bytes repeatedly would otherwise make a small file use any amount of memory.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._budget = SHARING * len(data)

    def number(self, position: int, form: str) -> Any:
        """One number at ``position``, in ``struct`` format ``form``."""
        require(0 <= position <= len(self.data) - struct.calcsize(form), TRUNCATED)
        return struct.unpack_from(form, self.data, position)[0]

    def array(self, position: int, dtype: Any, count: int) -> NDArray[Any]:
        """``count`` numbers from ``position`` on."""
        dtype = np.dtype(dtype)
        size = count * dtype.itemsize
        self._budget -= size
        inside = position >= 0 and count >= 0 and position + size <= len(self.data)
        require(inside and self._budget >= 0, TRUNCATED)
        return np.frombuffer(self.data, dtype, count, position)

    def root(self) -> FlatTable:
        """The root table of the buffer."""
        return FlatTable(self, self.number(0, "<I"))


class FlatTable:
    """One table; fields are identified by their number in the schema, with defaults if absent."""

    def __init__(self, buffer: Buffer, position: int) -> None:
        vtable = position - buffer.number(position, "<i")
        size = buffer.number(vtable, "<H")
        self._buffer = buffer
        self._position = position
        self._fields = buffer.array(vtable + 4, "<u2", (size - 4) // 2)

    def _field(self, slot: int) -> int | None:
        if slot >= len(self._fields) or self._fields[slot] == 0:
            return None
        return self._position + int(self._fields[slot])

    def _target(self, slot: int) -> int | None:
        field = self._field(slot)
        return None if field is None else field + int(self._buffer.number(field, "<I"))

    def number(self, slot: int, form: str, default: Any) -> Any:
        """A scalar field of ``struct`` format ``form``."""
        field = self._field(slot)
        return default if field is None else self._buffer.number(field, form)

    def span(self, slot: int) -> tuple[int, int]:
        """Position of a vector's first element and its length; (0, 0) if it is absent."""
        target = self._target(slot)
        return (0, 0) if target is None else self._span_at(target)

    def vector(self, slot: int, dtype: Any) -> NDArray[Any]:
        """A vector of numbers or structs."""
        start, count = self.span(slot)
        return self._buffer.array(start, dtype, count)

    def string(self, slot: int) -> str:
        """A string; empty if absent."""
        return self.vector(slot, "u1").tobytes().decode("utf-8")

    def table(self, slot: int) -> FlatTable:
        """A table, which must be present."""
        target = self._target(slot)
        if target is None:
            raise DamagedFile(TRUNCATED)
        return FlatTable(self._buffer, target)

    def tables(self, slot: int) -> list[FlatTable]:
        """A vector of tables."""
        return [FlatTable(self._buffer, target) for target in self._targets(slot)]

    def strings(self, slot: int) -> list[str]:
        """A vector of strings."""
        spans = [self._span_at(target) for target in self._targets(slot)]
        texts = [self._buffer.array(start, "u1", count) for start, count in spans]
        return [text.tobytes().decode("utf-8") for text in texts]

    def _span_at(self, target: int) -> tuple[int, int]:
        return target + 4, self._buffer.number(target, "<I")

    def _targets(self, slot: int) -> list[int]:
        start, _ = self.span(slot)
        offsets = self.vector(slot, "<u4").tolist()
        return [start + 4 * i + offset for i, offset in enumerate(offsets)]
