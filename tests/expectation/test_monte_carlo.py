"""Continuous cases against a million draws; errors, tolerances and quantiles of draws."""

import itertools
import pickle
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from tests.expectation.cases import as_table, asked, random_case
from tests.expectation.naive import enumerate_row
from tests.trees.generate import random_ensemble

from knothole._core import monte_carlo, shared_draws
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.errors import InvalidInput, ToleranceMissed
from knothole.expectation.expectation import Expectation
from knothole.expectation.monte_carlo.engine import (
    CORRECTED,
    DECAY,
    FIRST_WORDS,
    FIRST_WORDS_OF_MARGINS,
    RESOLUTION,
    MonteCarloEngine,
)
from knothole.expectation.monte_carlo.records import LANES, ROUNDED, Forest, slots_of
from knothole.expectation.monte_carlo.statistics import (
    FACTOR,
    ROUNDING,
    MeanOf,
    by_group,
    mean_and_error,
    quantiles_of,
)
from knothole.expectation.tables import Lookup, NodeArrays, threshold_cells
from knothole.expectation.tolerance import SHARE, SPREAD_OF_PROBABILITIES
from knothole.trees.links import Link

DRAWS = 1_000_000
DENSITIES = {
    "Mixture": lambda families: Mixture(4, families=families, n_init=1, tol=0.01, random_state=0),
    "LatentTree": lambda families: LatentTree(3, families=families, tol=0.01, random_state=0),
    "GaussianMixture": lambda families: GaussianMixture(2, random_state=0),
}


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(4)
    return rng.normal(size=(400, 2)) @ rng.normal(size=(2, 4)) + 0.5 * rng.normal(size=(400, 4))


@pytest.fixture(scope="module")
def ensemble():
    return random_ensemble(seed=8, levels=(0,) * 4, n_trees=10, depth=4)


@pytest.mark.slow
@pytest.mark.parametrize("density", DENSITIES)
def test_a_million_draws_agree(density, numbers, ensemble):
    """Margin and variance of one row, by the density's own draws and the trees' own walk."""
    columns = ensemble.columns.describe(numbers)
    gaussian = {column.name: "gaussian" for column in columns}
    fitted = DENSITIES[density](gaussian).fit(numbers, columns=columns)
    expectation = Expectation.of(ensemble, fitted, tol=0.003)
    row = np.array([[0.4, np.nan, np.nan, -0.3]])
    margin, error = expectation.margin(expectation.evidence(row))
    moments = expectation.moments(expectation.evidence(row))
    margins = ensemble.margin(fitted.complete(row, draws=DRAWS)[0], 1)
    standard = margins.std() / np.sqrt(DRAWS)
    assert abs(margin[0, 0] - margins.mean()) <= 5 * np.hypot(standard, error[0, 0])
    spread = np.std((margins - margins.mean()) ** 2) / np.sqrt(DRAWS)
    bound = 5 * np.hypot(spread, 2 * moments.std[0, 0] * moments.std_error[0, 0])
    assert abs(moments.variance[0, 0] - margins.var()) <= bound


def own_margins(expectation, evidence):
    """Margins of a word's draws, each walked by the trees themselves."""
    ensemble = expectation.ensemble
    draws = expectation.monte_carlo._draws(evidence, range(1))
    missing_mask = np.isnan(evidence.points)[:, :, None]
    points = np.where(missing_mask, draws, evidence.points[:, :, None]).transpose(0, 2, 1)
    rows = points.reshape(-1, points.shape[2])[:, : len(ensemble.columns)]
    rows = np.where((ensemble.n_levels == 0) & np.isinf(rows), np.nan, rows)
    return ensemble.margin(rows, 1).reshape(len(evidence.points), 64, -1)


@pytest.mark.parametrize("seed", range(4))
def test_completions_go_where_the_trees_send_them(seed):
    """Categories, sets and values that are not recorded: tree by tree."""
    case = random_case(seed, "LatentTree", n_rows=8, n_trees=5, depth=4)
    expectation = Expectation.of(case.ensemble, case.density, method="monte-carlo", seed=seed)
    evidence = expectation.density.evidence(
        as_table(case.density.columns_, case.rows), case.missing_mask
    )
    found = expectation.monte_carlo.margins(evidence, range(1))[:, 0]
    np.testing.assert_allclose(found, own_margins(expectation, evidence), atol=1e-12)


def walking(engine):
    """An engine whose draws walk all trees from the roots: the slow twin of divisions."""
    other = copy(engine)
    other.__dict__["small"] = None
    return other


@pytest.mark.parametrize("seed", range(3))
def test_divided_draws_reach_the_leaves_that_walks_do(seed):
    """Also of several outputs, whose trees are sorted by output to be divided."""
    case = random_case(seed, "LatentTree", n_rows=8, n_trees=7, depth=4, n_outputs=1 + seed)
    expectation = Expectation.of(case.ensemble, case.density, method="monte-carlo", seed=seed)
    evidence = expectation.density.evidence(
        as_table(case.density.columns_, case.rows), case.missing_mask
    )
    engine = expectation.monte_carlo
    assert engine.small is not None
    for _, part in evidence.parts():
        for word in (0, 3):
            divided, walked = engine.masks(part, word), walking(engine).masks(part, word)
            for first, second in zip(divided, walked, strict=True):
                np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("columns", "trees", "depth", "outputs"),
    [(4, 10, 4, 1), (1, 3, 6, 1), (7, 300, 5, 3), (3, 1, 1, 1), (12, 20, 2, 1), (5, 8, 30, 2)],
)
def test_divided_draws_lead_where_walks_do(columns, trees, depth, outputs):
    """Also with many components or one, few draws on a side, and words after the first."""
    rng = np.random.default_rng(columns)
    X = rng.normal(size=(300, columns)) @ rng.normal(size=(columns, columns))
    ensemble = random_ensemble(
        seed=trees, levels=(0,) * columns, n_trees=trees, depth=depth, n_outputs=outputs,
        lopsided=depth > 6,
    )  # fmt: skip
    for size in (1, 5):
        density = GaussianMixture(size, random_state=0).fit(X, columns=ensemble.columns.describe(X))
        expectation = Expectation.of(ensemble, density)
        rows = X.copy()
        rows[rng.random(X.shape) < rng.uniform(0.1, 1.0, (len(X), 1))] = np.nan
        rows[::50] = np.nan
        engine, evidence = expectation.monte_carlo, expectation.evidence(rows)
        assert engine.small is not None
        for words in (range(1), range(3, 5)):
            found = engine._group_sums(evidence, words)
            walked = walking(engine)._group_sums(evidence, words)
            np.testing.assert_allclose(found, walked, rtol=0, atol=1e-11)
            alone = [engine._group_sums(evidence[[i]], words)[0] for i in range(0, 300, 7)]
            np.testing.assert_array_equal(found[::7], alone)


def test_draws_at_cuts_go_right_when_they_are_divided(numbers, ensemble):
    """A draw at a threshold and its neighbours, where it may count for one of two cells."""
    columns = ensemble.columns.describe(numbers)
    fitted = GaussianMixture(2, random_state=0).fit(numbers, columns=columns)
    engine = Expectation.of(ensemble, fitted).monte_carlo
    thresholds = [np.unique(ensemble.threshold[ensemble.feature == v]) for v in range(4)]
    rng = np.random.default_rng(0)
    points, draws = np.full((200, 4), np.nan), np.empty((200, 4, 64))
    for v, own in enumerate(thresholds):
        near = [own, np.nextafter(own, np.inf), np.nextafter(own, -np.inf), [-1e300, 1e300]]
        near = np.concatenate(near)
        few = rng.choice(near[np.isfinite(near)], (200, 2))  # two values each
        draws[:, v] = np.where(rng.random((200, 64)) < 0.5, few[:, :1], few[:, 1:])
    out = np.empty((200, 1, 64, 1))
    sets, leaves = engine._sets(points), engine._leaves()
    rows = points, sets, draws, engine.forest, engine.small
    monte_carlo.fill_margins(*rows, leaves, out)
    margins = ensemble.margin(draws.transpose(0, 2, 1).reshape(-1, 4), 1)
    np.testing.assert_allclose(out.ravel(), margins.ravel(), atol=1e-11)
    narrowed, sums = engine._narrowed(points, draws), np.empty((200, 8, 1))
    assert np.bitwise_count(narrowed).sum() < np.bitwise_count(sets).sum()
    monte_carlo.fill_group_sums(narrowed, draws, *rows[3:], leaves, sums)
    np.testing.assert_allclose(sums.ravel(), margins.reshape(-1, 8).sum(axis=1), atol=1e-11)


def walked_margins(engine, evidence, words):
    """Margins of rows' own draws that walk all trees."""
    return MonteCarloEngine.margins(walking(engine), evidence, words)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
@pytest.mark.parametrize("seed", range(3))
def test_splits_that_are_left_lead_where_walks_do(seed, density, outputs, monkeypatch):
    """Categories, blocks known in part, and what is not recorded; draws shared and rows' own."""
    case = random_case(seed, density, n_rows=20, n_trees=6, depth=4, n_outputs=outputs)
    expectation = Expectation.of(case.ensemble, case.density, method="monte-carlo", seed=seed)
    evidence = expectation.density.evidence(
        as_table(case.density.columns_, case.rows), case.missing_mask
    )
    engine = expectation.monte_carlo
    assert engine.small is not None
    for rows, part in evidence.parts():
        assert len(rows)
        found = engine.margins(part, range(1, 4))
        np.testing.assert_allclose(found, walked_margins(engine, part, range(1, 4)), atol=1e-12)
        drawn = MonteCarloEngine.margins(engine, part, range(1, 4))
        np.testing.assert_array_equal(drawn, found)
        monkeypatch.setitem(engine.__dict__, "shared_words", 0)  # as if there were no room
        np.testing.assert_array_equal(engine.margins(part, range(1, 4)), found)
        monkeypatch.undo()


def test_many_cuts_have_more_than_an_octet_and_rounded_steps_tell_enough(numbers):
    """Against walks. (A variable with more than 255 thresholds takes a second byte.)"""
    ensemble = random_ensemble(seed=3, levels=(0,) * 3, n_trees=60, depth=6)
    ensemble = replace(
        ensemble, threshold=np.random.default_rng(1).normal(size=ensemble.threshold.shape)
    )
    fitted = Mixture(4, n_init=1, tol=0.01, random_state=0).fit(numbers[:, :3])
    rows = np.where(np.random.default_rng(0).random((30, 3)) < 0.6, np.nan, numbers[:30, :3])
    expectation = Expectation.of(ensemble, fitted)
    evidence, engine = expectation.evidence(rows), expectation.monte_carlo
    assert slots_of(engine.forest.look)[0][-1] > 3
    found, rounded = (engine.margins(evidence, range(2, 7), rounded) for rounded in (False, True))
    np.testing.assert_allclose(found, walked_margins(engine, evidence, range(2, 7)), atol=1e-12)
    assert 0 < np.abs(rounded - found).max() < ROUNDED
    far = copy(engine)
    far.value = 1e9 * engine.value  # too far apart for int32
    one, other = (far.margins(evidence, range(1), rounded) for rounded in (False, True))
    np.testing.assert_array_equal(one, other)


def test_shared_draws_are_the_same_whenever_they_are_made(numbers, ensemble):
    fitted = Mixture(4, n_init=1, tol=0.01, random_state=0).fit(numbers)
    rows = np.where(np.random.default_rng(0).random((30, 4)) < 0.4, np.nan, numbers[:30])
    one, other = (Expectation.of(ensemble, fitted) for _ in range(2))
    evidence = one.evidence(rows)
    whole = one.monte_carlo.margins(evidence, range(4))
    parts = [other.monte_carlo.margins(evidence, range(w, w + 1)) for w in (3, 0, 2, 1)]
    for word, part in zip((3, 0, 2, 1), parts, strict=True):
        np.testing.assert_array_equal(part[:, 0], whole[:, word])
    again = pickle.loads(pickle.dumps(other.monte_carlo))
    assert not again._made and other.monte_carlo._made
    np.testing.assert_array_equal(again.margins(evidence, range(4)), whole)


def group_means(values, margins, expected):
    """Means of groups of draws, corrected by the expected margin if it is known."""
    means = values.mean(axis=2)
    if expected is None:
        return means
    about = margins - margins.mean(axis=(1, 2), keepdims=True)
    square, product = (about**2).sum(axis=(1, 2)), (about * values).sum(axis=(1, 2))
    differ = square > ROUNDING * (margins**2).sum(axis=(1, 2))
    slope = np.divide(product, square, out=np.zeros_like(square), where=differ)
    return means - slope[:, None] * (margins.mean(axis=2) - expected[:, None])


@pytest.mark.parametrize("parts", [(1,), (4,), (1, 3), (1, 3, 4, 8)])
@pytest.mark.parametrize("far", [0.0, 1e6])
def test_summaries_tell_of_means_what_all_draws_do(parts, far):
    """The slow twin has all margins at once."""
    rng = np.random.default_rng(0)
    words, n = sum(parts), 12
    margins = rng.normal(size=(n, words, 64, 2)) + rng.normal(size=(n, 1, 1, 2)) + far
    margins[0] = margins[0, 0, 0]  # margins that do not differ have no slope
    known = margins.mean(axis=(1, 2)) + 0.01

    def link(values):
        return expit(values - far)

    rows = np.array([0, 2, 3, 11])
    for expected in (None, known.__getitem__):
        mean = MeanOf(link, expected)
        ends = np.cumsum([0, *parts])
        found = [mean.summary(margins[:, a:b]) for a, b in itertools.pairwise(ends)]
        mean.settle(np.concatenate(found, axis=1), np.arange(n))
        value, error = mean.settle(np.concatenate(found, axis=1)[rows], rows)
        drawn = by_group(margins[rows])
        groups = group_means(link(drawn), drawn, None if expected is None else known[rows])
        slow, slow_error = mean_and_error(groups)
        np.testing.assert_allclose(value, slow, rtol=1e-6 if far else 1e-12)
        np.testing.assert_allclose(error, slow_error, rtol=1e-4 if far else 1e-9, atol=1e-12)


def test_a_mean_is_within_what_draws_have():
    margins = np.where(np.arange(512).reshape(1, 8, 64, 1) % 2, 3.0, 3.1)
    mean = MeanOf(expit, lambda rows: np.full((1, 1), 90.0))
    value, _ = mean.settle(mean.summary(margins), np.zeros(1, dtype=np.intp))
    np.testing.assert_allclose(value, expit(3.1), rtol=1e-12)


@pytest.mark.parametrize(("words", "corrects"), [(CORRECTED, False), (2 * CORRECTED, True)])
def test_means_under_a_mixture_are_corrected_after_many_draws(words, corrects, numbers, ensemble):
    """An exact walk takes longer than the draws that it saves, unless a row needs many."""
    model = replace(ensemble, link=Link("sigmoid"))
    fitted = Mixture(4, n_init=1, tol=0.01, random_state=0).fit(numbers)
    rows = np.where(np.random.default_rng(0).random((200, 4)) < 0.5, np.nan, numbers[:200])
    expectation, asked = Expectation.of(model, fitted, tol=1e-4), []
    expectation.monte_carlo.max_words, margin = words, expectation.engine.margin

    def expected(part):
        asked.append(len(part.points))
        return margin(part)

    expectation.engine.margin = expected
    with pytest.warns(ToleranceMissed):
        expectation.predict(expectation.evidence(rows), threads=1)
    assert bool(asked) == corrects


def words_asked_for(expectation, rows):
    """How many rows were drawn for, and which words, call by call; and the errors told."""
    assert expectation.spread.prediction == SPREAD_OF_PROBABILITIES
    engine, asked = expectation.monte_carlo, []
    collect = engine.margins_of

    def counted(evidence, rounded):
        margins = collect(evidence, rounded)

        def count(rows, words):
            asked.append((len(rows), words))
            return margins(rows, words)

        return count

    engine.margins_of = counted
    _, error = expectation.predict(expectation.evidence(rows), threads=1)
    engine.margins_of = collect
    return asked, error


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_four_words_settle_a_prediction_and_more_where_they_must(scale, density, numbers, ensemble):
    """Then come eight, sixteen, ..."""
    fitted = DENSITIES[density]({}).fit(numbers)
    model = replace(ensemble.with_values(scale * ensemble.value), link=Link("sigmoid"))
    rows = np.where(np.random.default_rng(0).random((200, 4)) < 0.5, np.nan, numbers[:200])
    asked, error = words_asked_for(Expectation.of(model, fitted), rows)
    words = [words for _, words in asked]
    assert words[:3] == [range(4), range(4, 8), range(8, 16)][: len(words)]
    assert (len(words) == 1) == (scale < 1)
    assert error.max() <= SHARE * SPREAD_OF_PROBABILITIES
    assert (error > 0).sum() == asked[0][0]  # of single numbers it is 0


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
def test_draws_that_agree_have_the_error_of_what_so_many_can_tell(density, numbers, ensemble):
    fitted = DENSITIES[density]({}).fit(numbers)
    far = np.where(np.isin(ensemble.feature, [1, 2]), 1e9, ensemble.threshold)  # no draw is there
    model = replace(ensemble, link=Link("sigmoid"), threshold=far)
    rows = numbers[:9].copy()
    rows[:, [1, 2]] = np.nan
    expectation = Expectation.of(model, fitted)
    value, error = expectation.predict(expectation.evidence(rows))
    np.testing.assert_allclose(value, expit(model.margin(np.nan_to_num(rows))), rtol=1e-12)
    np.testing.assert_allclose(error, RESOLUTION * SPREAD_OF_PROBABILITIES / (64 * FIRST_WORDS))


@pytest.mark.parametrize(
    "thresholds",
    [
        np.array([]),
        np.array([1.0]),
        np.array([-np.inf, 0.0, np.inf]),
        np.arange(40.0),
        10.0 ** np.arange(-20, 20),
        1e9 + 1e-6 * np.arange(30),
        np.array([-1.7e308, 0.0, 1.7e308]),
    ],
)
def test_places_among_thresholds_are_exact(thresholds):
    """Draws at and next to every threshold, and not recorded ones, against comparisons."""
    finite = thresholds[np.isfinite(thresholds)]
    near = np.concatenate([finite, np.nextafter(finite, np.inf), np.nextafter(finite, -np.inf)])
    values = np.resize(np.append(near, [0.0, -1e300, 1e300, np.inf]), (LANES, 64))
    offset = np.array([0, len(thresholds) + 2])
    look = Lookup(*threshold_cells([thresholds]), offset, np.array([0], np.int32), np.array([True]))
    no_nodes = NodeArrays(
        *(np.empty(0, kind) for kind in ["i4", "i4", "f8", "i4", "?", "i4", "u8"])
    )
    none, ids = np.empty(0, np.uint32), np.empty(0, np.int64)
    forest = Forest(no_nodes, none, none, ids, np.empty(0), ids, look, True, ids)
    places = np.ones((1, slots_of(look)[0][-1], LANES * 64), np.uint8)
    masks = np.empty((1, 0, LANES), np.uint64)
    for word, draws in enumerate(values):
        shared_draws.fill_components(
            draws[None, None], forest, slots_of(look)[0], word, places, masks
        )
    draws = values.ravel()
    expected = np.sum(draws[:, None] >= thresholds, axis=1)
    expected[draws == np.inf] = len(thresholds) + 2
    if len(thresholds):
        np.testing.assert_array_equal(places[0, 0], expected)


@pytest.mark.parametrize("n_missing", [2, 7])
def test_errors_are_neither_too_small_nor_too_large(n_missing):
    """The same row under many seeds: its answers lie as far apart as the errors say."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 8)) + 0.7 * rng.normal(size=(400, 8))
    ensemble = random_ensemble(seed=8, levels=(0,) * 8, n_trees=20, depth=5)
    fitted = GaussianMixture(2, random_state=0).fit(X, columns=ensemble.columns.describe(X))
    row = X[:1].copy()
    row[:, :n_missing] = np.nan
    found = [
        asked(Expectation.of(ensemble, fitted, tol=None, seed=seed), "margin", row)
        for seed in range(400)
    ]
    mean, error = np.array(found)[:, :, 0, 0].T
    # The error is told with the factor that so few groups ask for.
    assert 0.8 < np.mean(error**2) / FACTOR**2 / mean.var() < 1.25


def test_tol_adds_words_until_it_is_met(numbers, ensemble):
    """Words are added to the rows that need them, and their answers come closer."""
    columns = ensemble.columns.describe(numbers)
    fitted = Mixture(4, n_init=1, tol=0.01, random_state=0).fit(numbers, columns=columns)
    rows = numbers[:30].copy()
    rows[np.random.default_rng(0).random(rows.shape) < 0.5] = np.nan
    exact, _ = asked(Expectation.of(ensemble, fitted), "margin", rows)
    first = Expectation.of(ensemble, fitted, method="monte-carlo", tol=None)
    plain, error = asked(first, "margin", rows)
    tol = 0.5 * error.max()
    share = tol / float(first.spread.margin[0])
    closer, bounded = asked(
        Expectation.of(ensemble, fitted, method="monte-carlo", tol=share), "margin", rows
    )
    assert (error > tol).any() and (bounded <= tol * (1 + 1e-9)).all()
    enough = (error <= tol)[:, 0]
    np.testing.assert_array_equal(closer[enough], plain[enough])
    # Few groups make a rough error: its noise is allowed for.
    assert (np.abs(closer - exact) <= 8 * bounded + 1e-9).all()
    assert np.abs(closer - exact).mean() < np.abs(plain - exact).mean()


def test_a_later_error_is_told_together_with_the_ones_before(numbers, ensemble):
    """Slow twin: the error of all draws so far, and what each doubling leads to expect."""
    columns = ensemble.columns.describe(numbers)
    fitted = Mixture(4, n_init=1, tol=0.01, random_state=0).fit(numbers, columns=columns)
    rows = np.where(np.random.default_rng(0).random((40, 4)) < 0.5, np.nan, numbers[:40])
    expectation = Expectation.of(ensemble, fitted, method="monte-carlo", tol=0.004)
    engine, evidence = expectation.engine, expectation.evidence(rows)
    tolerance, doubled = engine.tolerance, 0
    _, found = engine.margin(evidence)
    low, high = ensemble.margin_range(evidence.points, 1)
    for row, told in enumerate(found):
        error = None
        for words in FIRST_WORDS_OF_MARGINS * 2 ** np.arange(9):
            _, own = mean_and_error(engine.group_margins(evidence[[row]], range(words)))
            least = RESOLUTION * tolerance.unit / (64 * words)
            # Where draws agree, the error is no larger than what missing values can change.
            most = np.where(own < least, (high - low)[row], np.inf)
            own = np.minimum(np.hypot(own, least), most)[0]
            error = own if error is None else np.sqrt((own**2 + (DECAY * error) ** 2) / 2)
            if (error <= tolerance.allowed).all():
                break
            doubled += 1
        np.testing.assert_allclose(told, error, rtol=1e-9)
    assert doubled > 40


@pytest.mark.parametrize("density", ["Mixture", "GaussianMixture"])
def test_later_words_are_other_draws(density, numbers, ensemble):
    """A row that is given eight words has the mean of all their draws, none of which is a copy."""
    columns = ensemble.columns.describe(numbers)
    fitted = DENSITIES[density]({}).fit(numbers, columns=columns)
    expectation = Expectation.of(ensemble, fitted, method="monte-carlo", tol=1e-6)
    rows = numbers[:5].copy()
    rows[:, :3] = np.nan
    evidence, engine = expectation.evidence(rows), expectation.monte_carlo
    engine.max_words = 8
    margins = engine.margins(evidence, range(8))
    words = margins.mean(axis=2)[:, :, 0]
    assert all(len(set(row)) == 8 for row in words.round(9).tolist())
    for word in range(8):
        alone = engine.margins(evidence, range(word, word + 1))
        np.testing.assert_array_equal(margins[:, word], alone[:, 0])
    mean, _ = engine.margin(evidence)
    np.testing.assert_allclose(mean[:, 0], words.mean(axis=1), atol=1e-12)
    moments = engine.moments(evidence)
    np.testing.assert_allclose(moments.mean, mean, atol=1e-12)
    np.testing.assert_allclose(moments.std, margins.std(axis=(1, 2)), atol=1e-9)
    probabilities = expectation.leaf_probabilities(evidence).toarray()
    np.testing.assert_allclose(probabilities @ engine.value + ensemble.base, mean, atol=1e-9)


def test_quantiles_against_enumeration():
    case = random_case(12, n_rows=6, n_trees=4)
    expectation = Expectation.of(case.ensemble, case.density, tol=None, seed=1)
    table = as_table(case.density.columns_, case.rows)
    evidence = expectation.density.evidence(table, case.missing_mask)
    levels = [0.1, 0.5, 0.9]
    found, _ = expectation.quantiles(evidence, levels)
    assert (np.diff(found, axis=2) >= 0).all()
    for row in range(len(case.rows)):
        answer = enumerate_row(case.ensemble, case.density, evidence, row)
        for level, quantile in zip(levels, found[row, 0], strict=True):
            below = answer.probability @ (answer.margins[:, 0] < quantile - 1e-9)
            upto = answer.probability @ (answer.margins[:, 0] <= quantile + 1e-9)
            noise = 5 * np.sqrt(level * (1 - level) / 256)
            assert below - noise <= level <= upto + noise


def test_half_of_the_draws_at_a_quantile_are_below_it():
    """The level's error, by hand: the median of these draws is 1, which some have and some not."""
    ones = np.array([8, 6, 4, 8, 6, 4, 8, 6])  # of eight draws, the others are 0
    margins = (np.arange(8) < ones[:, None]).astype(float)[None, :, :, None]
    found, error = quantiles_of(lambda margins: margins, np.array([0.5]))(margins, np.arange(1))
    assert found[0, 0] == 1.0
    below = (8 - ones) / 8 + 0.5 * ones / 8
    by_hand = FACTOR * below.std(ddof=1) / np.sqrt(8)
    np.testing.assert_allclose(error, [[by_hand, by_hand]])


def test_quantiles_of_complete_rows_are_the_prediction():
    case = random_case(13, rate=0.0, n_rows=5, link="sigmoid")
    expectation = Expectation.of(case.ensemble, case.density)
    table = as_table(case.density.columns_, case.rows)
    found, _ = expectation.quantiles(
        expectation.density.evidence(table, case.missing_mask), [0.0, 0.3, 1.0]
    )
    mean, _ = expectation.predict(expectation.density.evidence(table, case.missing_mask))
    np.testing.assert_allclose(found, np.repeat(mean[:, :, None], 3, axis=2), atol=1e-12)


@pytest.mark.parametrize("quantiles", [[1.5], [-0.1, 0.5], [[0.5]]])
def test_wrong_quantiles_are_refused(quantiles):
    case = random_case(14, n_rows=1)
    expectation = Expectation.of(case.ensemble, case.density)
    with pytest.raises(InvalidInput, match="quantiles must be numbers from 0 to 1"):
        expectation.quantiles(
            expectation.density.evidence(
                as_table(case.density.columns_, case.rows), case.missing_mask
            ),
            quantiles,
        )
