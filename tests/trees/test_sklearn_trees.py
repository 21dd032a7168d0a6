"""scikit-learn's trees, forests, bags and GradientBoosting: read exactly, written back."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import config_context
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    RandomTreesEmbedding,
)
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeClassifier,
    ExtraTreeRegressor,
)
from sklearn_parity import assert_reads, assert_writes

from knothole.errors import InvalidInput, NotFitted, ReaderMismatch, UnsupportedModel
from knothole.trees.links import Link
from knothole.trees.read import read, write
from knothole.trees.readers import sklearn as reader


def make_data(seed=0, rows=160, missing_rate=0.0):
    """Columns of very different kinds, a response, and three labels of unequal frequency."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [
            rng.normal(size=rows),
            rng.integers(0, 4, rows),
            rng.normal(size=rows) * 1e-30,
            1e6 + rng.normal(size=rows),
            rng.exponential(size=rows).astype(np.float32),
        ]
    )
    y = X[:, 0] + np.sin(3 * X[:, 4]) + (X[:, 1] == 2) + (X[:, 2] > 0) + 0.3 * rng.normal(size=rows)
    label = np.array(["a", "b", "c"])[np.digitize(y, np.quantile(y, [0.5, 0.9]))]
    X[rng.random(X.shape) < missing_rate] = np.nan
    return X, y, label


REGRESSORS = {
    "tree": DecisionTreeRegressor(max_depth=6, random_state=0),
    "tree absolute error": DecisionTreeRegressor(criterion="absolute_error", max_depth=4),
    "tree Poisson": DecisionTreeRegressor(criterion="poisson", max_leaf_nodes=20),
    "tree random splits": DecisionTreeRegressor(splitter="random", ccp_alpha=0.01, random_state=0),
    "tree monotonic": DecisionTreeRegressor(monotonic_cst=[1, 0, 0, 0, 0], max_depth=5),
    "stump without a split": DecisionTreeRegressor(min_samples_leaf=100),
    "extra tree": ExtraTreeRegressor(random_state=0),
    "forest": RandomForestRegressor(8, random_state=0),
    "forest without bootstrap": RandomForestRegressor(8, bootstrap=False, max_features=2),
    "extra trees": ExtraTreesRegressor(8, bootstrap=True, max_samples=0.5, random_state=0),
    "bag": BaggingRegressor(n_estimators=8, random_state=0),
    "bag of column subsets": BaggingRegressor(
        n_estimators=8, max_features=2, bootstrap_features=True, random_state=0
    ),
    "bag of extra trees": BaggingRegressor(ExtraTreeRegressor(max_depth=4), 8, max_samples=0.5),
}
CLASSIFIERS = {
    "tree": DecisionTreeClassifier(max_depth=6, random_state=0),
    "tree entropy": DecisionTreeClassifier(criterion="entropy", min_samples_leaf=5),
    "tree balanced": DecisionTreeClassifier(class_weight="balanced", max_leaf_nodes=20),
    "extra tree": ExtraTreeClassifier(max_depth=5, random_state=0),
    "forest": RandomForestClassifier(8, max_depth=5, random_state=0),
    "forest balanced": RandomForestClassifier(8, class_weight="balanced_subsample", max_depth=4),
    "extra trees": ExtraTreesClassifier(8, max_depth=5, random_state=0),
    "bag": BaggingClassifier(DecisionTreeClassifier(max_depth=4), 8, random_state=0),
    "bag of column subsets": BaggingClassifier(
        ExtraTreeClassifier(max_depth=3), 8, max_features=0.5, random_state=0
    ),
}
BOOSTED_REGRESSORS = {
    "squared error": GradientBoostingRegressor(n_estimators=8),
    "absolute error": GradientBoostingRegressor(loss="absolute_error", n_estimators=8),
    "Huber": GradientBoostingRegressor(loss="huber", n_estimators=8, learning_rate=0.7),
    "quantile": GradientBoostingRegressor(loss="quantile", alpha=0.3, n_estimators=8),
    "from zero": GradientBoostingRegressor(init="zero", n_estimators=8, subsample=0.5),
    "from a constant": GradientBoostingRegressor(
        init=DummyRegressor(strategy="constant", constant=3.0), n_estimators=8
    ),
    "early stopping": GradientBoostingRegressor(
        n_estimators=80, n_iter_no_change=2, learning_rate=0.9, random_state=0
    ),
}
BOOSTED_CLASSIFIERS = {
    "log loss": GradientBoostingClassifier(n_estimators=6),
    "from zero": GradientBoostingClassifier(init="zero", n_estimators=6, max_leaf_nodes=5),
    "from uniform": GradientBoostingClassifier(
        init=DummyClassifier(strategy="uniform"), n_estimators=6
    ),
    "from the most frequent": GradientBoostingClassifier(
        init=DummyClassifier(strategy="most_frequent"), n_estimators=3, learning_rate=1e-3
    ),
    "early stopping": GradientBoostingClassifier(
        n_estimators=60, n_iter_no_change=2, learning_rate=0.9, random_state=0
    ),
}


@pytest.mark.parametrize("missing_rate", [0.0, 0.2], ids=["complete", "incomplete"])
@pytest.mark.parametrize("name", REGRESSORS)
def test_averaging_regressors(name, missing_rate):
    X, y, _ = make_data(missing_rate=missing_rate)
    model = REGRESSORS[name].fit(X, np.abs(y), sample_weight=np.arange(len(y)) % 3 + 1)
    ensemble = assert_reads(model, X)
    assert ensemble.link == Link("identity") and ensemble.classes is None
    if ensemble.n_leaves > 1:
        assert_writes(model, X)


@pytest.mark.parametrize("missing_rate", [0.0, 0.2], ids=["complete", "incomplete"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_averaging_classifiers(name, missing_rate):
    X, _, label = make_data(missing_rate=missing_rate)
    model = CLASSIFIERS[name].fit(X, label)
    ensemble = assert_reads(model, X)
    assert ensemble.classes == ("a", "b", "c") and ensemble.link.linear
    np.testing.assert_allclose(ensemble.value.sum(axis=1), 1)
    assert_writes(model, X)


@pytest.mark.parametrize("name", BOOSTED_REGRESSORS)
def test_boosted_regressors(name):
    X, y, _ = make_data()
    model = BOOSTED_REGRESSORS[name].fit(X, y)
    ensemble = assert_reads(model, X)
    assert ensemble.n_trees == model.n_estimators_
    assert (ensemble.tree_weight == model.learning_rate).all()
    assert_writes(model, X)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", BOOSTED_CLASSIFIERS)
def test_boosted_classifiers(name, n_classes):
    X, _, label = make_data()
    label = label if n_classes == 3 else label == "a"
    model = BOOSTED_CLASSIFIERS[name].fit(X, label)
    ensemble = assert_reads(model, X)
    assert ensemble.link == Link("softmax" if n_classes == 3 else "sigmoid")
    assert len(ensemble.classes) == n_classes and ensemble.n_outputs == (3 if n_classes == 3 else 1)
    assert_writes(model, X)


def test_exponential_loss():
    """The margin of AdaBoost's loss is half the log odds."""
    X, _, label = make_data()
    model = GradientBoostingClassifier(loss="exponential", n_estimators=8).fit(X, label == "a")
    assert assert_reads(model, X).link == Link("sigmoid", scale=2.0)
    assert_writes(model, X)


def test_early_stopping_is_followed():
    X, y, _ = make_data()
    model = BOOSTED_REGRESSORS["early stopping"].fit(X, y)
    assert model.n_estimators_ < model.n_estimators
    assert read(model).n_trees == model.n_estimators_


@pytest.mark.parametrize("y", ["one column", "two columns"])
@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeRegressor(max_depth=4),
        ExtraTreesRegressor(5, max_depth=4),
        BaggingRegressor(DecisionTreeRegressor(max_depth=4), 5),
    ],
    ids=lambda model: type(model).__name__,
)
def test_regressors_with_several_outputs(model, y):
    X, response, _ = make_data(missing_rate=0.1)
    outputs = 1 if y == "one column" else 2
    model.fit(X, np.column_stack([response, X[:, 1] == 2])[:, :outputs].squeeze())
    assert assert_reads(model, X).n_outputs == outputs
    assert_writes(model, X)


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeClassifier(max_depth=4),
        ExtraTreeClassifier(max_depth=4),
        RandomForestClassifier(5, max_depth=4),
        ExtraTreesClassifier(5, max_depth=4),
    ],
    ids=lambda model: type(model).__name__,
)
def test_classifiers_with_several_outputs(model):
    """Each output has its own classes, and not as many of them."""
    X, y, label = make_data(missing_rate=0.1)
    few = np.where(y > 0, "yes", "no")
    model.fit(X, np.column_stack([few, label, few]))
    ensemble = assert_reads(model, X)
    assert ensemble.classes == (("no", "yes"), ("a", "b", "c"), ("no", "yes"))
    assert ensemble.n_outputs == 7
    assert_writes(model, X)


def test_a_single_class():
    X, _, _ = make_data()
    for model in (DecisionTreeClassifier(), RandomForestClassifier(3)):
        ensemble = assert_reads(model.fit(X, np.full(len(X), "only")), X)
        assert ensemble.classes == ("only",) and (ensemble.value == 1).all()


def test_bagged_trees_that_have_not_seen_every_class():
    X, _, label = make_data()
    # Only with metadata routing does a bag draw rows instead of weighing them.
    with config_context(enable_metadata_routing=True):
        model = BaggingClassifier(n_estimators=12, max_samples=4, random_state=0).fit(X, label)
    known = [len(tree.classes_) for tree in model.estimators_]
    assert min(known) < 3
    ensemble = assert_reads(model, X)
    assert_writes(model, X)  # zeros stay zeros
    with pytest.raises(InvalidInput, match="bagged without any row of class"):
        write(model, ensemble.with_values(np.full(ensemble.value.shape, 1 / 3)))


def test_names():
    X, y, _ = make_data()
    table = pd.DataFrame(X, columns=["one", "two", "three", "four", "five"])
    for model in (
        DecisionTreeRegressor(max_depth=3),
        RandomForestRegressor(3, max_depth=3),
        BaggingRegressor(DecisionTreeRegressor(max_depth=3), 3, max_features=3),
        GradientBoostingRegressor(n_estimators=3),
    ):
        ensemble = assert_reads(model.fit(table, y), table)
        assert ensemble.columns.named and ensemble.columns.names == tuple(table)
        unnamed = read(model.fit(X, y)).columns
        assert not unnamed.named and len(unnamed) == 5


def test_native_leaves_are_node_numbers():
    X, y, label = make_data()
    tree = DecisionTreeRegressor(max_depth=5).fit(X, y)
    forest = RandomForestRegressor(4, max_depth=5).fit(X, y)
    boosted = GradientBoostingClassifier(n_estimators=4).fit(X, label)
    for model in (tree, forest, boosted):
        ensemble = read(model)
        native = ensemble.native_leaf[ensemble.leaves(X)]
        assert np.array_equal(native, model.apply(X).reshape(len(X), -1))


@pytest.mark.parametrize("seed", range(3))
def test_at_the_thresholds(seed):
    """Rows at every threshold and next to it, in float64, in float32, and at their midpoints."""
    X, y, _ = make_data(seed)
    model = ExtraTreeRegressor(random_state=seed).fit(X, y)
    ensemble = read(model)
    column, threshold = model.tree_.feature, model.tree_.threshold
    rows = []
    for feature in range(X.shape[1]):
        t = threshold[column == feature]
        low = t.astype(np.float32)
        high = np.nextafter(low, np.float32(np.inf))
        middle = (low.astype(np.float64) + high.astype(np.float64)) / 2
        values = np.concatenate([t, low, high, middle]).astype(np.float64)
        values = np.concatenate(
            [values, np.nextafter(values, -np.inf), np.nextafter(values, np.inf)]
        )
        some = np.resize(X, (len(values), X.shape[1]))
        some[:, feature] = values
        rows.append(some)
    rows = np.vstack(rows)
    assert np.array_equal(ensemble.native_leaf[ensemble.leaves(rows)][:, 0], model.apply(rows))


VALUES = st.sampled_from([0.0, -0.0, 1.0, 2.0, 1 + 2.0**-24, 1 + 2.0**-23, -1e-45, 1e-40, 2e37])


@settings(max_examples=40, deadline=None)
@given(
    X=arrays(np.float64, (12, 2), elements=VALUES | st.just(np.nan) | st.floats(-4, 4)),
    kind=st.sampled_from([DecisionTreeRegressor, ExtraTreeRegressor]),
)
def test_any_data_with_missing_values(X, kind):
    model = kind(random_state=0).fit(X, np.arange(12.0) % 5)
    ensemble = assert_reads(model, X)
    assert np.array_equal(ensemble.native_leaf[ensemble.leaves(X)][:, 0], model.apply(X))


def test_splits_between_missing_and_the_rest():
    """Such a split has an infinite threshold."""
    X = np.array([[0.0], [1.0], [np.nan], [np.nan]])
    model = DecisionTreeRegressor().fit(X, [5.0, 5.0, 7.0, 7.0])
    assert np.isinf(model.tree_.threshold[0])
    assert assert_reads(model, X).n_leaves == 2


def test_a_threshold_that_is_nan():
    """As scikit-learn 1.6 leaves it for some data: every number goes right."""
    X, y, _ = make_data(missing_rate=0.2)
    model = DecisionTreeRegressor(max_depth=3).fit(X, y)
    model.tree_.threshold[1] = np.nan
    assert_reads(model, X)


def test_models_that_use_several_processes():
    X, y, _ = make_data()
    for model in (RandomForestRegressor(4), BaggingRegressor(n_estimators=4)):
        read(model.fit(X, y).set_params(n_jobs=2))


def test_missing_values_where_training_had_none():
    X, y, label = make_data()
    incomplete, _, _ = make_data(missing_rate=0.3)
    assert_reads(RandomForestClassifier(5).fit(X, label), incomplete)
    assert_reads(BaggingRegressor(n_estimators=5).fit(X, y), incomplete)


def test_boosting_refuses_missing_values_and_its_reading_says_so():
    X, y, _ = make_data()
    model = GradientBoostingRegressor(n_estimators=2).fit(X, y)
    assert not reader.read(model).takes_nan
    assert reader.read(DecisionTreeRegressor().fit(X, y)).takes_nan


def test_the_self_check_notices_a_cut_that_is_nearly_right(monkeypatch):
    X, y, _ = make_data()
    model = DecisionTreeRegressor(max_depth=4).fit(X, y)
    read(model)
    monkeypatch.setattr(reader, "exact_less_equal_float32", lambda t: np.nextafter(t, np.inf))
    with pytest.raises(ReaderMismatch, match="sends the row"):
        read(model)


def test_unfitted_models_are_refused():
    models = [*REGRESSORS.values(), *BOOSTED_CLASSIFIERS.values(), *CLASSIFIERS.values()]
    for model in models:
        with pytest.raises(NotFitted, match="has not been fitted"):
            read(type(model)())


def refused():
    X, y, label = make_data()
    positive = label == "a"
    yield "RandomTreesEmbedding", RandomTreesEmbedding(n_estimators=3).fit(X)
    yield "AdaBoostRegressor", AdaBoostRegressor(n_estimators=3).fit(X, y)
    piped = make_pipeline(StandardScaler(), DecisionTreeRegressor(max_depth=2)).fit(X, y)
    yield r"Pipeline.*with their training table", piped
    yield "BaggingRegressor of Random", BaggingRegressor(RandomForestRegressor(2), 2).fit(X, y)
    yield "BaggingRegressor of KNeigh", BaggingRegressor(KNeighborsRegressor(), 2).fit(X, y)
    mixed = BaggingRegressor(DecisionTreeClassifier(), 2).fit(X, positive)
    yield "BaggingRegressor of DecisionTreeClassifier", mixed
    mixed = BaggingClassifier(DecisionTreeRegressor(), 2).fit(X, positive)
    yield "BaggingClassifier of DecisionTreeRegressor", mixed
    init = LinearRegression()
    yield "init=LinearRegression", GradientBoostingRegressor(init=init, n_estimators=2).fit(X, y)
    init = DummyClassifier(strategy="stratified")
    boosted = GradientBoostingClassifier(init=init, n_estimators=2).fit(X, label)
    yield "init=DummyClassifier", boosted


def test_what_cannot_be_read_is_refused_by_name():
    for message, model in refused():
        with pytest.raises(UnsupportedModel, match=message):
            read(model)


def test_written_values_are_exact():
    X, y, _ = make_data()
    for model in (RandomForestRegressor(4), GradientBoostingRegressor(n_estimators=4)):
        ensemble = read(model.fit(X, y))
        value = np.random.default_rng(0).normal(size=ensemble.value.shape)
        assert np.array_equal(read(write(model, ensemble.with_values(value))).value, value)


def test_writing_into_another_model_is_refused():
    X, y, _ = make_data()
    ensemble = read(DecisionTreeRegressor(max_depth=3).fit(X, y))
    with pytest.raises(InvalidInput, match="not read from this model"):
        write(DecisionTreeRegressor(max_depth=5).fit(X, y), ensemble)
