"""Mixtures of products: EM, its starts, the choice of size, and the compiled sums."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_estimator

from knothole.columns.columns import Columns
from knothole.densities.base import LatentDensity
from knothole.densities.em import EncodedRows, Training, WeightedRows, train
from knothole.densities.held_out import FEW_ROWS
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture import density as learner
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.densities.mixture.em import ProductMixture, assign, comparable
from knothole.densities.univariate.families import start_distribution
from knothole.densities.univariate.packed import pack
from knothole.errors import InvalidInput

MISSING = np.nan


def clusters(rows=400, missing_rate=0.2, seed=0):
    """Two groups that differ in every column, of all kinds; a one-hot group is observed in part."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, rows)
    colour = np.where(rng.random(rows) < 0.8, 2 * group, 1)
    X = np.column_stack([
        rng.normal(4.0 * group, 1.0),
        np.where(rng.random(rows) < 0.3, 0.0, rng.exponential(1.0 + 3 * group)),
        rng.poisson(1 + 5 * group),
        *np.eye(3)[colour].T,
    ])  # fmt: skip
    columns = Columns.infer(X, one_hot={"colour": [3, 4, 5]})
    X[rng.random(X.shape) < missing_rate] = MISSING
    return X, columns


def packed_and_distributions(X, columns, n_states, families=()):
    evidence = columns.evidence(columns.matrix(X))
    one = np.ones(len(X))
    distributions = tuple(
        start_distribution(variable, evidence.points[:, v], one, n_states, dict(families).get(v))
        for v, variable in enumerate(columns.variables)
    )
    return evidence, distributions, pack(distributions, evidence)


def spread(components, packed, strength, seed=0):
    """Components that differ: a step from statistics with noise."""
    rng = np.random.default_rng(seed)
    found = components.expect(EncodedRows(packed, np.ones(len(packed))))
    noisy = [
        replace(part, count=part.count * rng.uniform(0.2, 1.8, part.count.shape))
        for part in found.distributions
    ]
    return components.maximised(replace(found, distributions=noisy), strength)


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("family", [None, "gaussian", "histogram"])
def test_em_never_lowers_its_objective(strength, family):
    X, columns = clusters(missing_rate=0.4)
    families = {} if family is None else {0: family, 1: family}
    _, distributions, packed = packed_and_distributions(X, columns, 5, families)
    start = spread(ProductMixture(np.full(5, 0.2), distributions), packed, strength)
    rows = EncodedRows(packed, np.linspace(0.5, 2, len(X)))
    training = Training(40, tol=0, n_init=1, fraction=0, may_mask=True, seed=0, report=print)
    total = rows.weight.sum()
    run = train(lambda at: at.stepped(at.expect(rows), strength), start, strength, total, training)
    assert len(run.objective) > 5
    gains = np.diff(run.objective)
    assert (gains > -1e-9 * np.abs(run.objective[0])).all()
    assert gains.sum() > 10


def test_a_fit_never_lowers_its_objective():
    X, columns = clusters()
    density = Mixture(3, strength=1.0, tol=1e-6, validation_fraction=0, random_state=0)
    density.fit(X, columns=columns)
    assert density.n_iter_ == len(density.objective_) > 3
    assert (np.diff(density.objective_) > -1e-8).all()


def test_compiled_sums_match_the_slow_twin():
    X, columns = clusters()
    density = Mixture(4, random_state=0).fit(X, columns=columns)
    evidence = density.evidence(X)
    assert evidence.allowed is not None  # blocks observed in part are among them
    slow = LatentDensity.log_evidence(density, evidence)
    log_p, share = density.responsibilities(evidence)
    np.testing.assert_allclose(log_p, slow, rtol=1e-12, atol=1e-12)
    terms = np.add.reduce(density.terms(evidence)) + np.log(density.weights_)
    np.testing.assert_allclose(share, np.exp(terms - slow[:, None]), atol=1e-12)
    np.testing.assert_allclose(share.sum(axis=1), 1, atol=1e-12)


def test_statistics_match_the_slow_twin():
    X, columns = clusters()
    evidence, distributions, packed = packed_and_distributions(X, columns, 3)
    components = spread(ProductMixture(np.array([0.2, 0.5, 0.3]), distributions), packed, 1.0)
    weight = np.random.default_rng(0).uniform(0, 2, len(X))
    found = components.expect(EncodedRows(packed, weight))
    log_p, share = components.responsibilities(packed)
    np.testing.assert_allclose(found.log_likelihood, weight @ log_p, rtol=1e-12)
    share = share * weight[:, None]
    np.testing.assert_allclose(found.latents[0], share.sum(axis=0), rtol=1e-12)
    for v, (distribution, statistics) in enumerate(
        zip(components.distributions, found.distributions, strict=True)
    ):
        encoded = distribution.encode(evidence.points[:, v])
        count = np.zeros((distribution.n_codes, 3))
        seen = encoded.code >= 0
        np.add.at(count, encoded.code[seen], share[seen])
        for variable, rows, allowed in evidence.restricted():
            if variable == v:  # a set's share goes to its levels by their probabilities
                level = allowed[:, :, None] * np.exp(distribution.table)
                count += (share[rows][:, None] * level / level.sum(1, keepdims=True)).sum(0)
        np.testing.assert_allclose(statistics.count, count, rtol=1e-10, atol=1e-12)
        z = np.where(seen, encoded.z, 0.0)
        np.testing.assert_allclose(statistics.first, z @ share, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(statistics.second, z**2 @ share, rtol=1e-10, atol=1e-10)


def test_one_gaussian_component_is_maximum_likelihood():
    X = np.random.default_rng(0).normal(3, 2, size=(500, 1))
    density = Mixture(1, strength=0.0).fit(X)
    truth = stats.norm(X.mean(), X.std())
    np.testing.assert_allclose(density.score_samples(X), truth.logpdf(X[:, 0]), rtol=1e-9)


def test_finds_components():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 3000)
    X = np.array([[0, 0, 0], [6, 0, -6], [0, 6, 6]])[group] + rng.normal(size=(3000, 3))
    X[rng.random(X.shape) < 0.3] = MISSING
    density = Mixture(3, random_state=0).fit(X)
    np.testing.assert_allclose(np.sort(density.weights_), np.full(3, 1 / 3), atol=0.05)
    means = np.stack(
        [one.location + one.scale * one.mean for one in density.distributions_],
        axis=1,
    )
    ordered = means[np.lexsort((means[:, 1], means[:, 0]))]
    np.testing.assert_allclose(ordered, [[0, 0, 0], [0, 6, 6], [6, 0, -6]], atol=0.35)


@pytest.mark.parametrize("rows", [500, FEW_ROWS + 500])
def test_auto_finds_dependence_and_independence(rows):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    assert len(Mixture(random_state=0).fit(X).weights_) == 1
    X[:, 1] = np.where(rng.random(rows) < 0.5, -1, 1) * 3 + 0.5 * X[:, 1]
    X[:, 2] = np.sign(X[:, 1]) * 2 + 0.5 * X[:, 2]
    density = Mixture(random_state=0).fit(X)
    assert len(density.weights_) > 1
    new = X[:100] * 1.0
    assert density.score(new) > Factorized().fit(X).score(new) + 0.5


def test_seeds_are_apart_despite_missing_values():
    rng = np.random.default_rng(0)
    centre = np.array([[0.0, 0, 0], [9, 9, 0], [0, 9, 9], [9, 0, 9]])
    group = rng.integers(0, 4, 400)
    X = centre[group] + 0.1 * rng.normal(size=(400, 3))
    columns = Columns.infer(X)
    value = comparable(X, columns.variables)
    value[rng.random(X.shape) < 0.1] = MISSING
    nearest = assign(value, np.zeros(3, bool), np.ones(400), 4, np.random.default_rng(1))
    complete = ~np.isnan(value).any(axis=1)
    table = pd.crosstab(group[complete], nearest[complete]).to_numpy()
    assert (table > 0).sum() == 4


def test_rows_that_no_component_can_have():
    """Log p is -inf, responsibilities are the weights; nothing is NaN."""
    table = pd.DataFrame({"c": pd.Categorical([0, 1] * 20, categories=[0, 1, 2])})
    density = Mixture(2, strength=0.0, validation_fraction=0, random_state=0).fit(table)
    log_p, share = density.responsibilities(density.evidence(table[:1].assign(c=[2])))
    assert log_p[0] == -np.inf
    np.testing.assert_array_equal(share[0], density.weights_)


def test_responsibilities_of_far_rows_are_shares():
    X = np.random.default_rng(0).normal(size=(300, 2))
    density = Mixture(3, random_state=0).fit(X)
    far = np.array([[1e200, 0.0], [1e8, -1e8], [MISSING, MISSING]])
    log_p, share = density.responsibilities(density.evidence(far))
    np.testing.assert_allclose(share.sum(axis=1), 1)
    assert not np.isnan(log_p).any() and log_p[2] == pytest.approx(0, abs=1e-12)


def test_families_can_be_named():
    X = np.random.default_rng(0).normal(size=(100, 2))
    density = Mixture(2, families={"x1": "histogram"}, random_state=0).fit(X)
    assert [one.family for one in density.distributions_] == [
        "gaussian",
        "histogram",
    ]


def test_rows_packed_to_pass_are_those_packed_to_stay():
    X, columns = clusters()
    density = Mixture(2, random_state=0).fit(X, columns=columns)
    for some in (X, X[::-1][:50], X[:, :] * np.nan, X[:0]):
        evidence = columns.evidence(columns.matrix(some))
        stay, passing = (
            pack(density.distributions_, evidence, passing=own) for own in (False, True)
        )
        for name in ("code", "z", "base", "slot", "offset"):
            one, other = getattr(stay, name), getattr(passing, name)
            np.testing.assert_array_equal(one, other, err_msg=name)
            assert one.dtype == other.dtype and one.shape == other.shape
        log_p, share = density.responsibilities(evidence)
        np.testing.assert_array_equal(share, density._parameters.responsibilities(stay)[1])
        np.testing.assert_array_equal(log_p, density._parameters.responsibilities(stay)[0])


def test_weights_count_as_rows():
    X, columns = clusters(rows=60)
    weight = np.random.default_rng(1).integers(1, 4, 60)
    density = Factorized(families={"x0": "gaussian", "x1": "gaussian", "x2": "integer"})
    weighted = clone(density).fit(X, columns=columns, sample_weight=weight)
    repeated = clone(density).fit(np.repeat(X, weight, axis=0), columns=columns)
    np.testing.assert_allclose(weighted.score_samples(X), repeated.score_samples(X), atol=1e-9)


def test_families_are_chosen_by_what_they_do_held_out():
    """Histograms for shapes that Gaussians miss, Gaussians for columns that follow each other."""
    rng = np.random.default_rng(0)
    uniform = rng.random((2000, 3))
    uniform[:, 1] += uniform[:, 0] > 0.5
    families = {one.family for one in Mixture(8, random_state=0).fit(uniform).distributions_}
    assert families == {"histogram"}
    line = rng.normal(size=(2000, 1)) + 0.1 * rng.normal(size=(2000, 3))
    families = {one.family for one in Mixture(8, random_state=0).fit(line).distributions_}
    assert families == {"gaussian"}


# Where scikit-learn asks for words of its own, or for objects that are no table.
OWN_WORDS = {
    "check_n_features_in_after_fitting": "the message names the columns",
    "check_sample_weights_not_an_array": "only tables of known libraries are read",
    "check_complex_data": "the message is of columns",
    "check_dtype_object": "a dictionary is neither a number nor a category",
    "check_estimators_empty_data_messages": "the message is of columns",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("density", [Factorized(random_state=0), Mixture(2, random_state=0)])
def test_scikit_learn_checks(density):
    results = check_estimator(density, expected_failed_checks=OWN_WORDS, on_skip=None, on_fail=None)
    failed = [result["check_name"] for result in results if result["status"] == "failed"]
    assert failed == []


def test_too_few_steps_are_told():
    X, columns = clusters()
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        density = Mixture(4, max_iter=1, strength=1.0, random_state=0).fit(X, columns=columns)
    assert not density.converged_ and density.n_iter_ == 1


def test_defaults_do_not_warn():
    X, columns = clusters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Mixture(random_state=0).fit(X, columns=columns)


def test_progress(capsys):
    X, columns = clusters(rows=100)
    Mixture(random_state=0, verbose=True).fit(X, columns=columns)
    assert "[Mixture] 2 components, strength 1: best held-out log p of 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "parameters",
    [{"n_components": 0}, {"n_components": 1.5}, {"n_components": "many"}, {"strength": -1},
     {"strength": np.nan}, {"max_iter": 0}, {"n_init": 0}, {"tol": -1e-3},
     {"validation_fraction": 1.0}, {"families": {"nobody": "gaussian"}},
     {"families": {"x0": "gamma"}}],
)  # fmt: skip
def test_parameters_are_checked(parameters):
    with pytest.raises(InvalidInput, match=next(iter(parameters))):
        Mixture(**parameters).fit(np.random.default_rng(0).normal(size=(30, 2)))


def test_families_are_compared_once_for_the_same_rows_and_again_for_others(monkeypatch):
    X, columns = clusters(400)
    evidence, times = columns.evidence(columns.matrix(X)), []
    training = Training(9, tol=1, n_init=3, fraction=0.1, may_mask=True, seed=0, report=print)

    def compared(*_):
        times.append(0)
        return {"a": "gaussian"}

    def chosen(points=evidence.points, weight=1.0, order=400, named=(), **changes):
        rows = WeightedRows(
            columns.variables, replace(evidence, points=points), np.full(400, weight),
            np.arange(order),
        )  # fmt: skip
        return learner.choose_families(rows, replace(training, **changes), dict(named))

    monkeypatch.setattr(learner, "_compared", compared)
    monkeypatch.setattr(learner, "_last_choices", {})
    for same in ({}, {}, {"n_init": 1}, {"max_iter": 200}, {"report": repr}):
        chosen(**same)["a"] = "changed by whoever asked"
        assert chosen(**same) == {"a": "gaussian"}
    assert len(times) == 1
    for other in (
        {"points": evidence.points + 1}, {"weight": 2.0}, {"order": 300}, {"seed": 1},
        {"fraction": 0.2}, {"tol": 2}, {"may_mask": False}, {"named": {"b": "histogram"}},
    ):  # fmt: skip
        before = len(times)
        chosen(**other)
        assert len(times) == before + 1, other
    chosen()
    assert len(times) == 10, "only the last ones are remembered"


def test_compared_families_are_what_they_were(monkeypatch):
    """The twin: what is remembered is what a comparison gives."""
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(400, 3)) + rng.normal(size=(400, 1)))
    fitted = []
    for remembered in ({}, None):
        if remembered is None:  # nothing ever is
            monkeypatch.setattr(learner, "_last_choices", NeverKept())
        else:
            monkeypatch.setattr(learner, "_last_choices", remembered)
        fitted.append([Mixture(4, random_state=0).fit(X), LatentTree(2, random_state=0).fit(X)])
    for one, other in zip(*fitted, strict=True):
        assert [type(e) for e in one.distributions_] == [type(e) for e in other.distributions_]
        assert (one.score_samples(X) == other.score_samples(X)).all()


class NeverKept(dict):
    """A dictionary that forgets."""

    def __contains__(self, key):
        return False
