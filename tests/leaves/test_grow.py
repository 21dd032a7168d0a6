"""Trees grown on draws: the splits of largest expected gain, by enumeration."""

from itertools import product

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from xgboost import XGBClassifier

from knothole.columns.columns import Column, Columns, Kind
from knothole.densities.mixture.density import Mixture
from knothole.errors import InvalidInput
from knothole.leaves.induction import TableDraws, TrainingOnDraws, expand
from knothole.trees.read import read

LEVELS = (0, 1, 2)
COLUMNS = Columns(tuple(Column(name, Kind.CATEGORICAL, LEVELS) for name in "abc"))
DRAWS = 4096


class Small:
    """A few incomplete rows of three codes, y, and p over all of them: everything enumerable."""

    def __init__(self, seed, labels):
        rng = np.random.default_rng(seed)
        a = rng.integers(0, 3, 400)
        X = np.column_stack([a, (a + rng.integers(0, 2, 400)) % 3, rng.integers(0, 3, 400)])
        signal = (X[:, 0] >= 1) + 0.7 * (X[:, 1] >= 2) + 0.4 * rng.normal(size=400)
        y = (signal > 1).astype(int) if labels else signal
        table = X.astype(float)
        table[rng.random(X.shape) < 0.5] = np.nan
        target = y.astype(str) if labels else y
        self.density = Mixture(3, random_state=0).fit(table, columns=COLUMNS, target=target)
        self.X, self.y, self.target = table[:40], y[:40], target[:40]
        self.weight = rng.uniform(0.5, 2, 40)

    def completions(self):
        """Every draw of every row: (rows of codes, y, weight), and the row each is of."""
        full, row, probability = [], [], []
        for n, known in enumerate(self.X):
            ways = list(product(*[LEVELS if np.isnan(x) else (x,) for x in known]))
            table = np.array(ways, dtype=float)
            log_p = self.density.score_samples(table, np.repeat(self.target[n], len(ways)))
            p = np.exp(log_p - log_p.max())
            full.append(table)
            row += [n] * len(ways)
            probability += list(p / p.sum())
        row = np.array(row)
        return np.concatenate(full), self.y[row], self.weight[row] * probability, row

    def expanded(self):
        """What the library is given: draws, with y as the library takes it."""
        full = expand(self.density, self.X, self.target, DRAWS, sample_weight=self.weight, seed=1)
        return full.X, self.y[full.row], full.weight


def squared(y, weight):
    """Weighted squared error about the weighted mean."""
    return weight @ (y - np.average(y, weights=weight)) ** 2


def log_loss(y, weight):
    """Weighted log loss at the weighted frequency."""
    p = np.average(y, weights=weight)
    return -weight @ np.where(y == 1, np.log(max(p, 1e-300)), np.log(max(1 - p, 1e-300)))


def second_order(y, weight):
    """XGBoost's loss of a leaf at its first tree: log loss to second order, lambda 1, base 0."""
    gradient, hessian = weight @ (0.5 - y), 0.25 * weight.sum()
    return -(gradient**2) / (hessian + 1) / 2


def gains(X, y, weight, loss):
    """The exact expected gain of every split, by (column, the least code on the right)."""
    whole, found = loss(y, weight), {}
    for column, threshold in product(range(X.shape[1]), LEVELS[1:]):
        left = X[:, column] < threshold
        found[column, threshold] = (
            whole - loss(y[left], weight[left]) - loss(y[~left], weight[~left])
        )
    return found


def first_split(model):
    ensemble = read(model)
    return int(ensemble.feature[0]), int(np.ceil(ensemble.threshold[0]))


CASES = {
    "squared": (squared, False, DecisionTreeRegressor(max_depth=1)),
    "log loss": (log_loss, True, DecisionTreeClassifier(max_depth=1, criterion="log_loss")),
    "second order": (
        second_order,
        True,
        XGBClassifier(n_estimators=1, max_depth=1, base_score=0.5, min_child_weight=0, n_jobs=1),
    ),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", CASES)
def test_the_first_split_on_many_draws_has_the_largest_exact_expected_gain(case, seed):
    loss, labels, model = CASES[case]
    small = Small(seed, labels)
    exact = gains(*small.completions()[:3], loss)
    first, second = sorted(exact.values(), reverse=True)[:2]
    assert second < 0.99 * first  # otherwise draws could not tell them apart
    X, y, weight = small.expanded()
    assert first_split(model.fit(X, y, sample_weight=weight)) == max(exact, key=exact.get)
    drawn = gains(X, y, weight, loss)
    for split, gain in exact.items():
        assert drawn[split] == pytest.approx(gain, abs=0.02 * first)


@pytest.mark.parametrize("seed", range(3))
def test_leaves_are_those_of_prop_2_but_for_the_draws(seed):
    small = Small(seed, labels=False)
    table, _, weight, row = small.completions()
    drawn, targets, weights = small.expanded()
    model = DecisionTreeRegressor(max_depth=2, min_weight_fraction_leaf=0.1)
    model.fit(drawn, targets, sample_weight=weights)
    leaf, errors = model.apply(table), []
    for node in np.unique(leaf):
        probabilities = np.bincount(row, weight * (leaf == node), minlength=40) / small.weight
        mass = small.weight @ probabilities
        exact = (small.weight * probabilities) @ small.y / mass
        spread = (
            small.weight
            * (small.y - exact)
            * np.sqrt(np.maximum(probabilities - probabilities**2, 0) / DRAWS)
        )
        errors.append(np.sqrt((spread**2).sum()) / mass)
        assert abs(model.tree_.value[node, 0, 0] - exact) < 4 * errors[-1]
    assert max(errors) < 0.01


# --- by library -----------------------------------------------------------------------------------

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
X[:, 1] += X[:, 0]
Y = X[:, 0] + X[:, 1] + 0.1 * rng.normal(size=200)
COMPLETE = X.copy()
X[rng.random(X.shape) < 0.3] = np.nan
X[:, 2] = np.arange(200)  # which row it is
JOINT = Mixture(3, random_state=0).fit(X, target=Y)


def table_draws(table, target=Y, redraw=0.0):
    parts = ((JOINT, np.arange(0, len(table), 2)), (JOINT, np.arange(1, len(table), 2)))
    return TableDraws(parts, table, table, np.isnan(table), np.asarray(target), redraw)


def growing(**changes):
    settings = {
        "table_draws": table_draws(X), "y": Y, "weight": None, "n_draws": 3, "seed": 0,
        "others": table_draws,
    }  # fmt: skip
    return TrainingOnDraws(**settings | changes)


def watched(base):
    """A class of estimators that tells what it was trained on."""

    class Watched(base):
        def fit(self, X, y, **options):
            Watched.seen.append((X, y, options))
            least = {name: self.get_params().get(name) for name in ("min_samples_leaf",)}
            options["least"] = least["min_samples_leaf"]
            return super().fit(X, y, **{k: v for k, v in options.items() if k in self.takes})

    Watched.seen = []
    Watched.takes = ("sample_weight", "X_val", "y_val", "sample_weight_val")
    Watched.__name__ = base.__name__
    return Watched


def rows_of(table):
    return table[:, 2].astype(int)


def test_incomplete_rows_come_often_and_complete_ones_once():
    kind = watched(DecisionTreeRegressor)
    grown = growing().fit(kind(min_samples_leaf=2, random_state=0), base_margin=np.arange(200.0))
    ((seen, y, options),) = kind.seen
    times = np.where(np.isnan(X).any(axis=1), 3, 1)
    np.testing.assert_array_equal(rows_of(seen), np.repeat(np.arange(200), times))
    np.testing.assert_allclose(options["sample_weight"], 1 / times[rows_of(seen)])
    np.testing.assert_array_equal(y, Y[rows_of(seen)])
    np.testing.assert_array_equal(options["base_margin"], rows_of(seen))
    assert options["least"] == np.ceil(2 * len(seen) / 200) and grown.min_samples_leaf == 2
    again = growing().fit(kind(min_samples_leaf=2, random_state=0))
    np.testing.assert_array_equal(again.predict(COMPLETE), grown.predict(COMPLETE))


def test_memory_bounds_the_draws(monkeypatch):
    kind = watched(DecisionTreeRegressor)
    bytes_of_two = 8 * 3 * (200 + np.isnan(X).any(axis=1).sum())
    for memory, draws in ((bytes_of_two, 2), (bytes_of_two - 1, 1), (1, 1), (1 << 30, 3)):
        monkeypatch.setattr("knothole.leaves.induction.MEMORY", int(memory))
        growing().fit(kind())
        assert np.bincount(rows_of(kind.seen[-1][0])).max() == draws


def test_every_tree_of_a_forest_has_completions_of_its_own():
    forest = ExtraTreesRegressor(70, bootstrap=False, max_features=None, random_state=0)
    kind = watched(ExtraTreesRegressor)
    weight = rng.uniform(1, 2, 200)
    grown = growing(weight=weight).fit(kind(**forest.get_params()))
    assert len(grown.estimators_) == len(kind.seen) == 70 and grown.warm_start is False
    assert grown.n_estimators == 70
    tables = [seen for seen, _, _ in kind.seen]
    for table, (_, _, options) in zip(tables, kind.seen, strict=True):
        np.testing.assert_array_equal(rows_of(table), np.arange(200))
        np.testing.assert_array_equal(table[~np.isnan(X)], X[~np.isnan(X)])
        np.testing.assert_array_equal(options["sample_weight"], weight)
    drawn = np.stack([table[np.isnan(X)] for table in tables])
    assert all(len(np.unique(values)) > 60 for values in drawn.T)
    # Draws, or trees that took them from one another, would agree on what they say of a missing
    # value.
    own = [tree.random_state for tree in forest.fit(COMPLETE, Y).estimators_]
    assert [tree.random_state for tree in grown.estimators_] == own


@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestClassifier(5, random_state=0, class_weight="balanced_subsample"),
        BaggingRegressor(DecisionTreeRegressor(), 5, random_state=0),
    ],
)
def test_forests_and_bags_are_the_librarys_own(estimator):
    y = (Y > 0).astype(int) if isinstance(estimator, RandomForestClassifier) else Y
    grown = growing(y=y).fit(estimator)
    assert type(grown) is type(estimator) and len(grown.estimators_) == 5
    assert grown.score(COMPLETE, y) > 0.6
    # Without missing values it is, bit for bit, what the library makes in one go.
    plain = growing(y=y, table_draws=table_draws(COMPLETE)).fit(estimator)
    np.testing.assert_array_equal(
        plain.predict(COMPLETE), clone(estimator).fit(COMPLETE, y).predict(COMPLETE)
    )


# --- when to stop --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HistGradientBoostingRegressor, HistGradientBoostingClassifier])
def test_completions_of_a_row_are_on_one_side_of_early_stopping(kind):
    labels = kind is HistGradientBoostingClassifier
    y, kind = (Y > 0) * 1 if labels else Y, watched(kind)
    weight = rng.uniform(1, 2, 200)
    grown = growing(y=y, weight=weight).fit(kind(early_stopping=True, max_iter=20, random_state=0))
    ((seen, _, options),) = kind.seen
    held = rows_of(options["X_val"])
    assert set(held).isdisjoint(rows_of(seen)) and len(set(held)) == 20
    assert set(held) | set(rows_of(seen)) == set(range(200))
    np.testing.assert_array_equal(options["y_val"], y[held])
    np.testing.assert_allclose(options["sample_weight_val"] * np.bincount(held)[held], weight[held])
    assert not np.isnan(options["X_val"]).any() and np.bincount(held).max() == 3
    assert grown.do_early_stopping_ and grown.early_stopping is True


def test_rows_that_became_many_by_completion_do_not_make_it_stop_early(monkeypatch):
    monkeypatch.setattr("knothole.leaves.induction.MANY", 300)
    grown = growing().fit(HistGradientBoostingRegressor(max_iter=3))
    assert not grown.do_early_stopping_ and grown.early_stopping == "auto"


def test_validation_rows_are_completed_given_their_targets():
    kind = watched(HistGradientBoostingRegressor)
    missing_mask = X[:50].copy()
    growing().fit(kind(max_iter=5), X_val=missing_mask, y_val=Y[:50])
    options = kind.seen[-1][2]
    np.testing.assert_array_equal(rows_of(options["X_val"]), np.repeat(np.arange(50), 3))
    np.testing.assert_array_equal(options["y_val"], Y[:50].repeat(3))
    gone = np.isnan(missing_mask[:, 0]) & np.isnan(missing_mask[:, 1])
    drawn = options["X_val"].reshape(50, 3, 3)[gone, :, 0].mean(axis=1)
    assert np.corrcoef(drawn, Y[:50][gone])[0, 1] > 0.5


def test_eval_sets_are_completed_and_their_weights_go_along():
    kind = watched(DecisionTreeRegressor)
    sets, weights = [(COMPLETE[:5], Y[:5]), (X[:50], Y[:50])], [np.ones(5), np.arange(50.0)]
    growing().fit(kind(), eval_set=sets, sample_weight_eval_set=weights)
    options = kind.seen[-1][2]
    complete, filled = options["eval_set"]
    np.testing.assert_array_equal(complete[0], COMPLETE[:5])
    assert not np.isnan(filled[0]).any() and len(filled[0]) == len(filled[1]) == 150
    np.testing.assert_array_equal(options["sample_weight_eval_set"][1], np.arange(50.0).repeat(3))
    np.testing.assert_array_equal(weights[1], np.arange(50.0))
    growing().fit(kind(), eval_set=(X[:50], Y[:50]))
    assert len(kind.seen[-1][2]["eval_set"][0]) == 150
    with pytest.raises(InvalidInput, match="eval_set must hold pairs"):
        growing().fit(kind(), eval_set=[X])


def test_what_cannot_be_is_refused():
    boosting = GradientBoostingRegressor(n_estimators=2, n_iter_no_change=2)
    with pytest.raises(InvalidInput, match="n_draws=1"):
        growing().fit(boosting)
    assert growing(n_draws=1).fit(boosting).n_estimators_ <= 2
    with pytest.raises(InvalidInput, match="oob_score=False"):
        growing().fit(RandomForestClassifier(2, oob_score=True))
