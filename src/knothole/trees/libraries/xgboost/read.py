"""XGBoost: Booster and scikit-learn wrappers, JSON and UBJ files.

A live model is read from what it saves (``save_raw("ubj")``), so that both ways share one path.
What surrounds the trees decides how they are used: a Booster predicts with all of them, a wrapper
with those up to its ``best_iteration``, and a wrapper has a value that stands for missing. A file
that a wrapper saved is read as that wrapper would load it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.errors import DamagedFile, NotFitted, ReaderMismatch, UnsupportedModel
from knothole.trees.ensemble import Ensemble
from knothole.trees.libraries.cuts import cut_less_float32
from knothole.trees.libraries.registry import Reading, Replay
from knothole.trees.libraries.xgboost import ubjson
from knothole.trees.libraries.xgboost.columns import columns_of
from knothole.trees.libraries.xgboost.forest import field, floats, forest, integers
from knothole.trees.links import Link

LIBRARY = "XGBoost"
# A model trained with a function of the user's carries the objective whose link its own predict
# applies, so that such models need no entry. ``binary:hinge`` has a step for a link.
LINKS = {
    "reg:squarederror": "identity",
    "reg:squaredlogerror": "identity",
    "reg:absoluteerror": "identity",
    "reg:pseudohubererror": "identity",
    "reg:quantileerror": "identity",
    "reg:logistic": "sigmoid",
    "reg:gamma": "exp",
    "reg:tweedie": "exp",
    "binary:logistic": "sigmoid",
    "binary:logitraw": "identity",
    "count:poisson": "exp",
    "multi:softmax": "softmax",
    "multi:softprob": "softmax",
    "rank:pairwise": "identity",
    "rank:ndcg": "identity",
    "rank:map": "identity",
    "survival:aft": "exp",
    "survival:cox": "exp",
}


@dataclass(frozen=True)
class Use:
    """How the object around the trees uses them.

    Attributes
    ----------
    rounds : int or None
        Boosting rounds that its predict takes; None for all.
    missing : float
        The number that stands for missing, besides NaN.
    classifier : bool
        Whether it has classes.
    """

    rounds: int | None = None
    missing: float = np.nan
    classifier: bool = False


def read(model: Any) -> Reading:
    """Read a live Booster or wrapper."""
    booster, use = _unwrapped(model)
    ensemble = ensemble_of(ubjson.parse(bytes(_saved(booster))), use)
    return Reading(ensemble, lambda X: _replay(booster, use, ensemble, X))


def _saved(booster: Any) -> bytearray:
    from xgboost.core import XGBoostError

    try:
        raw: bytearray = booster.save_raw("ubj")
    except XGBoostError as error:  # it cannot save a model without columns
        raise NotFitted("this xgboost.Booster has not been trained; train it first.") from error
    return raw


def unwrapped(model: Any) -> Any:
    """The Booster of a fitted wrapper, or the Booster that ``model`` is."""
    return _unwrapped(model)[0]


def stored_trees(document: Any) -> Any:
    """The list of trees in a document."""
    return field(_trees_and_weights(field(document, "learner", "gradient_booster"))[0], "trees")


def _unwrapped(model: Any) -> tuple[Any, Use]:
    import xgboost
    from sklearn.exceptions import NotFittedError

    if not isinstance(model, xgboost.XGBModel):
        return model, Use()
    try:
        booster = model.get_booster()
    except NotFittedError as error:
        name = type(model).__name__
        raise NotFitted(f"this {name} has not been fitted; call its fit first.") from error
    best = getattr(model, "best_iteration", None)
    return booster, Use(
        rounds=None if best is None else int(best) + 1,
        missing=np.nan if model.missing is None else float(model.missing),
        classifier=isinstance(model, xgboost.XGBClassifier),
    )


def ensemble_of(document: Any, use: Use) -> Ensemble:
    """The ensemble in a document, as the object around its trees uses them."""
    learner = field(document, "learner")
    model, weights = _trees_and_weights(field(learner, "gradient_booster"))
    outputs = count_of(learner, "num_class", "num_target")
    link = _link(learner)
    trees = field(model, "trees")
    n_trees = _trees_used(model, use.rounds)
    if n_trees == 0:
        raise NotFitted("this XGBoost model has no trees; train it for at least one round.")
    n_columns = count_of(learner, "num_feature")
    found = forest(trees[:n_trees], n_columns, outputs)
    columns = columns_of(document, model, found, n_columns)
    sentinel = np.tile(_rounds_to(use.missing), (n_columns, 1))
    return Ensemble.build(
        found.nodes(np.array([len(column.levels) for column in columns], dtype=np.int64)),
        columns=columns,
        base=_base(learner, link, outputs),
        library=LIBRARY,
        precision="float32",
        tree_output=integers(field(model, "tree_info"), "tree_info")[:n_trees],
        tree_weight=None if weights is None else weights[:n_trees].astype(np.float64),
        link=link,
        classes=_classes(learner, outputs) if use.classifier else None,
        sentinel=sentinel,
    )


def _trees_and_weights(booster: Any) -> tuple[Any, NDArray[np.float32] | None]:
    """The object with the trees, and DART's weights of them."""
    name = field(booster, "name")
    if name not in ("gbtree", "dart"):
        raise UnsupportedModel(
            f"XGBoost's booster {name!r} has no trees to read; knothole reads 'gbtree' and "
            f"'dart'. Train with one of these, or use a linear model's own coefficients."
        )
    # Up to 3.3 DART wraps a gbtree and keeps the weights beside it, later the model has them.
    model = field(booster, "gbtree", "model") if "gbtree" in booster else field(booster, "model")
    weights = booster.get("weight_drop", model.get("weight_drop"))
    if weights is None:
        if name == "dart":
            raise DamagedFile("XGBoost: a DART model without the weights of its trees.")
        return model, None
    if len(weights) != len(field(model, "trees")):
        raise DamagedFile(
            f"XGBoost: {len(model['trees'])} trees, but {len(weights)} weights of trees."
        )
    return model, floats(weights, "weight_drop")


def count_of(learner: Any, *keys: str) -> int:
    """The largest of some counts, at least 1."""
    params = field(learner, "learner_model_param")
    return max(1, *(int(params.get(key, 1)) for key in keys))


def _link(learner: Any) -> Link:
    objective = field(learner, "objective", "name")
    if objective not in LINKS:
        raise UnsupportedModel(
            f"XGBoost's objective {objective!r}: knothole does not know the way from its margin to "
            f"its prediction. It knows {', '.join(LINKS)}."
        )
    return Link(LINKS[objective])


def _base(learner: Any, link: Link, outputs: int) -> Floats:
    """Margin before any tree: ``base_score`` is a response, a margin only for softmax.

    In XGBoost's arithmetic: with few trees, the rounding of a logit is what one would see.
    """
    stored = json.loads(field(learner, "learner_model_param", "base_score"))
    score = floats(stored if isinstance(stored, list) else [stored], "base_score")
    if len(score) not in (1, outputs):
        raise DamagedFile(f"XGBoost: {outputs} outputs, but {len(score)} base scores.")
    with np.errstate(divide="ignore", invalid="ignore"):
        if link.name == "sigmoid":
            score = -np.log(1 / score - 1)
        elif link.name == "exp":
            score = np.log(score)
    return np.broadcast_to(score.astype(np.float64), outputs)


def _trees_used(model: Any, rounds: int | None) -> int:
    """How many trees the first ``rounds`` boosting rounds have."""
    n_trees = len(field(model, "trees"))
    if int(field(model, "gbtree_model_param", "num_trees")) != n_trees:
        raise DamagedFile(f"XGBoost: {n_trees} trees are not as many as the file says it has.")
    if rounds is None:
        return n_trees
    first = integers(field(model, "iteration_indptr"), "iteration_indptr")
    if not (1 <= rounds < len(first) and 0 < first[rounds] <= n_trees):
        raise DamagedFile(
            f"XGBoost: predicts with {rounds} rounds, but has trees of {len(first) - 1}."
        )
    return int(first[rounds])


def _classes(learner: Any, outputs: int) -> tuple[Hashable, ...] | None:
    """Labels: XGBoost has classes 0 to n - 1; None where outputs are labels of their own."""
    if outputs == 1:
        return (0, 1)
    return tuple(range(outputs)) if count_of(learner, "num_class") > 1 else None


def _rounds_to(missing: float) -> tuple[float, float]:
    """First and last float64 that XGBoost takes for ``missing``: it compares in float32."""
    with np.errstate(over="ignore"):
        single = np.float32(missing)
    if np.isnan(single):
        return np.nan, np.nan
    above = np.nextafter(single, np.float32(np.inf))
    last = np.inf if np.isposinf(single) else np.nextafter(cut_less_float32(above), -np.inf)
    return float(cut_less_float32(single)), float(last)


def _replay(booster: Any, use: Use, ensemble: Ensemble, X: Floats) -> Replay:
    import xgboost

    data = xgboost.DMatrix(
        X,
        missing=use.missing,
        feature_names=booster.feature_names,
        feature_types=booster.feature_types,
        enable_categorical=True,
        nthread=1,
    )
    rounds = (0, use.rounds or 0)
    leaves = booster.predict(data, pred_leaf=True, iteration_range=rounds)
    margin = booster.predict(data, output_margin=True, iteration_range=rounds)
    margin = margin.reshape(len(X), -1).astype(np.float64)
    response = booster.predict(data, iteration_range=rounds).reshape(len(X), -1)
    _check_link(ensemble.link, margin, response)
    return Replay(margin, leaves.reshape(len(X), -1).astype(np.int64))


def _check_link(link: Link, margin: Floats, response: NDArray[np.float32]) -> None:
    """A version of XGBoost may put more between margin and prediction than we know of."""
    if response.shape != margin.shape:  # multi:softmax predicts the class itself
        return
    with np.errstate(over="ignore"):
        expected = link(margin).astype(np.float32)
    wrong = ~np.isclose(expected, response, rtol=1e-4, atol=1e-6).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ReaderMismatch(
            f"XGBoost: its prediction for the margin {margin[row].tolist()} is "
            f"{response[row].tolist()}, which is not the link {link.name!r}. This version does "
            f"more than knothole knows of (3.4 sorts the quantiles of one model); the model was "
            f"not read."
        )
