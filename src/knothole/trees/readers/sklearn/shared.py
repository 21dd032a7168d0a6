"""What both readers of scikit-learn models need: columns, labels, links, and tables to replay."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from knothole.columns.columns import Column, Columns, Kind
from knothole.columns.read import made_up_names
from knothole.errors import UnsupportedModel
from knothole.trees.links import Link
from knothole.trees.readers.registry import not_fitted
from knothole.trees.recipe import MEDIAN, Recipe

LIBRARY = "scikit-learn"
# A loss of scikit-learn names the way from raw predictions to the response by one of these.
LINKS = {
    "IdentityLink": Link("identity"),
    "LogLink": Link("exp"),
    "LogitLink": Link("sigmoid"),
    "HalfLogitLink": Link("sigmoid", scale=2.0),
    "MultinomialLogit": Link("softmax"),
}


def require_fitted(model: Any) -> None:
    """Refuse a model that has not been fitted."""
    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise not_fitted(model) from error


def link_of(model: Any) -> Link:
    """The link of a boosted model, by the name its loss gives it."""
    name = type(model._loss.link).__name__
    if name not in LINKS:
        raise UnsupportedModel(
            f"{type(model).__name__} with loss {model.loss!r}: its link {name} is not one "
            f"knothole knows ({', '.join(LINKS)}). Use one of the losses that scikit-learn names."
        )
    return LINKS[name]


def recipe_of(model: Any) -> Recipe:
    """Quantiles of the loss, or of the criterion of trees, and the rate of boosting.

    The delta of a Huber loss is that of the last tree: scikit-learn chooses one for each.
    """
    trees = model if hasattr(model, "criterion") else getattr(model, "estimator_", None)  # of a bag
    loss = getattr(model, "loss", None) or getattr(trees, "criterion", None)
    levels: tuple[Any, ...] = MEDIAN if loss == "absolute_error" else ()
    if loss == "quantile":
        levels = (model.alpha if hasattr(model, "alpha") else model.quantile,)
    rate = getattr(model, "learning_rate", None)
    if loss == "huber":
        return Recipe.of(levels, rate, "Huber", model._loss.closs.delta)
    other = hasattr(model, "loss") and loss in ("poisson", "gamma")  # leaves of trees are means
    return Recipe.of(levels, rate, str(loss) if other else "")


def columns_of(model: Any, levels: Mapping[int, tuple[Hashable, ...]] | None = None) -> Columns:
    """The columns a model was fitted on, with the ``levels`` of categorical ones by position."""
    names = getattr(model, "feature_names_in_", None)
    levels = levels or {}
    made_up = made_up_names(model.n_features_in_)
    columns = [
        Column(str(name), Kind.CATEGORICAL, levels[i]) if i in levels else Column(str(name))
        for i, name in enumerate(made_up if names is None else names)
    ]
    return Columns(tuple(columns), named=names is not None)


def classes_of(model: Any) -> tuple[Hashable, ...] | None:
    """Labels of a classifier as plain values, a tuple of them for each of several targets."""
    if not is_classifier(model):
        return None
    if isinstance(model.classes_, list):
        return tuple(tuple(labels.tolist()) for labels in model.classes_)
    return tuple(model.classes_.tolist())


def as_fitted(model: Any, table: NDArray[Any]) -> Any:
    """A table in the form the model was fitted on: with names where it knows names.

    scikit-learn warns when a model that was fitted with names predicts without them.
    """
    if not hasattr(model, "feature_names_in_"):
        return table
    import pandas as pd

    return pd.DataFrame(table, columns=model.feature_names_in_)
