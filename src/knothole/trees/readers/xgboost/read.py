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
from knothole.errors import NotFitted, ReaderMismatch, UnsupportedModel
from knothole.trees.ensemble import Ensemble
from knothole.trees.links import Blend, Link
from knothole.trees.readers.cuts import cut_less_float32
from knothole.trees.readers.registry import Reading, Replay, not_fitted
from knothole.trees.readers.xgboost import ubjson
from knothole.trees.readers.xgboost.columns import columns_of
from knothole.trees.readers.xgboost.forest import floats, forest, strict
from knothole.trees.recipe import MEDIAN, Recipe

# A model trained with a function of the user's carries the objective whose link its own predict
# applies, so that such models need no entry. ``binary:hinge`` has a step for a link.
LINKS = {
    **dict.fromkeys(["reg:squarederror", "reg:squaredlogerror", "reg:absoluteerror"], "identity"),
    **dict.fromkeys(["reg:pseudohubererror", "reg:quantileerror"], "identity"),
    **dict.fromkeys(["rank:pairwise", "rank:ndcg", "rank:map", "binary:logitraw"], "identity"),
    **dict.fromkeys(["reg:logistic", "binary:logistic"], "sigmoid"),
    **dict.fromkeys(["reg:gamma", "reg:tweedie", "count:poisson"], "exp"),
    **dict.fromkeys(["survival:aft", "survival:cox"], "exp"),
    **dict.fromkeys(["multi:softmax", "multi:softprob"], "softmax"),
}
# Objectives without a log loss that need no name in a recipe.
TOLD_OTHERWISE = ("reg:squarederror", "reg:absoluteerror")


@dataclass(frozen=True)
class Use:
    """How the object around the trees uses them.

    Its predict takes so many boosting ``rounds`` (None: all), a number ``missing`` stands for
    missing besides NaN, a ``classifier`` has classes, and it was trained at a ``learning_rate``.
    """

    rounds: int | None = None
    missing: float = np.nan
    classifier: bool = False
    learning_rate: float | None = None


def read(model: Any) -> Reading:
    """Read a live Booster or wrapper."""
    booster, use = unwrapped(model)
    ensemble = ensemble_of(ubjson.parse(bytes(_saved(booster))), use)
    return Reading(ensemble, lambda X: _replay(booster, use, ensemble, X))


def _saved(booster: Any) -> bytearray:
    from xgboost.core import XGBoostError

    try:
        raw: bytearray = booster.save_raw("ubj")
    except XGBoostError as error:  # it cannot save a model without columns
        raise NotFitted("this xgboost.Booster has not been trained; train it first.") from error
    return raw


def stored_trees(document: Any) -> Any:
    """The list of trees in a document."""
    model, _ = _trees_and_weights(strict.field(document, "learner", "gradient_booster"))
    return strict.field(model, "trees")


def unwrapped(model: Any) -> tuple[Any, Use]:
    """The Booster of a fitted wrapper, or that ``model`` is, and how it is used."""
    import xgboost
    from sklearn.exceptions import NotFittedError

    if not isinstance(model, xgboost.XGBModel):
        return model, Use()
    try:
        booster = model.get_booster()
    except NotFittedError as error:
        raise not_fitted(model) from error
    best = getattr(model, "best_iteration", None)
    return booster, Use(
        rounds=None if best is None else int(best) + 1,
        missing=np.nan if model.missing is None else float(model.missing),
        classifier=isinstance(model, xgboost.XGBClassifier),
        learning_rate=model.learning_rate,
    )


def ensemble_of(document: Any, use: Use) -> Ensemble:
    """The ensemble in a document, as the object around its trees uses them."""
    learner = strict.field(document, "learner")
    model, weights = _trees_and_weights(strict.field(learner, "gradient_booster"))
    outputs = count_of(learner, "num_class", "num_target")
    link = _link(learner)
    trees = strict.field(model, "trees")
    n_trees = _trees_used(model, use.rounds)
    if n_trees == 0:
        raise NotFitted("this XGBoost model has no trees; train it for at least one round.")
    n_columns = count_of(learner, "num_feature")
    found = forest(trees[:n_trees], n_columns, outputs)
    columns = columns_of(document, model, found, n_columns)
    return Ensemble.build(
        found.nodes(
            np.array([len(column.levels) for column in columns], dtype=np.int64),
            strict.integers(strict.field(model, "tree_info"), "tree_info")[:n_trees],
            None if weights is None else weights[:n_trees].astype(np.float64),
        ),
        columns=columns,
        base=_base(learner, link, outputs),
        library=strict.library,
        precision="float32",
        link=link,
        classes=_classes(learner, outputs) if use.classifier else None,
        sentinel=np.tile(_rounds_to(use.missing), (n_columns, 1)),
    ).trained_by(_recipe(learner, use.learning_rate))


def _trees_and_weights(booster: Any) -> tuple[Any, NDArray[np.float32] | None]:
    """The object with the trees, and DART's weights of them."""
    name = strict.field(booster, "name")
    if name not in ("gbtree", "dart"):
        raise UnsupportedModel(
            f"XGBoost's booster {name!r} has no trees to read; knothole reads 'gbtree' and "
            f"'dart'. Train with one of these, or use a linear model's own coefficients."
        )
    # Up to 3.3 DART wraps a gbtree and keeps the weights beside it, later the model has them.
    model = strict.field(booster.get("gbtree", booster), "model")
    weights = booster.get("weight_drop", model.get("weight_drop"))
    if weights is None:
        strict.require(name != "dart", "a DART model without the weights of its trees")
        return model, None
    strict.count("weights of trees", len(weights), len(strict.field(model, "trees")))
    return model, floats(weights, "weight_drop")


def count_of(learner: Any, *keys: str) -> int:
    """The largest of some counts, at least 1."""
    params = strict.field(learner, "learner_model_param")
    return max(1, *(int(params.get(key, 1)) for key in keys))


def _link(learner: Any) -> Link:
    objective = strict.field(learner, "objective", "name")
    if objective not in LINKS:
        raise UnsupportedModel(
            f"XGBoost's objective {objective!r}: knothole does not know the way from its margin to "
            f"its prediction. It knows {', '.join(LINKS)}."
        )
    return Link(LINKS[objective])


def _recipe(learner: Any, learning_rate: float | None) -> Recipe:
    objective = strict.field(learner, "objective")
    name = objective["name"]
    levels, loss, delta = MEDIAN if name == "reg:absoluteerror" else (), "", None
    if name == "reg:quantileerror":
        levels = json.loads(strict.field(objective, "quantile_loss_param", "quantile_alpha"))
    elif name == "reg:pseudohubererror":
        loss, delta = "pseudo-Huber", objective.get("pseudo_huber_param", {}).get("huber_slope")
    elif LINKS[name] not in ("sigmoid", "softmax") and name not in TOLD_OTHERWISE:
        loss = name
    return Recipe.of(levels, learning_rate, loss, delta)


def _base(learner: Any, link: Link, outputs: int) -> Floats:
    """Margin before any tree: ``base_score`` is a response, a margin only for softmax.

    In XGBoost's arithmetic: with few trees, the rounding of a logit is what one would see.
    """
    stored = json.loads(strict.field(learner, "learner_model_param", "base_score"))
    score = floats(stored if isinstance(stored, list) else [stored], "base_score")
    strict.count("base scores", len(score), 1, outputs)
    with np.errstate(divide="ignore", invalid="ignore"):
        if link.name == "sigmoid":
            score = -np.log(1 / score - 1)
        elif link.name == "exp":
            score = np.log(score)
    return np.broadcast_to(score.astype(np.float64), outputs)


def _trees_used(model: Any, rounds: int | None) -> int:
    """How many trees the first ``rounds`` boosting rounds have."""
    n_trees = len(strict.field(model, "trees"))
    strict.count("trees", n_trees, int(strict.field(model, "gbtree_model_param", "num_trees")))
    if rounds is None:
        return n_trees
    first = strict.integers(strict.field(model, "iteration_indptr"), "iteration_indptr")
    there = 1 <= rounds < len(first) and 0 < first[rounds] <= n_trees
    strict.require(there, f"it predicts with {rounds} rounds, but has trees of {len(first) - 1}")
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


def _check_link(link: Link | Blend, margin: Floats, response: NDArray[np.float32]) -> None:
    """A version of XGBoost may put more between margin and prediction than we know of."""
    if response.shape != margin.shape:  # multi:softmax predicts the class itself
        return
    with np.errstate(over="ignore"):
        expected = link(margin).astype(np.float32)
    strange = np.flatnonzero(~np.isclose(expected, response, rtol=1e-4, atol=1e-6).all(axis=1))
    if len(strange):
        row = int(strange[0])
        raise ReaderMismatch(
            f"XGBoost: its prediction for the margin {margin[row].tolist()} is "
            f"{response[row].tolist()}, which is not the link {link.name!r}. This version does "
            f"more than knothole knows of (3.4 sorts the quantiles of one model); the model was "
            f"not read."
        )
