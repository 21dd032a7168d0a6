"""What a missing value means: every answer against the sum over all that may have happened."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln
from tests.expectation.cases import EXACT, as_table, random_case
from tests.missingness.losses import (
    N_VARIABLES,
    NULLABLE,
    categories_case,
    enumerate_losses,
    losing_case,
    plain,
    prior_weight,
    rate_weight,
)

import knothole as kh
from knothole.columns.columns import Column, Columns
from knothole.columns.evidence import Evidence
from knothole.errors import InvalidInput, ToleranceMissed
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import SHARE
from knothole.inspection.acquisition import Gains
from knothole.inspection.shapley import Players, explain
from knothole.missingness import inference
from knothole.missingness.inference import (
    NODES,
    PRIORS,
    LossPrior,
    Reading,
    acquired,
    gauss_jacobi,
    lost_probability,
)
from knothole.trees.read import read

TOLERANCE = 1e-10
LOSS_PRIORS = {
    "uniform": LossPrior(),
    "beta": LossPrior(a=2.0, b=5.0),
    "nothing": LossPrior(nothing=0.4),
    "column": LossPrior(column=0.5, a=2.0, b=5.0),
    "all": LossPrior(nothing=0.3, column=0.2, a=1.0, b=9.0),
    "no scattered losses": LossPrior(nothing=0.5, column=0.5),
}
RATES = np.array([0.3, 0.1, 0.5, 0.2, 0.05])
seeds = st.integers(0, 2**31 - 1)
priors = st.sampled_from(sorted(LOSS_PRIORS))


def under(case, prior="uniform", **options):
    """A case's expectation, where losses have a prior (by name)."""
    reading = Reading("infer", LOSS_PRIORS[prior])
    return Expectation.of(case.ensemble, case.density, reading=reading, **options)


def enumerated(case, prior, absent=()):
    """The answers of all rows by enumeration. Where nothing else is possible: scattered losses."""
    weight, anything = prior_weight(LOSS_PRIORS[prior]), prior_weight(LossPrior())

    def of(lost, must, observed, unknown):
        possible = LOSS_PRIORS[prior].scattered > 0 or must <= 1
        possible &= must == 0 or LOSS_PRIORS[prior].column > 0 or LOSS_PRIORS[prior].scattered > 0
        return (weight if possible else anything)(lost, must, observed, unknown)

    return [enumerate_losses(case, row, of, absent) for row in range(len(case.rows))]


def check_exact(expectation, evidence, expected):
    """Margins, leaf probabilities, moments and probabilities of "lost"."""
    margin, error = expectation.margin(evidence)
    np.testing.assert_allclose(margin, [each.mean for each in expected], atol=TOLERANCE)
    assert not error.any()
    leaves = expectation.leaf_probabilities(evidence).toarray()
    np.testing.assert_allclose(
        leaves, [each.leaf_probabilities for each in expected], atol=TOLERANCE
    )
    first = expectation.ensemble.leaf_start
    for tree, matrix in expectation.leaf_probabilities_by_tree(evidence):
        own = leaves[:, first[tree] : first[tree + 1]]
        np.testing.assert_allclose(matrix.toarray(), own, atol=1e-14)
    moments = expectation.moments(evidence, method="exact")
    np.testing.assert_allclose(moments.mean, margin, atol=TOLERANCE)
    np.testing.assert_allclose(moments.std, [each.std for each in expected], atol=1e-7)
    nullable = np.array([v.nullable for v in expectation.columns.variables])
    found = lost_probability(expectation.density, evidence, nullable)
    np.testing.assert_allclose(found, [each.lost for each in expected], atol=TOLERANCE)


# ---- exact densities ----------------------------------------------------------------------------


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=10, deadline=None)
@given(seed=seeds, prior=priors)
def test_priors_equal_enumeration(density, seed, prior):
    case = losing_case(seed, density)
    expectation = under(case, prior)
    check_exact(expectation, expectation.evidence_of(case.rows), enumerated(case, prior))


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=5, deadline=None)
@given(seed=seeds, prior=priors, absent=st.sampled_from([(), (1,), (0, 5)]))
def test_what_is_known_to_be_lost_or_absent_equals_enumeration(density, seed, prior, absent):
    """It does not count for the rate; what is marked as lost was recorded."""
    case = losing_case(seed, density, marked=0.4, rate=0.6)
    case.rows[:, list(absent)] = np.nan
    expectation = under(case, prior)
    evidence = expectation.evidence_of(case.rows, case.lost, absent=absent)
    check_exact(expectation, evidence, enumerated(case, prior, absent))


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_rates_equal_enumeration(density, seed):
    case = losing_case(seed, density, marked=0.2)
    expectation = Expectation.of(case.ensemble, case.density, reading=Reading("infer", None, RATES))
    evidence = expectation.evidence_of(case.rows, case.lost)
    weight = rate_weight(RATES)
    expected = [enumerate_losses(case, row, weight) for row in range(len(case.rows))]
    check_exact(expectation, evidence, expected)


@pytest.mark.parametrize("density", EXACT)
def test_predictions_of_one_tree_equal_enumeration(density):
    case = losing_case(5, density, n_rows=8, n_trees=1, depth=4, link="sigmoid")
    expectation = under(case, "all")
    mean, error = expectation.predict(expectation.evidence_of(case.rows))
    expected = [each.prediction for each in enumerated(case, "all")]
    np.testing.assert_allclose(mean, expected, atol=TOLERANCE)
    assert not error.any()


# ---- Monte Carlo --------------------------------------------------------------------------------


@pytest.mark.parametrize("tol", [SHARE, SHARE / 4])  # the first words, and so many more
@pytest.mark.parametrize("density", EXACT)
@pytest.mark.parametrize("link", ["sigmoid", "exp", "softmax"])
@pytest.mark.filterwarnings("ignore::knothole.errors.ToleranceMissed")
def test_drawn_predictions_agree_with_enumeration(density, link, tol):
    outputs = 3 if link == "softmax" else 1
    case = losing_case(11, density, 12, n_trees=4, link=link, n_outputs=outputs, marked=0.1)
    expected = enumerated(case, "all")
    mean = np.array([each.prediction for each in expected])
    std = [np.sqrt(e.probability @ (e.predictions - e.prediction) ** 2) for e in expected]
    z = []
    for seed in range(4):
        expectation = under(case, "all", seed=seed, tol=tol)
        evidence = expectation.evidence_of(case.rows, case.lost)
        for (found, error), want in (
            (expectation.predict(evidence), mean),
            (expectation.std(evidence), std),
        ):
            z.append((np.abs(found - want) - 1e-9) / (error + 1e-12))
    # Errors come from 8 groups: z has Student's distribution, of 7 degrees.
    assert np.mean(np.array(z) > 5) < 0.05 and np.median(np.maximum(z, 0)) < 1


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=4, deadline=None)
@given(seed=seeds, prior=priors)
def test_drawn_margins_agree_with_enumeration(density, seed, prior):
    case = losing_case(seed, density, n_rows=8, marked=0.1)
    drawn = under(case, prior, method="monte-carlo", seed=seed % 1000)
    evidence = drawn.evidence_of(case.rows, case.lost)
    expected = enumerated(case, prior)
    std = np.array([each.std for each in expected])
    with warnings.catch_warnings():
        # Rare values may leave spreads an error above the tolerance, after all draws.
        warnings.simplefilter("ignore", ToleranceMissed)
        answers = drawn.margin(evidence)[0], drawn.moments(evidence).mean
    for found in answers:
        # As far off as 64 independent draws of a margin with this spread, at most.
        assert (np.abs(found - [each.mean for each in expected]) <= 6 * std / 8 + 1e-9).all()
    leaves = drawn.leaf_probabilities(evidence).toarray()
    probabilities = np.array([each.leaf_probabilities for each in expected])
    spread = np.sqrt(np.maximum(probabilities * (1 - probabilities), 0))
    assert (np.abs(leaves - probabilities) <= 6 * spread / 8 + 1e-9).all()


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
def test_drawn_answers_are_right_on_average(density):
    """Over many seeds, and with every hypothesis: also those of which 64 draws have none."""
    case = losing_case(3, density, n_rows=6, rate=0.6, link="sigmoid")
    expected = enumerated(case, "all")
    found = []
    for seed in range(48):
        drawn = under(case, "all", method="monte-carlo", seed=seed, tol=None)
        evidence = drawn.evidence_of(case.rows)
        found.append(np.hstack([drawn.margin(evidence)[0], drawn.predict(evidence)[0]]))
    truth = np.array([[each.mean[0], each.prediction[0]] for each in expected])
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - truth) <= 4.5 * error + 1e-9).all()


@pytest.mark.parametrize("prior", ["uniform", "all"])
def test_gaussian_mixtures_agree_with_weighted_draws(prior):
    """Draws of plain missing values, weighted by what losses and values have as likelihood."""
    density = kh.GaussianMixture(2, random_state=0)
    case = losing_case(2, density, n_rows=14, rate=0.5, link="sigmoid")
    expectation = under(case, prior, tol=SHARE / 3)
    evidence = expectation.evidence_of(case.rows)
    margin, error = expectation.margin(evidence)
    mean, error_of_mean = expectation.predict(evidence)
    leaves = expectation.leaf_probabilities(evidence).toarray()
    lost = lost_probability(case.density, evidence, NULLABLE)
    weight = prior_weight(LOSS_PRIORS[prior])
    known, ensemble = plain(case), expectation.ensemble
    partly = known.partly_observed()
    telling = 0
    for row in range(len(case.rows)):
        missing = np.isnan(known.points[row])
        unknown = missing & NULLABLE
        unknown[4] &= not partly[row]
        draws = case.density.complete_points(known[row : row + 1], 1 << 14, 7)[0]
        none = np.isinf(draws) | (draws == [-1, np.inf, 2, np.inf, 3])
        gone = unknown & ~none
        n_must, n_seen = int((missing & ~unknown).sum()), int((~missing).sum())
        by_count = [weight(range(n), n_must, n_seen, range(int(unknown.sum()))) for n in range(6)]
        w = np.array(by_count)[gone.sum(axis=1)]
        w = w / w.sum()
        own = np.sqrt((w**2).sum())
        f = ensemble.margin(np.ascontiguousarray(draws), 1)[:, 0]
        for value, exact, its in (
            (f, margin[row, 0], error[row, 0]),
            (ensemble.link(f[:, None])[:, 0], mean[row, 0], error_of_mean[row, 0]),
        ):
            spread = np.sqrt(w @ (value - w @ value) ** 2)
            assert abs(exact - w @ value) <= 5 * np.hypot(its, spread * own) + 1e-9
        reached = np.zeros((len(draws), ensemble.n_leaves))
        np.put_along_axis(reached, ensemble.leaves(np.ascontiguousarray(draws), 1), 1.0, axis=1)
        assert np.abs(leaves[row] - w @ reached).max() < 0.06
        assert (np.abs(lost[row] - w @ gone)[unknown] < 5 * own).all()
        telling += unknown.any()
    assert telling > 6


# ---- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", EXACT)
def test_nothing_lost_is_the_models_own_routing(density):
    case = losing_case(8, density, n_rows=12)
    native = Expectation.of(case.ensemble, case.density, reading=Reading("native"))
    expected, _ = native.margin(native.evidence_of(case.rows))
    at_zero = Expectation.of(
        case.ensemble, case.density, reading=Reading("infer", None, np.zeros(N_VARIABLES))
    )
    found, _ = at_zero.margin(at_zero.evidence_of(case.rows))
    np.testing.assert_array_equal(found, expected)
    small = Reading("infer", None, np.full(N_VARIABLES, 1e-11))
    nearly = Expectation.of(case.ensemble, case.density, reading=small)
    found, _ = nearly.margin(nearly.evidence_of(case.rows))
    np.testing.assert_allclose(found, expected, atol=1e-7)
    # Under a prior too, where nothing must have been lost.
    whole = ~np.isnan(case.rows[:, [0, 3]]).any(axis=1) & ~plain(case).partly_observed()
    certain = Expectation.of(
        case.ensemble, case.density, reading=Reading("infer", LossPrior(nothing=1.0))
    )
    found, _ = certain.margin(certain.evidence_of(case.rows))
    np.testing.assert_allclose(found[whole], expected[whole], atol=TOLERANCE)
    assert whole.any()


@pytest.mark.parametrize("density", EXACT)
def test_everything_lost_is_the_marginal_with_not_recorded(density):
    case = losing_case(8, density, n_rows=12)
    says_nothing = Expectation.of(case.ensemble, case.density, reading=Reading("infer", None))
    expected, _ = says_nothing.margin(plain(case))
    for reading in (Reading("infer", None), Reading("infer", None, np.ones(N_VARIABLES))):
        expectation = Expectation.of(case.ensemble, case.density, reading=reading)
        found, _ = expectation.margin(expectation.evidence_of(case.rows))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("density", EXACT)
def test_nearly_everything_lost_is_nearly_that_marginal(density):
    case = losing_case(8, density, n_rows=12)
    answers = []
    for rate in (1.0, 1 - 1e-9):
        reading = Reading("infer", None, np.full(N_VARIABLES, rate))
        expectation = Expectation.of(case.ensemble, case.density, reading=reading)
        answers.append(expectation.margin(expectation.evidence_of(case.rows))[0])
    np.testing.assert_allclose(*answers, atol=1e-7)


@pytest.mark.parametrize("density", [*EXACT, "GaussianMixture"])
@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_without_nullable_columns_nothing_changes(density, link):
    case = random_case(4, n_rows=10, link=link)
    columns = case.density.columns_.with_nullable(np.zeros(len(case.density.columns_), bool))
    X = np.nan_to_num(random_case(5, n_rows=60, rate=0.0).rows)
    X[:, 4:7] = np.eye(3)[np.arange(60) % 3]
    made = EXACT[density](0) if density in EXACT else kh.GaussianMixture(2, random_state=0)
    density = made.fit(as_table(columns, X), columns=columns)
    answers = []
    for reading in (Reading(), Reading("lost"), Reading("native"), Reading("infer", None)):
        expectation = Expectation.of(case.ensemble, density, reading=reading)
        evidence = expectation.evidence_of(case.rows)
        assert evidence.odds is None and evidence.hypotheses is None
        np.testing.assert_array_equal(evidence.points, columns.evidence(case.rows).points)
        answers.append(expectation.predict(evidence)[0])
    for other in answers[1:]:
        np.testing.assert_array_equal(other, answers[0])


# ---- quadrature ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [
        (1.0, 1.0, 1), (0.5, 0.5, 4), (0.3, 0.7, 3), (2.0, 5.0, 7), (1.0, 31.0, 21),
        (1.0, 1001.0, 21), (41.0, 961.0, 25), (3.0, 1001.0, 201), (1.0, 501.0, 251),
        (601.0, 401.0, 30), (1e-3, 1e-3, 2),
    ],
)  # fmt: skip
def test_quadrature_is_exact_for_polynomials(a, b, n):
    """In relative terms, also where the integral is 1e-150: ratios of such are what counts."""
    nodes, log_weights = gauss_jacobi(a, b, n)
    assert len(nodes) == n and (nodes > 0).all() and (nodes < 1).all()
    degree = np.arange(2 * n)[:, None]
    found = np.logaddexp.reduce(log_weights + degree * np.log(nodes), axis=1)
    np.testing.assert_allclose(found, (betaln(a + degree, b) - betaln(a, b))[:, 0], atol=1e-10)


@pytest.mark.parametrize("n", range(1, 8))
def test_number_of_nodes(n, wide):
    """(n + 1) / 2, rounded up; of more than two, two are made."""
    density, rows = wide
    rows = rows.copy()
    rows[:, :n] = np.nan
    read = Reading("infer", LossPrior()).read(density, Evidence(rows), density.columns_.variables)
    assert read.hypotheses.chance.shape[1] == min(NODES, -(-(n + 1) // 2))


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
@settings(max_examples=4, deadline=None)
@given(seed=seeds, prior=priors)
def test_many_missing_nullable_variables_equal_enumeration(density, seed, prior):
    """With all nodes, exactly; with two, nearly: far within what losses leave open."""
    case = categories_case(seed, density)
    expected = enumerated(case, prior)
    expectation = under(case, prior)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "NODES", 99)
        check_exact(expectation, expectation.evidence_of(case.rows), expected)
    evidence = expectation.evidence_of(case.rows)
    margin, _ = expectation.margin(evidence)
    std = np.array([each.std for each in expected])
    assert (np.abs(margin - [each.mean for each in expected]) <= 0.01 * std + 1e-12).all()
    lost = lost_probability(case.density, evidence, case.nullable)
    unknown = np.isnan(case.rows)
    apart = np.abs(lost - [each.lost for each in expected])[unknown]
    assert apart.max() < 0.01


@pytest.fixture(scope="module")
def wide():
    """A density of 60 columns, the first 40 of which are nullable, and rows."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 1))
    X = z + rng.normal(size=(400, 60))
    X[:, :40][rng.random((400, 40)) < 0.1] = np.nan
    columns = Columns(tuple(Column(f"c{i}") for i in range(60)))
    columns = columns.with_nullable(np.arange(60) < 40)
    density = kh.Mixture(3, n_init=1, random_state=0).fit_matrix(X, columns)
    return density, (z + rng.normal(size=(400, 60)))[:20]


# ---- what does not count ------------------------------------------------------------------------


def test_a_one_hot_group_counts_once():
    """As a category does, however many columns it has."""
    case = losing_case(1, rate=0.0)
    rows = case.rows[:1].copy()
    rows[0, 4:7] = np.nan
    reading = Reading("infer", LossPrior(a=1.0, b=1.0))
    evidence = Expectation.of(case.ensemble, case.density, reading=reading).evidence_of(rows)
    # Four observed variables: r has Beta(1, 5), whose mean is the one node.
    np.testing.assert_allclose(evidence.hypotheses.rate[0], [1 / 6], atol=1e-12)


def test_hidden_values_say_nothing():
    """Neither what was observed, nor that it was missing; hypotheses keep their probabilities."""
    case = losing_case(21, n_rows=12, rate=0.6, marked=0.2)
    expectation = under(case, "all")
    evidence = expectation.evidence_of(case.rows, case.lost)
    assert evidence.hypotheses.unknown[:, 1].any() and (~np.isnan(evidence.points[:, 1])).any()
    hide = np.zeros(evidence.points.shape, dtype=bool)
    hide[:, 1] = True
    hidden = evidence.hidden(hide)
    np.testing.assert_array_equal(hidden.hypotheses.chance, evidence.hypotheses.chance)
    _, _, cases = hidden.cases()
    assert np.isnan(cases.points[:, 1]).all()
    assert (cases.odds[:, 1] == 1).all()
    nothing = evidence.hidden(np.ones_like(hide))
    margin, _ = expectation.margin(nothing)
    base, _ = expectation.margin(Evidence(np.full_like(evidence.points, np.nan)))
    np.testing.assert_allclose(margin, base, atol=1e-12)


def test_shapley_values_add_up_and_of_nothing_lost_are_the_models_own():
    case = losing_case(22, n_rows=10, rate=0.5)
    expectation = under(case, "all")
    evidence = expectation.evidence_of(case.rows)
    players = Players.of(expectation)
    values, _, base = explain(expectation, evidence, players, margins=True, tol=None)
    total = values.sum(axis=1) + base
    np.testing.assert_allclose(total, expectation.margin(evidence)[0], atol=TOLERANCE)
    # A missing value that may be "not recorded" says something; others say nothing.
    assert np.abs(values[evidence.hypotheses.unknown]).max() > 1e-3
    silent = np.isnan(evidence.points) & ~evidence.hypotheses.unknown
    for v, rows, _ in evidence.restricted():
        silent[rows, v] = False
    assert not values[silent].any()
    # By definition: over all orders in which players become known.
    known = players.known(evidence)
    row = int(np.flatnonzero(known.sum(axis=1) == 3)[0])
    own = np.flatnonzero(known[row])
    worth = {}
    for code in range(8):
        inside = own[[bool(code >> k & 1) for k in range(3)]]
        hide = np.ones((1, N_VARIABLES), dtype=bool)
        hide[0, inside] = False
        worth[code] = expectation.margin(evidence[row : row + 1].hidden(hide))[0][0, 0]
    assert abs(worth[0] - base[0]) < 1e-12
    for k, player in enumerate(own):
        share = sum(
            (worth[code | 1 << k] - worth[code]) * [1 / 3, 1 / 6, 1 / 3][code.bit_count()]
            for code in range(8)
            if not code >> k & 1
        )
        np.testing.assert_allclose(values[row, player, 0], share, atol=TOLERANCE)
    native = Expectation.of(case.ensemble, case.density, reading=Reading("native"))
    zero = Reading("infer", None, np.zeros(N_VARIABLES))
    at_zero = Expectation.of(case.ensemble, case.density, reading=zero)
    of_both = [
        explain(each, each.evidence_of(case.rows), players, margins=True, tol=None)[0]
        for each in (native, at_zero)
    ]
    np.testing.assert_allclose(*of_both, atol=TOLERANCE)


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
def test_gains_of_categories_equal_enumeration(density):
    """What it is to know a category, "not recorded" included: hypotheses learn of it, too."""
    case = losing_case(23, density, n_rows=10, rate=0.6, marked=0.1)
    expectation = under(case, "all")
    evidence = expectation.evidence_of(case.rows, case.lost)
    gains = Gains(expectation, evidence, Players.of(expectation), "variance", False)
    gain, _ = gains.single()
    expected = enumerated(case, "all")
    for v in (0, 2, 4):
        rows = np.flatnonzero(np.isnan(evidence.points[:, v]))
        want = [expected[row].gain(v) for row in rows]
        np.testing.assert_allclose(gain[rows, v], want, atol=TOLERANCE)
    assert evidence.hypotheses.unknown[:, [2, 4]].any()
    # Numbers: from draws.
    rows = np.flatnonzero(np.isnan(evidence.points[:, 1]))
    assert np.isfinite(gain[rows, 1]).all()


def test_expected_answers_once_a_value_is_known_are_those_before():
    case = losing_case(24, n_rows=10, rate=0.6)
    expectation = under(case, "all")
    evidence = expectation.evidence_of(case.rows)
    rows = np.flatnonzero(evidence.hypotheses.unknown[:, 2])
    own, levels = evidence[rows], len(case.density.variables_[2].levels)
    log_p, margins = np.empty((2, len(rows), levels))
    known = np.zeros(own.points.shape, dtype=bool)
    known[:, 2] = True
    for level in range(levels):
        told, log_p[:, level] = acquired(case.density, own, known, np.full_like(own.points, level))
        margins[:, level] = expectation.margin(told)[0][:, 0]
        np.testing.assert_allclose(told.hypotheses.chance.sum(axis=1), 1.0, atol=1e-12)
    p = np.exp(log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True))
    before = expectation.margin(own)[0][:, 0]
    np.testing.assert_allclose((p * margins).sum(axis=1), before, atol=TOLERANCE)


# ---- one row, one answer ------------------------------------------------------------------------

BATCH = 24


@pytest.fixture(scope="module", params=["Mixture", "LatentTree", "Circuit", "GaussianMixture"])
def batch(request):
    """An expectation, rows of all kinds, which of them are marked as lost, and the answers."""
    name = request.param
    density = name if name in EXACT else kh.GaussianMixture(2, random_state=0)
    case = losing_case(31, density, BATCH, rate=0.5, n_trees=6, link="sigmoid", marked=0.2)
    case.rows[0] = np.nan
    case.rows[1] = losing_case(31, "Mixture", 2, rate=0.0).rows[1]
    case.lost[:2] = False
    case.lost[12:] = False
    expectation = under(case, "all")
    return expectation, case, answers(expectation, case.rows, case.lost)


def answers(expectation, rows, lost, threads=1):
    evidence = expectation.evidence_of(rows, lost)
    margin, error = expectation.margin(evidence, threads=threads)
    prediction, unsure = expectation.predict(evidence, threads=threads)
    moments = expectation.moments(evidence, threads=threads)
    return {
        "margin": margin,
        "error": error,
        "prediction": prediction,
        "error of prediction": unsure,
        "std": expectation.std(evidence, threads=threads)[0],
        "std of margin": moments.std,
        "leaves": expectation.leaf_probabilities(evidence, threads=threads).toarray(),
        "lost": lost_probability(expectation.density, evidence, NULLABLE),
    }


@settings(max_examples=12, deadline=None)
@given(rows=st.lists(st.integers(0, BATCH - 1), min_size=1, max_size=BATCH))
def test_rows_have_the_same_bits_in_any_order_and_number(batch, rows):
    expectation, case, expected = batch
    found = answers(expectation, case.rows[rows], case.lost[rows])
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name][rows], err_msg=name)


def test_rows_have_the_same_bits_alone(batch):
    """Beside rows with more hypotheses a row's own are padded."""
    expectation, case, expected = batch
    for row in range(BATCH):
        found = answers(expectation, case.rows[[row]], case.lost[[row]])
        for name, values in found.items():
            np.testing.assert_array_equal(values, expected[name][[row]], err_msg=f"{name} {row}")


def test_chunks_and_threads_do_not_matter(batch, monkeypatch):
    expectation, case, expected = batch
    for engine in {expectation.engine, expectation.monte_carlo}:
        monkeypatch.setattr(engine, "chunk", 5)
    monkeypatch.setattr(expectation.monte_carlo, "chunk_of_means", 5)
    monkeypatch.setattr(type(expectation.monte_carlo), "_rows_at_once", lambda self, words: 3)
    monkeypatch.setattr("knothole.missingness.inference.ROWS", 7)
    for threads in (1, 4):
        found = answers(expectation, case.rows, case.lost, threads)
        for name, values in found.items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_many_hypotheses_have_the_same_bits_beside_others(wide):
    density, rows = wide
    rows = rows.copy()
    for row in range(len(rows)):
        rows[row, : 2 * row] = np.nan
    reading = Reading("infer", LossPrior(0.2, 0.3))
    together = reading.read(density, Evidence(rows), density.columns_.variables).hypotheses
    for row in range(1, len(rows)):
        alone = reading.read(density, Evidence(rows[[row]]), density.columns_.variables).hypotheses
        n = alone.chance.shape[1]
        np.testing.assert_array_equal(alone.chance[0], together.chance[row, :n])
        assert not together.chance[row, n:].any()


# ---- never NaN ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", sorted(LOSS_PRIORS))
@pytest.mark.parametrize("density", [*EXACT, "GaussianMixture"])
def test_rows_of_which_everything_is_missing(density, prior):
    made = density if density in EXACT else kh.GaussianMixture(2, random_state=0)
    case = losing_case(6, made, n_rows=3, link="sigmoid")
    case.rows[:] = np.nan
    expectation = under(case, prior)
    for name, values in answers(expectation, case.rows, np.zeros_like(case.lost)).items():
        assert np.isfinite(values).all(), name
    every = np.ones_like(case.lost)  # and known to be lost
    for name, values in answers(expectation, case.rows, every).items():
        assert np.isfinite(values).all(), name


@pytest.mark.parametrize("density", [*EXACT, "GaussianMixture"])
@pytest.mark.filterwarnings("ignore::knothole.errors.ImpossibleRow")
def test_impossible_rows(density):
    """A category that no component can have."""
    made = density if density in EXACT else kh.GaussianMixture(2, random_state=0)
    case = losing_case(6, made, n_rows=8, rate=0.6, link="sigmoid")
    _make_impossible(case.density)
    case.rows[:, 0] = 2.0
    expectation = under(case, "all")
    for name, values in answers(expectation, case.rows, case.lost).items():
        seen = values[~np.isnan(case.rows[:, :1]).ravel()] if name != "lost" else 0.0
        assert np.isfinite(seen).all(), name


def _make_impossible(density):
    """No component has the last level of the first variable any more."""
    one = density.distributions_[0]
    table = one.form.table.copy()
    table[2] = -np.inf
    table -= np.logaddexp.reduce(table, axis=0)
    changed = one.with_table(table)
    density.distributions_ = (changed, *density.distributions_[1:])


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.filterwarnings("ignore::knothole.errors.ImpossibleRow")
def test_components_that_always_or_never_record(density, share):
    """nu = 0 or 1 in all components, or in one of them."""
    for which in (slice(None), slice(0, 1)):
        case = losing_case(7, density, n_rows=10, rate=0.6, marked=0.3, link="sigmoid")
        one = case.density.distributions_[2]
        table = one.form.table.copy()
        with np.errstate(divide="ignore"):
            table[:-1, which] = np.log(1 - share) + np.log(1 / (len(table) - 1))
            table[-1, which] = np.log(share)
        changed = one.with_table(table)
        case.density.distributions_ = (
            *case.density.distributions_[:2], changed, *case.density.distributions_[3:],
        )  # fmt: skip
        expectation = under(case, "all")
        for name, values in answers(expectation, case.rows, case.lost).items():
            assert np.isfinite(values[:, 0] if name == "lost" else values).all() or name == "lost"
        leaves = expectation.leaf_probabilities(expectation.evidence_of(case.rows, case.lost))
        sums = np.add.reduceat(leaves.toarray(), case.ensemble.leaf_start[:-1], axis=1)
        np.testing.assert_allclose(sums, 1.0, atol=1e-9)


@pytest.mark.parametrize(
    "density", [kh.Mixture(2, n_init=1), kh.LatentTree(2), kh.GaussianMixture(2)]
)
def test_columns_that_were_always_missing(density):
    import xgboost as xgb

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    X[:, 1] = np.nan
    X[rng.random(300) < 0.2, 2] = np.nan
    model = xgb.XGBRegressor(n_estimators=5, max_depth=3).fit(X, X[:, 0] + X[:, 3])
    robust = kh.wrap(model, X, density=density, correction=False)
    rows = X[:20].copy()
    rows[::2, [2, 3]] = np.nan
    for lost in (None, np.isnan(rows) & (np.arange(20) % 3 == 0)[:, None]):
        assert np.isfinite(robust.predict(rows, lost)).all()
        assert np.isfinite(robust.predict(rows, lost, return_std=True)[1]).all()


def test_forty_missing_nullable_columns(wide):
    """More hypotheses than draws of a word: memory and time stay within bounds."""
    import time

    from sklearn.ensemble import HistGradientBoostingClassifier

    density, rows = wide
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 60))
    X[rng.random((500, 60)) < 0.1] = np.nan
    model = HistGradientBoostingClassifier(max_iter=10).fit(X, np.nansum(X, axis=1) > 0)
    ensemble = read(model)
    rows = np.tile(rows, (50, 1))
    rows[:, :40] = np.nan
    reading = Reading("infer", LossPrior(nothing=0.2, column=0.2))
    expectation = Expectation.of(ensemble, density, reading=reading)
    start = time.perf_counter()
    evidence = expectation.evidence_of(rows)
    mean, error = expectation.predict(evidence)
    assert np.isfinite(mean).all() and np.isfinite(error).all()
    assert np.isfinite(expectation.margin(evidence)[0]).all()
    assert time.perf_counter() - start < 60
    generic = Expectation.of(ensemble, density, "monte-carlo", reading=reading)
    part = generic.evidence_of(rows[:20])
    assert np.isfinite(generic.leaf_probabilities(part).data).all()


def test_priors_that_are_none():
    for wrong in ({"nothing": 1.2}, {"nothing": 0.6, "column": 0.6}, {"a": 0.0}, {"b": np.inf},
                  {"column": -0.1}, {"a": np.nan}):  # fmt: skip
        with pytest.raises(InvalidInput, match="LossPrior"):
            LossPrior(**wrong)
    assert LossPrior(nothing=0.7, column=0.3).scattered == 0.0


# ---- one NaN in a column of the training table --------------------------------------------------


@pytest.fixture(scope="module", params=[8, 30])
def planted(request):
    """A classifier, a density without and one with a NaN in 5,000 rows, and rows without column 0.

    Columns depend on each other: three groups of them have something in common.
    """
    import xgboost as xgb

    n_columns, rng = request.param, np.random.default_rng(request.param)
    group = np.arange(n_columns) % 3
    z = rng.normal(size=(7000, 3))
    X = 0.8 * z[:, group] + 0.6 * rng.normal(size=(7000, n_columns))
    chance = 1 / (1 + np.exp(-2 * X[:, 0] - X[:, 1] + 0.5 * X[:, 2]))
    y = (rng.random(7000) < chance).astype(int)
    train, test = X[:5000], X[5000:].copy()
    model = xgb.XGBClassifier(n_estimators=40, max_depth=4, n_jobs=1).fit(train, y[:5000])
    with_nan = train.copy()
    with_nan[17, 0] = np.nan
    test[:, 0] = np.nan

    def wrapped(table, prior, lost=None):
        density = kh.Mixture(16, n_init=1, max_iter=60, random_state=0)
        robust = kh.wrap(model, table, density=density, correction=False)
        found = {}
        for name, each in prior.items():
            expectation = Expectation.of(
                robust.ensemble_, robust.density_, reading=Reading("infer", each)
            )
            evidence = expectation.evidence_of(test, lost)
            p = expectation.rough.predict(evidence)[0][:, 0]
            loss = -np.log(np.where(y[5000:] == 1, p, 1 - p)).mean()
            nullable = np.array([v.nullable for v in robust.columns_.variables])
            chance = lost_probability(robust.density_, evidence, nullable)[:, 0].mean()
            found[name] = float(loss), float(chance)
        return found

    # Two fits of a density differ more than one NaN makes a difference.
    without, _ = wrapped(train, {"": None})[""]
    marked, _ = wrapped(with_nan, {"": None}, np.isnan(test))[""]
    return min(without, marked), wrapped(with_nan, PRIORS)


@pytest.mark.slow
@pytest.mark.parametrize("prior", PRIORS)
def test_one_nan_in_training_does_not_hide_the_loss_of_a_column(planted, prior):
    without, found = planted
    loss, lost = found[prior]
    print(f"{prior}: log loss {loss:.4f}, without the NaN {without:.4f}; P(lost) {lost:.4f}")
    assert loss <= 1.01 * without
    assert lost > 0.9
