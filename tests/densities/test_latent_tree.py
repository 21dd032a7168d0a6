"""LatentTree against enumeration, its slow twin, its circuit, and published benchmarks."""

import itertools
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from tests.densities.made_tables import one_hot_table

from knothole.columns.columns import Columns, Evidence
from knothole.densities.base import Within
from knothole.densities.em import EncodedRows
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.latent_tree.em import LOST, TreeParameters
from knothole.densities.mixture.density import Factorized
from knothole.densities.storage import FORMAT, VERSION
from knothole.densities.univariate.packed import pack
from knothole.errors import DamagedFile, InvalidInput
from knothole.files import read_container, write_container

MISSING = np.nan


def mixed_table(rows=240, seed=0):
    """Continuous, categorical, integer, zero-inflated; dependent; a fifth of it missing values."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, rows)
    table = pd.DataFrame({
        "size": rng.normal(2.0 * group, 1.0),
        "kind": pd.Categorical(np.where(rng.random(rows) < 0.8, group, 0), categories=[0, 1, 2]),
        "number": rng.poisson(2 + 3 * group).astype(float),
        "rain": np.where(rng.random(rows) < 0.4, 0.0, rng.exponential(1 + group)),
        "late": pd.Categorical(np.where(group + rng.normal(size=rows) > 1, "yes", "no")),
    })  # fmt: skip
    return table.mask(rng.random(table.shape) < 0.2)


def fitted(X, n_states=3, columns=None, **options):
    options = {"random_state": 0, "max_iter": 10} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LatentTree(n_states, **options).fit(X, columns=columns)


@pytest.fixture(scope="module")
def mixed():
    return fitted(mixed_table())


def log_p_by_enumeration(density, terms):
    """Sum over all latents at once; also p(all latents | row)."""
    n_variables = len(density.parent_)
    paths = list(itertools.product(range(density.states_), repeat=n_variables))
    joint = np.empty((len(terms[0]), len(paths)))
    for i, z in enumerate(paths):
        joint[:, i] = np.log(density.prior_[z[density.order_[0]]])
        for v in range(n_variables):
            joint[:, i] += terms[v][:, z[v]]
            if density.parent_[v] >= 0:
                joint[:, i] += np.log(density.transition_[v, z[density.parent_[v]], z[v]])
    log_p = np.logaddexp.reduce(joint, axis=1)
    return log_p, np.exp(joint - log_p[:, None]), np.array(paths)


# ---- evaluation -----------------------------------------------------------------------------


def test_log_p_is_the_sum_over_all_latents(mixed):
    evidence = mixed.evidence(mixed_table())
    by_hand, _, _ = log_p_by_enumeration(mixed, mixed.terms(evidence))
    np.testing.assert_allclose(mixed.log_evidence(evidence), by_hand, rtol=1e-10)
    np.testing.assert_allclose(mixed.combine(mixed.terms(evidence)), by_hand, rtol=1e-10)


def test_log_p_of_one_hot_groups_observed_in_part():
    X, columns = one_hot_table()
    density = fitted(X, columns=columns)
    evidence = density.evidence(X)
    assert any(True for _ in evidence.restricted())
    by_hand, _, _ = log_p_by_enumeration(density, density.terms(evidence))
    np.testing.assert_allclose(density.log_evidence(evidence), by_hand, rtol=1e-10)


def test_circuit_agrees(mixed):
    """Points, missing values and regions."""
    circuit = mixed.to_circuit()
    table = mixed_table(seed=5)
    evidence = mixed.evidence(table)
    np.testing.assert_allclose(
        circuit.log_evidence(evidence), mixed.log_evidence(evidence), rtol=1e-10, atol=1e-10
    )
    evidence = Evidence(np.where([True, False, True, True, False], MISSING, evidence.points))
    for within in (
        [Within(0, -1.0, 2.0)],
        [Within(0, 0.5, np.inf), Within(2, 3.0, 8.0)],
        [Within(3, 0.0, 1e-300), Within(0, -np.inf, 1.0)],
    ):
        np.testing.assert_allclose(
            circuit.log_evidence(evidence, within),
            mixed.log_evidence(evidence, within),
            rtol=1e-10,
            atol=1e-10,
        )


def test_circuit_agrees_on_one_hot_groups_and_with_a_target():
    X, columns = one_hot_table()
    density = fitted(X, columns=columns)
    np.testing.assert_allclose(
        density.to_circuit().score_samples(X), density.score_samples(X), rtol=1e-10
    )
    target = np.where(np.arange(len(X)) % 3 == 0, "a", "b")
    density = LatentTree(2, random_state=0).fit(X, columns=columns, target=target)
    np.testing.assert_allclose(
        density.to_circuit().score_samples(X, target=target),
        density.score_samples(X, target=target),
        rtol=1e-10,
    )


FAMILIES = {"size": "gaussian", "rain": "atoms"}


def test_one_state_is_independence():
    table = mixed_table()
    alone = fitted(table, n_states=1, strength=1.0, families=FAMILIES)
    apart = Factorized(families=FAMILIES).fit(table)
    np.testing.assert_allclose(alone.score_samples(table), apart.score_samples(table), rtol=1e-9)


def test_one_state_is_independence_of_one_hot_groups_observed_in_part():
    X, columns = one_hot_table()
    alone, apart = fitted(X, n_states=1, columns=columns), Factorized().fit(X, columns=columns)
    np.testing.assert_allclose(alone.score_samples(X), apart.score_samples(X), atol=1e-4)


def test_nothing_to_learn_stays_factorized():
    """Not just independence, but the families that fit each column alone."""
    X = np.random.default_rng(0).exponential(size=(400, 3))
    density, apart = LatentTree(random_state=0).fit(X), Factorized().fit(X)
    assert density.states_ == 1
    np.testing.assert_allclose(density.score_samples(X), apart.score_samples(X), rtol=1e-9)


def test_a_prior_without_bounds_is_independence():
    table = mixed_table()
    density = fitted(table, n_states=4, strength=1e9, families=FAMILIES)
    apart = Factorized(families=FAMILIES).fit(table)
    # The centre of a distribution's prior is smoothed by a row, so it is not quite the marginal.
    np.testing.assert_allclose(density.score_samples(table), apart.score_samples(table), atol=0.05)


def hub(children):
    """One parent of many children, two groups far apart, latents that hardly ever change state."""
    rng = np.random.default_rng(0)
    X = 10.0 * rng.integers(0, 2, (400, 1)) + rng.normal(size=(400, children + 1))
    density = fitted(X, n_states=2, strength=0.01)
    density.parent_ = np.append(-1, np.zeros(children, dtype=np.int64))
    density.order_ = np.arange(children + 1)
    density.prior_ = np.array([0.5, 0.5])
    density.transition_ = np.full((children + 1, 2, 2), 1e-12)
    density.transition_[:, [0, 1], [0, 1]] = 1 - 1e-12
    density.transition_[0] = 0.5
    return density


def test_states_lost_to_underflow_are_noticed():
    """The parent prefers one state by exp(845), its 40 children the other by 1e12 each.

    So the children prevail, in the state that underflows beside it: log space takes over.
    """
    density = hub(40)
    evidence = Evidence(np.vstack([np.append(-50.0, np.full(40, 10.0)), np.full(41, 10.0)]))
    terms = density.terms(evidence)
    assert LOST - 500 < -abs(terms[0][0, 0] - terms[0][0, 1]) < -745 < LOST
    by_scaling = density._parameters.log_likelihood(pack(density.distributions_, evidence))
    assert np.isnan(by_scaling).tolist() == [True, False]
    expected = density.combine(terms)
    np.testing.assert_allclose(density.log_evidence(evidence), expected, rtol=1e-12)


def test_impossible_rows():
    density = fitted(mixed_table())
    terms = density.terms(density.evidence(mixed_table()))
    terms[1][:] = -np.inf
    assert np.isneginf(density.combine(terms)).all()
    points = np.full((2, 5), MISSING)
    points[1, 0] = np.inf  # no value of a Gaussian
    assert density.log_evidence(Evidence(points)).tolist() == [pytest.approx(0), -np.inf]
    with pytest.raises(InvalidInput, match="row 1 has probability 0"):
        density.complete_points(Evidence(points), 2, 0)


# ---- learning -------------------------------------------------------------------------------


def test_expected_statistics_match_enumeration(mixed):
    table = mixed_table()[:50]
    evidence = mixed.evidence(table)
    weight = np.random.default_rng(0).uniform(0.5, 2, 50)
    packed = pack(mixed.distributions_, evidence)
    found = mixed._parameters.expect(EncodedRows(packed, weight))
    (roots, pairs), statistics = found.latents, found.distributions
    log_p, posterior, paths = log_p_by_enumeration(mixed, mixed.terms(evidence))
    mass = posterior * weight[:, None]
    np.testing.assert_allclose(found.log_likelihood, weight @ log_p, rtol=1e-10)
    for v, parent in enumerate(mixed.parent_):
        for i, j in itertools.product(range(3), repeat=2):
            chosen = paths[:, v] == j
            if parent >= 0:
                pair = mass[:, chosen & (paths[:, parent] == i)].sum()
                np.testing.assert_allclose(pairs[v, i, j], pair, atol=1e-10)
            elif i == 0:
                np.testing.assert_allclose(roots[j], mass[:, chosen].sum(), atol=1e-10)
        for j in range(3):
            share = mass[:, paths[:, v] == j].sum(axis=1)
            encoded = mixed.distributions_[v].encode(evidence.points[:, v])
            seen = encoded.code >= 0
            for code in range(mixed.distributions_[v].n_codes):
                here = share[encoded.code == code].sum()
                np.testing.assert_allclose(statistics[v].count[code, j], here, atol=1e-10)
            if packed.slot[v] >= 0:
                first = share[seen] @ encoded.z[seen]
                np.testing.assert_allclose(statistics[v].first[j], first, atol=1e-9)


def test_weights_are_repetitions(mixed):
    evidence = mixed.evidence(mixed_table()[:30])
    weight = np.random.default_rng(0).integers(1, 4, 30)
    packed = pack(mixed.distributions_, evidence)
    weighted = mixed._parameters.expect(EncodedRows(packed, weight.astype(float)))
    again = packed[np.repeat(np.arange(30), weight)]
    repeated = mixed._parameters.expect(EncodedRows(again, np.ones(len(again))))
    np.testing.assert_allclose(weighted.latents[1], repeated.latents[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(weighted.log_likelihood, repeated.log_likelihood, rtol=1e-12)


def log_prior(parameters, strength):
    """What the objective adds to the log likelihood, up to a constant."""
    edges = np.delete(parameters.transition, parameters.tree.order[0], axis=0)
    latents = np.log(parameters.prior).sum() + np.log(edges).sum()
    distributions = sum(one.log_prior(strength) for one in parameters.distributions)
    return float(strength / len(parameters) * latents + distributions)


@pytest.mark.parametrize("strength", [0.0, 0.3, 20.0])
@pytest.mark.parametrize("kind", ["mixed", "one_hot"])
def test_a_full_pass_never_lowers_the_objective(kind, strength):
    if kind == "mixed":
        X, columns = mixed_table(), None
    else:
        X, columns = one_hot_table()
    density = fitted(X, columns=columns, max_iter=1)
    evidence = density.evidence(X)
    rng = np.random.default_rng(1)
    rows = EncodedRows(pack(density.distributions_, evidence), rng.uniform(0.2, 2, len(X)))
    tree = density._parameters.tree
    parameters = TreeParameters.even(tree, density.distributions_, density.states_, 0.9)
    trace = []
    for _ in range(25):
        found = parameters.expect(rows)
        trace.append(found.log_likelihood + log_prior(parameters, strength))
        objective, parameters = parameters.stepped(found, strength)
        assert objective == pytest.approx(trace[-1])
    assert np.diff(trace).min() > -1e-7 * abs(trace[-1])
    assert trace[-1] > trace[0] + 1


def test_learning_finds_structure():
    """Well above independence on rows it has not seen, and near the truth."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 4000)
    p = rng.uniform(0.05, 0.95, (3, 8))
    X = (rng.random((4000, 8)) < p[group]).astype(float)
    columns = Columns.infer(X, categorical=range(8))
    truth = np.log(np.prod(np.where(X[:, None] == 1, p, 1 - p), axis=2).mean(axis=1))
    with_missing = X[:3000].copy()
    with_missing[rng.random(with_missing.shape) < 0.3] = MISSING
    density = LatentTree(random_state=0).fit(with_missing, columns=columns)
    apart = Factorized().fit(with_missing, columns=columns)
    assert density.states_ > 1
    assert density.score(X[3000:]) > apart.score(X[3000:]) + 0.3
    assert density.score(X[3000:]) > truth[3000:].mean() - 0.06


def test_independent_columns_stay_independent():
    """Nothing to be found: the number of states says so, and nothing is lost."""
    X = np.random.default_rng(0).normal(size=(600, 5))
    density = LatentTree(random_state=0).fit(X[:400])
    assert density.score(X[400:]) > Factorized().fit(X[:400]).score(X[400:]) - 0.02


def test_stops_for_lack_of_passes_with_a_warning():
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        LatentTree(4, max_iter=2, tol=0.0, random_state=0).fit(mixed_table())


def test_progress_is_reported(capsys):
    LatentTree(random_state=0, verbose=True).fit(mixed_table())
    assert (
        "[LatentTree] 32 states, strength 1.5: best held-out log p of 4" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_states": 0}, "n_states must be 'auto' or a whole number from 1 on; got 0"),
        ({"n_states": 2.5}, "n_states must be"),
        ({"strength": -1}, "strength must be 'auto' or a number from 0 on; got -1"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"n_init": "many"}, "n_init must be"),
        ({"tol": np.nan}, "tol must be"),
        ({"validation_fraction": 1}, "validation_fraction must be a number from 0 on, below 1"),
        ({"families": {"colour": "gaussian"}}, "families: no variable 'colour'"),
        ({"families": {"size": "categorical"}}, "'size' is continuous"),
    ],
)
def test_parameters_are_checked(options, message):
    with pytest.raises(InvalidInput, match=message):
        LatentTree(**options).fit(mixed_table())


def test_families_can_be_named():
    density = fitted(mixed_table(), families={"size": "histogram"})
    assert density.distributions_[0].family == "histogram"


def test_several_starts_and_no_held_out_rows():
    table = mixed_table()
    several = fitted(table, n_init=3)
    assert np.isfinite(several.score(table))
    without = fitted(table, validation_fraction=0.0)
    assert without.strength_ == 1.5
    assert np.isfinite(without.score(table))


# ---- storage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("parent", lambda a: a[::-1].copy(), "tree|order"),
        ("order", lambda a: np.zeros_like(a), "permutation"),
        ("order", lambda a: a[::-1].copy(), "tree|order"),
        ("transition", lambda a: a[:, :2], "shape"),
        ("transition", lambda a: -a, "positive"),
        ("transition", lambda a: a / 2, "add up"),
        ("prior", lambda a: a[::-1].copy(), "prior"),
        ("prior", lambda a: a[:1], "shape|prior"),
    ],
)
def test_files_that_do_not_fit_together(mixed, tmp_path, name, change, message):
    path = tmp_path / "tree"
    mixed.save(path)
    header, arrays = read_container(path, FORMAT, VERSION)
    write_container(path, header, arrays | {name: change(arrays[name])})
    with pytest.raises(DamagedFile, match=message):
        LatentTree.load(path)


# ---- benchmarks -----------------------------------------------------------------------------

# Test log-likelihood to be reached, the most that missing values in training may cost, states.
DEBD = {"nltcs": (-6.02, 0.15, 32), "plants": (-13.5, 0.6, 16), "jester": (-53.0, 1.0, 16)}


def data(*parts, **options):
    root = os.environ.get("KNOTHOLE_DATA")
    if root is None:
        pytest.skip("KNOTHOLE_DATA is not set: the folder with the benchmarks' data")
    return np.loadtxt(Path(root, *parts), delimiter=",", **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEBD)
def test_benchmarks_of_density_estimation(name, record_property):
    """Learned from the training rows alone, complete and with 30 % of their entries removed."""
    least, most_lost, states = DEBD[name]
    X, test = (data("debd", name, f"{name}.{part}.data") for part in ("train", "test"))
    columns = Columns.infer(X, categorical=range(X.shape[1]))
    missing_mask = np.random.default_rng(0).random(X.shape) < 0.3
    complete = LatentTree(states, random_state=0).fit(X, columns=columns).score(test)
    masked = np.where(missing_mask, MISSING, X)
    with_missing = LatentTree(states, random_state=0).fit(masked, columns=columns).score(test)
    record_property("complete", complete)
    record_property("with_missing", with_missing)
    print(f"{name}: {complete:.4f}, with 30 % missing values {with_missing:.4f}")
    assert complete > least
    assert with_missing > complete - most_lost
