"""scikit-learn's trees, forests, bagged trees and GradientBoosting, from the live object.

All of them keep ``sklearn.tree`` trees, which go left iff float32(x) <= threshold, a float64.
Forests and bagged trees average: leaf values are responses or class probabilities, every tree
weighs ``1 / trees``, and the link is the identity. GradientBoosting adds: leaf values are steps of
the margin, and every tree weighs the learning rate.

Several outputs stand side by side in the margin. For a classifier with several outputs
``predict_proba`` gives a list of tables: here their columns are concatenated, and
``Ensemble.classes`` holds one tuple of labels for each output, in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import parallel_config
from numpy.typing import NDArray
from sklearn import ensemble as models
from sklearn.base import is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.tree import BaseDecisionTree

from knothole.arrays import Floats
from knothole.compiled.bits import starts
from knothole.errors import UnsupportedModel
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.links import IDENTITY
from knothole.trees.readers.cuts import cut_less_equal_float32
from knothole.trees.readers.registry import Reading, Replay
from knothole.trees.readers.sklearn import shared

Positions = NDArray[np.intp]

FORESTS = (
    *(models.RandomForestClassifier, models.RandomForestRegressor),
    *(models.ExtraTreesClassifier, models.ExtraTreesRegressor),
)
BAGS = (models.BaggingClassifier, models.BaggingRegressor)
BOOSTED = (models.GradientBoostingClassifier, models.GradientBoostingRegressor)


@dataclass(frozen=True)
class Member:
    """One tree of a model, and where its columns and values belong in the model.

    Attributes
    ----------
    tree : sklearn.tree._tree.Tree
        The arrays. Its values have shape (nodes, outputs, most classes of an output).
    columns : int array
        The model's column for each column of the tree.
    source, target : int arrays
        Entry ``source[i]`` of a node's flattened values is the tree's part in output
        ``target[i]`` of those it serves. Other entries are padding, other outputs get 0.
    """

    tree: Any
    columns: Positions
    source: Positions
    target: Positions

    @property
    def flat_value(self) -> Floats:
        """A view of the values, shape (nodes, entries); writing to it writes to the tree."""
        value: Floats = self.tree.value
        return value.reshape(len(value), -1)


def read(model: Any) -> Reading:
    """Read a fitted tree, forest, bag of trees or GradientBoosting model."""
    ensemble = _ensemble(model, members_of(model))
    return Reading(ensemble, lambda X: _replay(model, X), takes_nan=_takes_nan(model))


def members_of(model: Any) -> list[Member]:
    """The trees of a model, in the order of the ensemble; refuses models that have others."""
    if not isinstance(model, (BaseDecisionTree, *FORESTS, *BAGS, *BOOSTED)):
        raise UnsupportedModel(
            f"{type(model).__name__} does not predict by averaging or adding the leaf values of "
            f"its trees. Of scikit-learn, knothole reads DecisionTree, ExtraTree, RandomForest, "
            f"ExtraTrees, Bagging of trees, GradientBoosting and HistGradientBoosting, regressors "
            f"and classifiers."
        )
    shared.require_fitted(model)
    if isinstance(model, BaseDecisionTree):
        return [_member(model)]
    if isinstance(model, BAGS):
        return _bagged(model)
    return [_member(estimator) for estimator in np.ravel(model.estimators_)]


def _member(estimator: BaseDecisionTree) -> Member:
    if is_classifier(estimator):
        sizes = np.atleast_1d(estimator.n_classes_)
        source = np.flatnonzero(np.arange(sizes.max()) < sizes[:, None])
    else:
        source = np.arange(estimator.n_outputs_)
    columns = np.arange(estimator.n_features_in_)
    return Member(estimator.tree_, columns, source, np.arange(len(source)))


def _bagged(model: Any) -> list[Member]:
    members = []
    for estimator, columns in zip(model.estimators_, model.estimators_features_, strict=True):
        # A classifier's bag of regressors votes, a regressor's bag of classifiers averages labels:
        # neither averages leaf values.
        averages = is_classifier(estimator) == is_classifier(model)
        if not isinstance(estimator, BaseDecisionTree) or not averages:
            raise UnsupportedModel(
                f"{type(model).__name__} of {type(estimator).__name__}: knothole reads bags of "
                f"single trees of the same kind (DecisionTree or ExtraTree, classifiers in a "
                f"classifier and regressors in a regressor). Bag single trees instead."
            )
        member = replace(_member(estimator), columns=np.asarray(columns, dtype=np.intp))
        if is_classifier(model):
            # Trees are fitted on positions of labels, and a tree knows only those it has seen.
            member = replace(member, target=estimator.classes_.astype(np.intp))
        members.append(member)
    return members


def nodes_of(members: Sequence[Member], width: int) -> Nodes:
    """All nodes of all trees, one tree after the other, with values of ``width`` outputs."""
    trees = [member.tree for member in members]
    counts = np.array([tree.node_count for tree in trees])
    roots = starts(counts)
    shift = np.repeat(roots, counts)
    left = np.concatenate([tree.children_left for tree in trees])
    leaf = left < 0
    feature = [member.columns[np.maximum(member.tree.feature, 0)] for member in members]
    value = np.zeros((len(leaf), width))
    for root, count, member in zip(roots, counts, members, strict=True):
        value[root : root + count, member.target] = member.flat_value[:, member.source]
    threshold = np.concatenate([tree.threshold for tree in trees])
    return Nodes(
        roots=roots,
        feature=np.where(leaf, -1, np.concatenate(feature)),
        # Some versions leave NaN where only the missing are on one side. No number is at most NaN:
        # all of them go right, as they do from a cut at -inf.
        cut=np.where(np.isnan(threshold), -np.inf, cut_less_equal_float32(threshold)),
        left=left + shift,
        right=np.concatenate([tree.children_right for tree in trees]) + shift,
        missing_left=np.concatenate([tree.missing_go_to_left for tree in trees]),
        value=value,
        native_leaf=np.arange(len(leaf)) - shift,
    )


def _ensemble(model: Any, members: list[Member]) -> Ensemble:
    if isinstance(model, BOOSTED):
        _require_constant_start(model)
        n_iterations, n_outputs = model.estimators_.shape
        base = model._raw_predict_init(np.zeros((1, model.n_features_in_), dtype=np.float32))[0]
        weight, link = model.learning_rate, shared.link_of(model)
        output = np.tile(np.arange(n_outputs), n_iterations)
        nodes = replace(nodes_of(members, width=1), tree_output=output)
    else:
        n_outputs = np.sum(model.n_classes_) if is_classifier(model) else len(members[0].source)
        base, weight, link = np.zeros(n_outputs), 1 / len(members), IDENTITY
        nodes = nodes_of(members, n_outputs)
    return Ensemble.build(
        replace(nodes, tree_weight=np.full(len(members), weight)),
        columns=shared.columns_of(model),
        base=base,
        link=link,
        classes=shared.classes_of(model),
        library=shared.LIBRARY,
        precision="float64",
    ).trained_by(shared.recipe_of(model))


def _replay(model: Any, X: Floats) -> Replay:
    """The model's own margins and leaves; a bag has no ``apply``, but its trees do."""
    answer = _predict(model, X)
    margin = np.hstack(answer) if isinstance(answer, list) else answer
    if isinstance(model, BAGS):
        parts = zip(model.estimators_, model.estimators_features_, strict=True)
        leaves = np.column_stack([tree.apply(X[:, columns]) for tree, columns in parts])
    elif isinstance(model, BOOSTED):
        # Its trees were fitted without names, and ``apply`` hands rows straight to them; it
        # returns the numbers of leaves as floats.
        leaves = model.apply(X).astype(np.int64)
    else:
        with parallel_config("sequential"):
            leaves = model.apply(shared.as_fitted(model, X))
    return Replay(margin.reshape(len(X), -1), leaves.reshape(len(X), -1))


def _predict(model: Any, X: Floats) -> Any:
    """The model's own margin, or average, without starting processes for it."""
    rows = shared.as_fitted(model, X)
    with parallel_config("sequential"):
        if not is_classifier(model):
            return model.predict(rows)
        boosted = isinstance(model, BOOSTED)
        return model.decision_function(rows) if boosted else model.predict_proba(rows)


def _require_constant_start(model: Any) -> None:
    """Refuse an ``init`` whose answer depends on the row: that part of the model has no trees."""
    init = model.init_
    constant = (
        init == "zero"
        or isinstance(init, DummyRegressor)
        or (isinstance(init, DummyClassifier) and init.strategy != "stratified")
    )
    if not constant:
        raise UnsupportedModel(
            f"{type(model).__name__} with init={init!r}: boosting starts from the answers of "
            f"another model, which knothole cannot read as trees. Fit with init=None, init='zero' "
            f"or a dummy estimator that gives a constant."
        )


def _takes_nan(model: Any) -> bool:
    """Whether the model answers rows with NaN: it depends on version, criterion and constraints."""
    try:
        _predict(model, np.full((1, model.n_features_in_), np.nan))
    except ValueError:
        return False
    return True
