"""scikit-learn's tree models, from the live object.

Trees, forests, bagged trees and GradientBoosting hold ``sklearn.tree`` trees, which go left iff
float32(x) <= threshold (a float64). Forests and bagged trees average: leaf values are responses or
class probabilities, every tree weighs ``1 / trees``, and the link is the identity. GradientBoosting
adds: leaf values are steps of the margin, and every tree weighs the learning rate. Several outputs
are concatenated in the margin. A classifier with several targets returns a list of tables from
``predict_proba``: here their columns are concatenated, and ``Ensemble.classes`` has one tuple of
labels for each target, in that order.

IsolationForest averages too. The margin is the mean depth of a row's leaves, including the depth
that splitting their training rows further would add, divided by its expected value;
``score_samples`` returns -2 ** -margin.

HistGradientBoosting goes left iff x <= threshold in float64. The model first encodes categorical
columns by an ``OrdinalEncoder`` and moves them to the front; here, columns have the order and the
levels of the user's own table. An unseen category is encoded as NaN, so it goes where NaN goes.

New leaf values are exact: scikit-learn stores them in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import parallel_config
from numpy.typing import NDArray
from sklearn import ensemble as models
from sklearn.base import is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.tree import BaseDecisionTree

from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.bits import starts
from knothole.columns.columns import Column, Columns, Kind
from knothole.columns.read import made_up_names
from knothole.errors import InvalidInput, UnsupportedModel
from knothole.trees.ensemble import MEDIAN, Ensemble, Nodes, Recipe
from knothole.trees.libraries import ModelReading, Replay, require_fitted
from knothole.trees.links import IDENTITY, Link
from knothole.trees.thresholds import exact_less_equal, exact_less_equal_float32

Positions = NDArray[np.intp]

LIBRARY = "scikit-learn"
WAY_OUT = "Fit the model again."
# Links by scikit-learn's name of the function from raw predictions to the response.
LINKS = {
    "IdentityLink": Link("identity"),
    "LogLink": Link("exp"),
    "LogitLink": Link("sigmoid"),
    "HalfLogitLink": Link("sigmoid", scale=2.0),
    "MultinomialLogit": Link("softmax"),
}
FORESTS = (
    *(models.RandomForestClassifier, models.RandomForestRegressor),
    *(models.ExtraTreesClassifier, models.ExtraTreesRegressor),
)
BAGS = (models.BaggingClassifier, models.BaggingRegressor, models.IsolationForest)
BOOSTED = (models.GradientBoostingClassifier, models.GradientBoostingRegressor)
HIST = (models.HistGradientBoostingClassifier, models.HistGradientBoostingRegressor)
# HistGradientBoosting stores a set of categories as 256 bits.
WORDS = 4


def read(model: Any) -> ModelReading:
    """Read a fitted tree, forest, bag of trees, isolation forest, or gradient boosting."""
    if isinstance(model, HIST):
        return _read_hist(model)
    ensemble = _ensemble(model, members_of(model))
    return ModelReading(ensemble, lambda X: _replay(model, X), takes_nan=answers_nan(model))


def write(model: Any, ensemble: Ensemble) -> Any:
    """A copy of ``model`` whose leaves hold the values of ``ensemble``.

    A classifier's values are written unchanged: scikit-learn does not make them sum to one.
    """
    if isinstance(model, models.IsolationForest):
        raise InvalidInput(
            "to_native: the leaves of an IsolationForest are depths, which knothole does not "
            "change; use the model itself."
        )
    written = copy.deepcopy(model)
    is_hist = isinstance(model, HIST)
    trees = predictors_of(written) if is_hist else members_of(written)
    for t, tree in enumerate(trees):
        mine = slice(*ensemble.leaf_start[t : t + 2])
        leaves, value = ensemble.native_leaf[mine], ensemble.value[mine]
        if is_hist:
            tree.nodes["value"][leaves] = value[:, 0]
        else:
            _put(tree, leaves, value, t)
    return written


def _put(member: StoredTree, leaves: Integers, value: Floats, tree: int) -> None:
    # A bagged tree that never saw a class has no entry for its probability.
    unknown = np.setdiff1d(np.arange(value.shape[1]), member.target)
    if value[:, unknown].any():
        raise InvalidInput(
            f"value: tree {tree} was bagged without any row of class {unknown.tolist()} (by "
            f"position), so its leaves can only hold 0 there. Set those values to 0, or fit the "
            f"bag with max_samples large enough that every tree sees every class."
        )
    # Inner nodes keep their values: no prediction uses them.
    member.flat_value[np.ix_(leaves, member.source)] = value[:, member.target]


# ---- columns, labels, links, and tables to replay ------------------------------------------------


def link_of(model: Any) -> Link:
    """The link of a boosted model, by the name that its loss has for it."""
    name = type(model._loss.link).__name__
    if name not in LINKS:
        raise UnsupportedModel(
            f"{type(model).__name__} with loss {model.loss!r}: its link {name} is not one "
            f"knothole knows ({', '.join(LINKS)}). Use one of the losses that scikit-learn names."
        )
    return LINKS[name]


def recipe_of(model: Any) -> Recipe:
    """Quantiles of the loss (or of the trees' criterion) and the learning rate.

    scikit-learn chooses the delta of a Huber loss anew for each tree; this is the last tree's.
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
    """Labels of a classifier as plain Python values; a tuple of tuples for several targets."""
    if not is_classifier(model):
        return None
    if isinstance(model.classes_, list):
        return tuple(tuple(labels.tolist()) for labels in model.classes_)
    return tuple(model.classes_.tolist())


def as_fitted(model: Any, table: NDArray[Any]) -> Any:
    """A table in the form that the model was fitted on: with column names if it knows them.

    scikit-learn warns when a model fitted with names predicts without them.
    """
    if not hasattr(model, "feature_names_in_"):
        return table
    import pandas as pd

    return pd.DataFrame(table, columns=model.feature_names_in_)


# ---- trees, forests, bags, GradientBoosting ------------------------------------------------------


@dataclass(frozen=True)
class StoredTree:
    """One tree of a model, and which of the model's columns and outputs it has.

    Attributes
    ----------
    tree : sklearn.tree._tree.Tree
        The arrays. Its values have shape (nodes, outputs, largest number of classes).
    columns : int array
        The model's column for each column of the tree.
    source, target : int arrays
        Entry ``source[i]`` of a node's flattened values is the tree's value for output
        ``target[i]``. Other entries are padding; the tree adds 0 to other outputs.
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


def members_of(model: Any) -> list[StoredTree]:
    """The trees of a model in the ensemble's order; models made of other things are refused."""
    if not isinstance(model, (BaseDecisionTree, *FORESTS, *BAGS, *BOOSTED)):
        raise UnsupportedModel(
            f"{type(model).__name__} does not predict by averaging or adding the leaf values of "
            f"its trees. Of scikit-learn, knothole reads DecisionTree, ExtraTree, RandomForest, "
            f"ExtraTrees, Bagging of trees, GradientBoosting and HistGradientBoosting, regressors "
            f"and classifiers, and IsolationForest."
        )
    require_fitted(model)
    if isinstance(model, BaseDecisionTree):
        return [_member(model)]
    return _bagged(model) if isinstance(model, BAGS) else members_of_forest(model)


def members_of_forest(model: Any) -> list[StoredTree]:
    """The trees of a forest, including forests of other libraries made of scikit-learn's trees."""
    return [_member(estimator) for estimator in np.ravel(model.estimators_)]


def _member(estimator: BaseDecisionTree) -> StoredTree:
    if is_classifier(estimator):
        sizes = np.atleast_1d(estimator.n_classes_)
        source = np.flatnonzero(np.arange(sizes.max()) < sizes[:, None])
    else:
        source = np.arange(estimator.n_outputs_)
    columns = np.arange(estimator.n_features_in_)
    return StoredTree(estimator.tree_, columns, source, np.arange(len(source)))


def _bagged(model: Any) -> list[StoredTree]:
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
            # Trees are fitted on positions of labels, and each knows only the labels it has seen.
            member = replace(member, target=estimator.classes_.astype(np.intp))
        members.append(member)
    return members


def _nodes(members: Sequence[StoredTree], width: int) -> Nodes:
    """All nodes, one tree after the other, with values of ``width`` outputs."""
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
        # Some versions store a NaN threshold where only missing values go one way. No number is <=
        # NaN, so all numbers go right, as at a threshold of -inf.
        threshold=np.where(np.isnan(threshold), -np.inf, exact_less_equal_float32(threshold)),
        left=left + shift,
        right=np.concatenate([tree.children_right for tree in trees]) + shift,
        missing_left=np.concatenate([tree.missing_go_to_left for tree in trees]),
        value=value,
        native_leaf=np.arange(len(leaf)) - shift,
    )


def _isolation(model: Any, members: list[StoredTree]) -> Ensemble:
    """An isolation forest: leaves hold depths, as in ``IsolationForest._compute_score_samples``."""
    nodes = _nodes(members, width=1)
    depth = [
        member.tree.compute_node_depths() + average_path_length(member.tree.n_node_samples) - 1.0
        for member in members
    ]
    # Trees of a single row have no depth: such a model gives every row the same score.
    unit = len(members) * average_path_length(np.array([model._max_samples]))[0]
    weight = np.full(len(members), 1 / unit if unit else 0.0)
    nodes = replace(nodes, value=np.concatenate(depth)[:, None], tree_weight=weight)
    recipe = Recipe.of(task="anomaly", offset=model.offset_)
    return _built(nodes, model, 0.0 if unit else 1.0, Link("isolation")).trained_by(recipe)


def average_path_length(n: NDArray[Any]) -> Floats:
    """Mean depth of the leaves of an isolation tree of ``n`` rows (Liu et al. 2008, equation 1).

    Examples
    --------
    >>> average_path_length(np.array([1, 2, 256])).round(3).tolist()
    [0.0, 1.0, 10.245]
    """
    rest = np.maximum(n - 1.0, 1.0)
    mean = 2.0 * (np.log(rest) + np.euler_gamma) - 2.0 * rest / np.maximum(n, 1.0)
    return np.asarray(np.where(n <= 1, 0.0, np.where(n == 2, 1.0, mean)))


def _ensemble(model: Any, members: list[StoredTree]) -> Ensemble:
    if isinstance(model, models.IsolationForest):
        return _isolation(model, members)
    if isinstance(model, BOOSTED):
        _require_constant_start(model)
        n_iterations, n_outputs = model.estimators_.shape
        base = model._raw_predict_init(np.zeros((1, model.n_features_in_), dtype=np.float32))[0]
        weight, link = model.learning_rate, link_of(model)
        output = np.tile(np.arange(n_outputs), n_iterations)
        nodes = replace(_nodes(members, width=1), tree_output=output)
        nodes = replace(nodes, tree_weight=np.full(len(members), weight))
        return _built(nodes, model, base, link, LIBRARY).trained_by(recipe_of(model))
    return averaged(model, members).trained_by(recipe_of(model))


def averaged(model: Any, members: list[StoredTree], library: str = LIBRARY) -> Ensemble:
    """A forest or bag: the mean of its trees' values."""
    n_outputs = np.sum(model.n_classes_) if is_classifier(model) else len(members[0].source)
    weight = np.full(len(members), 1 / len(members))
    nodes = replace(_nodes(members, n_outputs), tree_weight=weight)
    return _built(nodes, model, np.zeros(n_outputs), IDENTITY, library)


def _built(nodes: Nodes, model: Any, base: Any, link: Link, library: str = LIBRARY) -> Ensemble:
    return Ensemble.build(
        nodes,
        columns=columns_of(model),
        base=base,
        link=link,
        classes=classes_of(model),
        library=library,
        precision="float64",
    )


def _replay(model: Any, X: Floats) -> Replay:
    """The model's own margins and leaves; a bag has no ``apply``, so its trees are asked."""
    answer = _predict(model, X)
    margin = np.hstack(answer) if isinstance(answer, list) else answer
    if isinstance(model, BAGS):
        parts = zip(model.estimators_, model.estimators_features_, strict=True)
        leaves = np.column_stack([tree.apply(X[:, columns]) for tree, columns in parts])
    elif isinstance(model, BOOSTED):
        # Its trees were fitted without names, and ``apply`` passes rows straight to them; it
        # returns leaf numbers as floats.
        leaves = model.apply(X).astype(np.int64)
    else:
        with parallel_config("sequential"):
            leaves = model.apply(as_fitted(model, X))
    return Replay(margin.reshape(len(X), -1), leaves.reshape(len(X), -1))


def _predict(model: Any, X: Floats) -> Any:
    """The model's own margin or average, in this process (predict could start others)."""
    rows = as_fitted(model, X)
    with parallel_config("sequential"):
        if isinstance(model, models.IsolationForest):
            return -np.log2(-model.score_samples(rows))
        if not is_classifier(model):
            return model.predict(rows)
        boosted = isinstance(model, BOOSTED)
        return model.decision_function(rows) if boosted else model.predict_proba(rows)


def _require_constant_start(model: Any) -> None:
    """Refuse an ``init`` estimator that depends on the row: it has no trees to read."""
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


def answers_nan(model: Any) -> bool:
    """Whether the model accepts NaN, which depends on version, criterion and constraints."""
    try:
        _predict(model, np.full((1, model.n_features_in_), np.nan))
    except ValueError:
        return False
    return True


# ---- HistGradientBoosting ------------------------------------------------------------------------


def _read_hist(model: Any) -> ModelReading:
    require_fitted(model)
    _require_two_classes(model)
    levels = levels_of(model)
    columns = columns_of(model, levels)
    predictors = predictors_of(model)
    output = np.tile(np.arange(model.n_trees_per_iteration_), len(model._predictors))
    ensemble = Ensemble.build(
        replace(_hist_nodes(predictors, column_order(model), columns), tree_output=output),
        columns=columns,
        base=model._baseline_prediction,
        link=link_of(model),
        classes=classes_of(model),
        library=LIBRARY,
        precision="float64",
    ).trained_by(recipe_of(model))

    def replay(X: Floats) -> Replay:
        rows = decoded(model, X, levels)
        return Replay(model._raw_predict(rows, n_threads=1), native_leaves(model, rows))

    return ModelReading(ensemble, replay)


def _require_two_classes(model: Any) -> None:
    """Refuse a classifier of one class: its margin belongs to a second class that is not there."""
    if is_classifier(model) and len(model.classes_) < 2:
        raise UnsupportedModel(
            f"{type(model).__name__} was fitted on the single class {model.classes_[0]!r}, so "
            f"that its trees say nothing. Fit it on rows of at least two classes."
        )


def predictors_of(model: Any) -> list[Any]:
    """The trees, iteration by iteration, and within one output by output."""
    return [predictor for iteration in model._predictors for predictor in iteration]


def levels_of(model: Any) -> dict[int, tuple[Hashable, ...]]:
    """The levels of each categorical column, in the order of their codes, by its position."""
    if model.is_categorical_ is None:
        return {}
    encoder = model._preprocessor.named_transformers_["encoder"]
    columns = np.flatnonzero(model.is_categorical_).tolist()
    levels = {}
    for column, categories in zip(columns, encoder.categories_, strict=True):
        known = categories.tolist()
        if known and known[-1] != known[-1]:  # NaN, if training had some, comes last
            known = known[:-1]
        if None in known:
            raise UnsupportedModel(
                f"{type(model).__name__}: column {column} has None among its categories, which "
                f"the model takes for a category and knothole for a missing value. Fit it with "
                f"NaN instead of None."
            )
        levels[column] = tuple(known)
    return levels


def column_order(model: Any) -> NDArray[np.intp]:
    """The user's column at each of the model's internal positions."""
    if model.is_categorical_ is None:
        return np.arange(model.n_features_in_)
    return np.argsort(~model.is_categorical_, kind="stable")


def _hist_nodes(predictors: list[Any], order: NDArray[np.intp], columns: Columns) -> Nodes:
    """All nodes, one tree after the other, over the user's columns."""
    counts = np.array([len(predictor.nodes) for predictor in predictors], dtype=np.int64)
    roots = starts(counts)
    shift = np.repeat(roots, counts)
    nodes = np.concatenate([predictor.nodes for predictor in predictors])
    leaf = nodes["is_leaf"].astype(np.bool_)
    feature = np.where(leaf, -1, order[np.where(leaf, 0, nodes["feature_idx"])])
    missing_left = nodes["missing_go_to_left"].astype(np.bool_)
    categorical = ~leaf & nodes["is_categorical"].astype(np.bool_)

    bitsets = [predictor.raw_left_cat_bitsets for predictor in predictors]
    first_bitset = starts(np.array([len(each) for each in bitsets]))
    bitset = nodes["bitset_idx"] + np.repeat(first_bitset, counts)
    n_levels = np.array([len(column.levels) for column in columns])
    return Nodes(
        roots=roots,
        feature=feature,
        threshold=exact_less_equal(nodes["num_threshold"]),
        left=nodes["left"] + shift,
        right=nodes["right"] + shift,
        missing_left=missing_left,
        value=nodes["value"],
        native_leaf=np.arange(len(nodes)) - shift,
        set_start=np.where(categorical, np.cumsum(categorical) * WORDS - WORDS, -1),
        sets=left_sets(
            np.concatenate(bitsets)[bitset[categorical]],
            n_levels[feature[categorical]],
            missing_left[categorical],
        ),
    )


def left_sets(bitsets: NDArray[np.uint32], n_levels: Ints, missing_left: Mask) -> Words:
    """Sets of left-going codes, ``WORDS`` words each; unseen categories go where NaN goes."""
    words = bitsets.reshape(-1, WORDS, 2).astype(np.uint64)
    sets = words[:, :, 0] | (words[:, :, 1] << np.uint64(32))
    unseen = np.uint64(1) << (n_levels % 64).astype(np.uint64)
    sets[np.arange(len(sets)), n_levels // 64] |= np.where(missing_left, unseen, np.uint64(0))
    return sets.reshape(-1)


def decoded(model: Any, X: Floats, levels: dict[int, tuple[Hashable, ...]]) -> Any:
    """A table as the user would pass it: levels for codes, an unseen value for other codes."""
    texts = any(not isinstance(level, (int, float)) for known in levels.values() for level in known)
    table = X.astype(object) if texts else X.copy()
    for column, known in levels.items():
        palette = np.array([*known, _unseen(known), np.nan], dtype=table.dtype)
        codes = np.where(np.isnan(X[:, column]), len(known) + 1, X[:, column])
        table[:, column] = palette[codes.astype(np.intp)]
    return as_fitted(model, table)


def _unseen(known: tuple[Any, ...]) -> Any:
    """A category that is not among the known ones, of their type."""
    if all(isinstance(level, (int, float)) for level in known):
        return max(known, default=0) + 1
    return "unseen" + "".join(map(str, known))


def native_leaves(model: Any, rows: Any) -> Ints:
    """Leaf of every row in every tree, found by the library's own traversal.

    HistGradientBoosting has no ``apply``, but its trees return values: here, positions of leaves.
    """
    encoded = model._preprocess_X(rows, reset=False)
    known, place_of = model._bin_mapper.make_known_categories_bitsets()
    leaves = []
    for predictor in predictors_of(model):
        marked = copy.copy(predictor)
        marked.nodes = predictor.nodes.copy()
        marked.nodes["value"] = np.arange(len(marked.nodes))
        leaves.append(marked.predict(encoded, known, place_of, 1))
    return np.column_stack(leaves).astype(np.int64)
