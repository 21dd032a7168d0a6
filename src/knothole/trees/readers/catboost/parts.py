"""What a CatBoost model file says, whichever of its two formats said it.

CatBoost numbers every question a tree can ask: first the borders of all numeric features, then
the values of all one-hot features, then the borders of all CTR features. Trees name their splits by
that number. A split is true, and the row goes right, iff ``float32(x) > border``, the category is
the value, or the category's CTR is above the border.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.errors import UnsupportedModel
from knothole.trees.readers.catboost.forest import Forest
from knothole.trees.recipe import MEDIAN, Recipe

# Kinds of CTR: counts over classes of the target, or a mean of the target, or counts of rows.
CLASSES = ("Borders", "Buckets")
MEANS = ("BinarizedTargetMeanValue", "FloatTargetMeanValue")
COUNTERS = ("Counter", "FeatureFreq")
# Losses that need no name in a recipe: squared and absolute errors, quantiles, log losses.
TOLD_OTHERWISE = (
    *("RMSE", "MultiRMSE", "MultiRMSEWithMissingValues", "MAE", "Quantile", "MultiQuantile"),
    *("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"),
    *("MultiLogloss", "MultiCrossEntropy"),
)


@dataclass(frozen=True, eq=False)
class NumericFeature:
    """A numeric column: its position and name, the borders in use, and the side of NaN."""

    column: int
    name: str
    borders: NDArray[np.float32]
    nan_right: bool


@dataclass(frozen=True)
class CategoricalFeature:
    """A categorical column: its position among all columns and among the categorical ones."""

    column: int
    index: int
    name: str


@dataclass(frozen=True)
class CtrKey:
    """Which statistic of the target: its kind, the categorical features it is over, and whether
    numeric or one-hot splits take part.
    """

    kind: str
    features: tuple[int, ...]
    plain: bool = True
    classifier: int = 0


@dataclass(frozen=True, eq=False)
class CtrFeature:
    """A CTR, from the counts of its table to a number, and the borders that number is split at."""

    key: CtrKey
    borders: NDArray[np.float32]
    target_border: int
    prior: float
    prior_weight: float
    shift: float
    scale: float


@dataclass(frozen=True, eq=False)
class CtrTable:
    """Counts (categories, numbers) of every category of the training data, by hashed category."""

    keys: NDArray[np.uint64]
    counts: NDArray[Any]
    denominator: int


@dataclass(frozen=True, eq=False)
class Parts:
    """A model as its file has it."""

    numeric: list[NumericFeature]
    categorical: list[CategoricalFeature]
    one_hot: list[tuple[int, NDArray[np.uint32]]]  # hashes of a feature that splits single out
    ctrs: list[CtrFeature]
    tables: dict[CtrKey, CtrTable]
    trees: Forest
    value: Floats  # (leaves, outputs)
    scale: float
    bias: Floats
    info: dict[str, Any]
    level_names: dict[int, str] = field(default_factory=dict)

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
        loss = "" if self.loss in TOLD_OTHERWISE else self.loss
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
        """A part of the model's metadata: JSON in a string (cbm), or an object (JSON)."""
        text = self.info.get(key, {})
        options = json.loads(text) if isinstance(text, str) and text else text
        return options if isinstance(options, dict) else {}


def refuse_text_and_embeddings(has_text: bool, has_embeddings: bool) -> None:
    """Features made of texts or embeddings are not functions of single columns' values."""
    if has_text or has_embeddings:
        kind = "text" if has_text else "embedding"
        raise UnsupportedModel(
            f"catboost: the model has {kind} features, which cannot be read as splits on columns. "
            f"Train it without them, or on numeric features computed from them beforehand."
        )
