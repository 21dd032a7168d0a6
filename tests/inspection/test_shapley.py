"""Conditional Shapley values: enumeration is the judge, errors are what they say."""

from itertools import combinations, permutations
from math import factorial

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xgboost
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeRegressor
from tests.expectation.cases import random_case
from tests.expectation.naive import enumerate_row

import knothole as kh
from knothole.errors import ColumnMismatch, InvalidInput, ToleranceMissed
from knothole.expectation.expectation import Expectation
from knothole.inspection import shapley as module
from knothole.inspection.shapley import Players, Surrogate, all_coalitions, explain, orders, pairs

matplotlib.use("Agg")


def shapley(v, players):
    """By the definition: the mean over all orders of what each adds."""
    out = dict.fromkeys(players, 0.0)
    for order in permutations(players):
        for i, player in enumerate(order):
            out[player] = out[player] + v(frozenset(order[: i + 1])) - v(frozenset(order[:i]))
    return {player: value / factorial(len(players)) for player, value in out.items()}


def brute_force(case, evidence, players, row, outputs):
    """Values of one row from the naive expectations of its coalitions."""
    known = np.flatnonzero(players.known(evidence)[row])

    def told(coalition):
        some = np.isin(np.arange(len(players.names)), list(coalition))
        hide = (~some[:, None] & players.members).any(axis=0)
        return evidence[row : row + 1].hidden(hide[None])

    values = {
        frozenset(some): enumerate_row(case.ensemble, case.density, told(some), 0).mean
        for size in range(len(known) + 1)
        for some in combinations(known.tolist(), size)
    }
    out = np.zeros((len(players.names), outputs))
    for player, value in shapley(values.__getitem__, known.tolist()).items():
        out[player] = value
    return out


# ---- exactly ------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", ["Mixture", "LatentTree", "Circuit", "Factorized"])
@pytest.mark.parametrize(("seed", "width"), [(0, 1), (3, 2)])
def test_values_are_those_of_enumeration(density, seed, width):
    """Numbers, categories, "not recorded", one-hot groups known in part: all are players."""
    case = random_case(seed, density, n_rows=5, rate=0.3, width=width, n_outputs=width)
    expectation = Expectation.of(case.ensemble, case.density)
    evidence = expectation.columns.evidence(case.rows, case.missing_mask)
    players = Players.of(expectation)
    values, errors, base = explain(expectation, evidence, players, margins=True, tol=None)
    for row in range(len(case.rows)):
        expected = brute_force(case, evidence, players, row, width)
        assert_allclose(values[row], expected, atol=1e-10)
    assert (errors == 0).all()
    total = expectation.margin(evidence)[0]
    assert_allclose(base + values.sum(axis=1), total, atol=1e-10)


def test_orders_of_all_kinds_give_the_same_as_all_coalitions():
    rng = np.random.default_rng(0)
    coalitions, weights = all_coalitions(4)
    v = rng.normal(size=16)
    number = {tuple(some): k for k, some in enumerate(coalitions.astype(int).tolist())}
    expected = shapley(
        lambda some: v[number[tuple(int(j in some) for j in range(4))]], list(range(4))
    )
    assert_allclose(weights @ v, [expected[j] for j in range(4)], atol=1e-12)
    for n, first, last in ((4, 0, 3), (12, 5, 6)):
        some, plus, minus = pairs(n, first, last)
        assert plus.shape == (2, last - first, n)
        assert len(np.unique(some, axis=0)) == len(some)
        for half in range(2):
            for pair in range(last - first):
                joined, alone = some[plus[half, pair]], some[minus[half, pair]]
                assert (joined ^ alone == np.eye(n, dtype=bool)).all()  # it alone has joined
                assert sorted(alone.sum(axis=1)) == list(range(n))  # one after the other
        sizes = [some[minus[half]].sum(axis=2) for half in range(2)]
        assert_array_equal(sizes[0] + sizes[1], n - 1)  # the second order is the reverse
    # Of games without interactions of three, one pair of orders tells all.
    some, plus, minus = pairs(5, 0, 1)
    pair = rng.normal(size=(5, 5))
    game = np.einsum("si,ij,sj->s", some.astype(float), pair, some.astype(float))
    symmetric = (pair + pair.T) / 2
    assert_allclose((game[plus] - game[minus]).mean(axis=(0, 1)), symmetric.sum(axis=1), atol=1e-12)


def world(n, seed, columns=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 1)) + rng.normal(size=(n, columns))


@pytest.fixture(scope="module")
def robust():
    X = world(600, 0)
    y = 2 * X[:, 0] + np.abs(X[:, 1]) * X[:, 2]
    model = xgboost.XGBRegressor(n_estimators=30, max_depth=4).fit(X, y)
    return kh.wrap(model, X, density=kh.Mixture(6, random_state=0))


def test_a_null_player_is_one_that_neither_the_model_nor_the_others_need():
    rng = np.random.default_rng(0)
    X = np.column_stack([world(400, 1, 2), rng.normal(size=400)])
    model = DecisionTreeRegressor(max_depth=4).fit(X * [1, 0, 0], X[:, 0])
    alone = kh.wrap(model, X, density=kh.Factorized()).explain(X[:5]).values
    assert (np.abs(alone[:, 0]) > 0.01).all() and np.abs(alone[:, 1:]).max() < 1e-12
    together = kh.wrap(model, X, density=kh.Mixture(4, random_state=0)).explain(X[:5]).values
    assert (np.abs(together[:, 1]) > 1e-3).all()  # not used, but it tells of the first


def test_players_that_play_the_same_role_have_the_same_value():
    X = np.array([[a, b, c] for a in (0.0, 1.0) for b in (0.0, 1.0) for c in (0.0, 1.0)] * 20)
    y = X[:, 0] * X[:, 1] + 3 * (X[:, 0] + X[:, 1]) * X[:, 2]
    model = DecisionTreeRegressor().fit(X, y)
    robust = kh.wrap(model, X, density=kh.Factorized())
    values = robust.explain(np.unique(X, axis=0)).values
    same = np.unique(X, axis=0)[:, 0] == np.unique(X, axis=0)[:, 1]
    assert_allclose(values[same, 0], values[same, 1], atol=1e-12)
    assert np.abs(values[~same, 0] - values[~same, 1]).min() > 0.1


def test_a_linear_model_of_gaussian_columns_has_the_closed_form():
    """v(S) = b_S x_S + b_R Cov(R, S) Cov(S)^-1 x_S, up to the steps of its trees."""
    rng = np.random.default_rng(0)
    cov = np.array([[1.0, 0.7, 0.2], [0.7, 1.0, 0.4], [0.2, 0.4, 1.0]])
    slope = np.array([1.0, -2.0, 0.5])
    X = rng.multivariate_normal(np.zeros(3), cov, 4000)
    model = xgboost.XGBRegressor(
        n_estimators=1200, max_depth=1, learning_rate=0.1, reg_lambda=0, max_bin=512
    ).fit(X, X @ slope)
    assert np.abs(model.predict(X) - X @ slope).std() < 0.1
    robust = kh.wrap(model, X, density=kh.GaussianMixture(1, random_state=0))
    rows = X[np.abs(X).max(axis=1) < 2][:8]

    def v(x):
        def value(some):
            told, rest = sorted(some), [j for j in range(3) if j not in some]
            mean = cov[np.ix_(rest, told)] @ np.linalg.solve(cov[np.ix_(told, told)], x[told])
            return slope[told] @ x[told] + slope[rest] @ mean if told else 0.0

        return value

    expected = [[shapley(v(x), [0, 1, 2])[j] for j in range(3)] for x in rows]
    found = robust.explain(rows)
    sd = (X @ slope).std()
    # Steps of the trees are 5 % of sd, and the covariance is learned; independence is far off.
    assert np.abs(found.values - expected).max() < 0.1 * sd
    assert np.abs(found.values - expected).mean() < 0.03 * sd
    assert np.abs(rows * slope - expected).mean() > 0.15 * sd
    assert found.errors.max() < 0.02 * sd


# ---- with standard errors -----------------------------------------------------------------------


def test_sampled_values_are_within_their_errors(robust, monkeypatch):
    """Eight columns, orders drawn: z of single values has the standard deviation 1."""
    X = world(600, 0, 8)
    y = X[:, 0] * X[:, 1] * np.sign(X[:, 2]) + np.abs(X[:, 3] * X[:, 4]) + X[:, 5:].max(axis=1)
    model = xgboost.XGBRegressor(n_estimators=30, max_depth=6).fit(X, y)
    robust = kh.wrap(model, X, density=kh.Mixture(6, random_state=0))
    exact = robust.explain(X[:40]).values
    monkeypatch.setattr(module, "FEW_PLAYERS", 3)
    z = []
    for shift in (0, 1000, 2000, 3000):
        others = lambda n, first, last, shift=shift: orders(n, first + shift, last + shift)  # noqa: E731
        monkeypatch.setattr(module, "orders", others)
        pairs.cache_clear()
        found = robust.explain(X[:40], tol=0.02)
        z.append((found.values - exact) / found.errors)
        assert found.errors.max() <= 0.02 * robust.expectation_.spread.margin[0]
    pairs.cache_clear()
    z = np.array(z)
    assert 0.75 < np.sqrt((z**2).mean()) < 1.15
    assert (np.abs(z) < 1.96).mean() > 0.92


@pytest.mark.parametrize("few", [10, 3])
def test_values_under_a_drawn_density_are_within_their_errors(few, monkeypatch):
    X = world(800, 0, 6)
    y = X[:, 0] * X[:, 1] + np.abs(X[:, 2]) + X[:, 3:].max(axis=1)
    model = xgboost.XGBRegressor(n_estimators=20, max_depth=4).fit(X, y)
    density = kh.GaussianMixture(2, random_state=0).fit(X)
    rows = X[:30]
    exact = kh.wrap(model, X, density=density, tol=0.003, random_state=9)
    truth = exact.explain(rows, tol=0.004).values
    monkeypatch.setattr(module, "FEW_PLAYERS", few)
    z = []
    for seed in range(4):
        found = kh.wrap(model, X, density=density, random_state=seed).explain(rows, tol=0.03)
        z.append((found.values - truth) / np.hypot(found.errors, 0.002))
    z = np.array(z)
    assert 0.5 < np.sqrt((z**2).mean()) < 1.25
    assert (np.abs(z) < 1.96).mean() > 0.9


def test_the_surrogate_adds_what_regressions_of_all_prefixes_say():
    """Twin: w(S) by least squares for each set on the way, a group of two joining as one."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    covariance = root @ root.T + np.eye(5)
    scale = np.sqrt(np.diag(covariance))
    correlation = (covariance / np.outer(scale, scale))[None]
    slope = rng.normal(size=(1, 5))
    surrogate = Surrogate([], [], correlation, slope)
    variables, owner = np.array([4, 0, 2, 3]), np.array([0, 1, 1, 2])
    order = np.array([[1, 2, 0], [0, 1, 2]])
    shares = surrogate.shares(variables, owner, order)
    z = rng.normal(size=4)

    def w(players):
        told = np.isin(owner, list(players))
        own = variables[told]
        weights = np.linalg.solve(correlation[0][np.ix_(own, own)], slope[0, own])
        return weights @ z[told]

    for number, way in enumerate(order):
        for player in range(3):
            added = [
                w({*before, player}) - w(before)
                for one in (way.tolist(), way[::-1].tolist())
                for before in [set(one[: one.index(player)])]
            ]
            assert_allclose((shares[number, 0] @ z)[player], np.mean(added), atol=1e-12)


def test_the_surrogate_takes_off_most_of_what_orders_add(monkeypatch):
    """An additive model of dependent columns: as many orders, a fraction of the error."""
    X = world(600, 0, 12)
    model = xgboost.XGBRegressor(n_estimators=60, max_depth=2).fit(X, X @ np.arange(1.0, 13.0))
    robust = kh.wrap(model, X, density=kh.Mixture(6, random_state=0))
    found = robust.explain(X[:10], tol=None)
    own = robust.expectation_
    game = module.Game(own, Players.of(own), margins=True, threads=1)
    plain = game._by_pairs(own.evidence(X[:10]), np.ones(12, dtype=bool), 0, 8)
    error = plain.std(axis=3, ddof=1) / np.sqrt(8)
    assert np.sqrt((found.errors**2).mean()) < 0.7 * np.sqrt((error**2).mean())
    monkeypatch.setattr(module, "_MOST_PLAYERS", 11)
    alone = robust.explain(X[:10], tol=None)
    assert_allclose(alone.values, plain.mean(axis=3)[:, 0], atol=1e-9)


def test_a_tolerance_that_cannot_be_met_is_told(robust, monkeypatch):
    monkeypatch.setattr(module, "FEW_PLAYERS", 2)
    monkeypatch.setattr(module, "PAIRS", (8, 12))
    with pytest.warns(ToleranceMissed, match="value whose standard error is larger"):
        robust.explain(world(3, 5), tol=1e-9)
    assert robust.explain(world(3, 5), tol=None).errors.max() > 0


@pytest.mark.parametrize("few", [10, 2])
def test_one_row_one_answer(robust, few, monkeypatch):
    monkeypatch.setattr(module, "FEW_PLAYERS", few)
    X = world(40, 3)
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    gaussian = kh.wrap(robust._model, world(600, 0), density=kh.GaussianMixture(2, random_state=0))
    for each in (robust, gaussian):
        whole = each.explain(X)
        assert_array_equal(each.explain(X[::-1], n_jobs=3).values[::-1], whole.values)
        assert_array_equal(each.explain(X[7:8]).values, whole.values[7:8])
        assert_array_equal(each.explain(X[7:8]).errors, whole.errors[7:8])


# ---- what is explained --------------------------------------------------------------------------


def test_no_rows_give_no_rows(robust):
    assert robust.explain(np.empty((0, 4))).values.shape == (0, 4)


def test_missing_values_remain_missing_and_the_sum_is_the_prediction(robust):
    X = world(30, 2)
    X[:, 1] = np.nan
    X[0] = np.nan
    found = robust.explain(X)
    assert (found.values[:, 1] == 0).all() and (found.values[0] == 0).all()
    assert_allclose(found.base + found.values.sum(axis=1), robust.predict(X), atol=1e-10)
    assert_allclose(found.base, robust.predict(np.full((1, 4), np.nan))[0], atol=1e-10)


@pytest.mark.parametrize("of", ["prediction", "margin"])
def test_classifiers_have_values_for_every_output(of):
    X = world(500, 0)
    labels = np.array(["low", "mid", "top"])[np.digitize(X.sum(axis=1), [-1, 2])]
    for model in (
        RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, labels),
        GradientBoostingClassifier(n_estimators=5, max_depth=3, random_state=0).fit(X, labels),
    ):
        robust = kh.wrap(model, X, density=kh.Mixture(4, random_state=0))
        found = robust.explain(X[:6], of=of)
        assert found.values.shape == found.errors.shape == (6, 4, 3)
        assert found.outputs == ["low", "mid", "top"]
        total = found.base + found.values.sum(axis=1)
        if of == "margin":
            assert_allclose(total, robust.margin(X[:6]), atol=1e-9)
        else:
            assert_allclose(total, robust.predict_proba(X[:6]), atol=1e-9)
            assert_allclose(found.values.sum(axis=2), 0, atol=1e-9)
        assert found.table("top").shape == (6, 4)
        with pytest.raises(InvalidInput, match="output must be "):
            found.table("none")
    binary = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, labels == "top")
    assert kh.wrap(binary, X, density=kh.Factorized()).explain(X[:3]).outputs == [False, True]
    boosted = GradientBoostingClassifier(n_estimators=3).fit(X, labels == "top")
    assert kh.wrap(boosted, X, density=kh.Factorized()).explain(X[:3]).outputs == [True]


def test_probabilities_of_a_boosted_classifier_are_explained_with_errors():
    X = world(600, 0)
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=3).fit(X, X.sum(axis=1) > 1)
    density = kh.Mixture(4, random_state=0).fit(X)
    robust = kh.wrap(model, X, density=density)
    found = robust.explain(X[:20])
    assert 0 < found.errors.max() <= 0.02 * 0.5
    truth = kh.wrap(model, X, density=density, tol=0.001, random_state=1).explain(X[:20], tol=0.002)
    z = (found.values - truth.values) / np.hypot(found.errors, truth.errors)
    assert np.sqrt((z**2).mean()) < 1.4
    assert_allclose(found.base + found.values.sum(axis=1), robust.predict_proba(X[:20])[:, 1])


def test_groups_of_columns_have_one_value():
    rng = np.random.default_rng(0)
    code = rng.integers(3, size=300)
    table = pd.get_dummies(pd.DataFrame({"hue": np.array(["r", "g", "b"])[code]})).astype(float)
    table = table.assign(a=code + rng.normal(size=300), b=rng.normal(size=300))
    model = DecisionTreeRegressor(max_depth=5).fit(table, code + table["a"] * table["b"])
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), one_hot="auto")
    plain = robust.explain(table[:9])
    assert plain.data.columns.tolist() == ["hue", "a", "b"]
    assert set(plain.data["hue"]) <= {"hue_r", "hue_g", "hue_b"}
    found = robust.explain(table[:9], groups={"numbers": ["a", 4]})
    assert found.data.columns.tolist() == ["hue", "numbers"]
    assert_allclose(found.values.sum(axis=1), plain.values.sum(axis=1), atol=1e-10)
    by_dummy = robust.explain(table[:9], groups={"most": ["hue_g", "a"]})
    by_group = robust.explain(table[:9], groups={"most": ["hue", "a"]})
    assert_array_equal(by_dummy.values, by_group.values)
    assert by_group.data.columns.tolist() == ["most", "b"]
    half = table[:1].assign(hue_r=0.0, hue_g=np.nan, hue_b=np.nan)
    assert robust.explain(half).data.loc[0, "hue"] == "hue_b or hue_g"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"of": "proba"}, InvalidInput, "of must be 'prediction' or 'margin'"),
        ({"tol": -1}, InvalidInput, "tol must be None or a number above 0"),
        ({"groups": {"g": ["x9"]}}, ColumnMismatch, "groups\\['g'\\] names column 'x9'"),
        ({"groups": {"g": "x1"}}, InvalidInput, "groups must give the columns"),
        ({"groups": {"g": []}}, InvalidInput, "groups must give the columns"),
        ({"groups": {"g": [0], "h": [0]}}, InvalidInput, "must be in one group"),
        ({"groups": {"x3": [0, 1]}}, InvalidInput, "give the group another name"),
    ],
)
def test_bad_input_is_refused(robust, options, error, message):
    with pytest.raises(error, match=message):
        robust.explain(world(2, 0), **options)


# ---- what is returned ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::Warning:shap", "ignore::PendingDeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_shap_draws_it(robust):
    import shap

    X = world(25, 2)
    X[::3, 1] = np.nan
    found = robust.explain(X)
    theirs = found.to_shap()
    assert_array_equal(theirs.values, found.values)
    assert theirs.feature_names == ["x0", "x1", "x2", "x3"]
    import matplotlib.pyplot as plt

    shap.plots.bar(theirs, show=False)
    shap.plots.waterfall(theirs[1], show=False)
    shap.plots.scatter(theirs[:, 0], show=False)
    plt.close("all")
    three = RandomForestClassifier(3, max_depth=3).fit(X[1:3].repeat(9, 0), np.arange(18) % 3)
    several = kh.wrap(three, world(300, 0), density=kh.Factorized()).explain(X[:4]).to_shap()
    assert several.base_values.shape == (4, 3) and several[..., 1].values.shape == (4, 4)


def test_pictures_and_tables(robust):
    import matplotlib.pyplot as plt

    table = pd.DataFrame(world(30, 2), columns=list("abcd"), index=range(100, 130))
    table.iloc[3, 1] = np.nan
    X = pd.DataFrame(world(600, 0), columns=list("abcd"))
    model = DecisionTreeRegressor(max_depth=4).fit(X, X.sum(axis=1))
    named = kh.wrap(model, X, density=kh.Mixture(3, random_state=0))
    found = named.explain(table)
    assert found.table().index.tolist() == table.index.tolist()
    assert np.isnan(found.data.loc[103, "b"])
    ax = found.bar()
    assert [text.get_text() for text in ax.get_yticklabels()] != list("abcd") or len(
        ax.patches
    ) == 4
    assert ax.patches[0].get_width() == np.abs(found.values).mean(axis=0).max()
    one = named.explain(table.iloc[3:4]).bar()
    assert any(text.get_text() == "b = ?" for text in one.get_yticklabels())
    swarm = found.beeswarm()
    assert sum(len(dots.get_offsets()) for dots in swarm.collections) == 4 * 30
    plt.close("all")
    page = found._repr_html_()
    assert "Explanation of the prediction" in page and "?: +0" in page
    assert page.count("<tr") == 11
