"""Choosing a density: rows to choose by, scores, and what is kept."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from knothole.columns.columns import Column, Columns, Kind, OneHotGroup
from knothole.densities import search
from knothole.densities.em import Training, WeightedRows
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.held_out import RATE, hold_out, mean_and_error
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.densities.select import default_candidates, resolution
from knothole.densities.select import select as select_from
from knothole.errors import InvalidInput


class Failing(Factorized):
    """Cannot learn from anything."""

    def _fit(self, evidence, weight):
        raise ArithmeticError("the sky is falling")


def two_groups(n, seed=0):
    """Two columns that depend on each other."""
    rng = np.random.default_rng(seed)
    return rng.choice([-3.0, 3.0], size=(n, 1)) + 0.3 * rng.normal(size=(n, 2))


# ---- rows to choose by --------------------------------------------------------------------------


def test_held_out_rows_are_masked_at_random_where_the_table_is_complete():
    X = np.random.default_rng(0).normal(size=(2000, 5))
    (part,) = hold_out(X, Columns.infer(X))
    assert not np.intersect1d(part.train, part.held).size
    assert len(part.train) + len(part.held) == 2000
    assert np.array_equal(np.isnan(part.matrix), part.missing_mask)
    assert_allclose(part.matrix[~part.missing_mask], X[part.held][~part.missing_mask])
    rate = part.missing_mask.mean(axis=0)
    assert_allclose(rate, RATE, atol=4 * np.sqrt(RATE * (1 - RATE) / len(part.held)))


def test_held_out_rows_take_the_patterns_of_other_rows():
    """The first two columns are only ever missing together, in half of the rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2000, 3))
    X[rng.random(2000) < 0.5, :2] = np.nan
    (part,) = hold_out(X, Columns.infer(X))
    assert (part.missing_mask[:, 0] == part.missing_mask[:, 1]).all()
    assert part.missing_mask[np.isnan(X[part.held])].all()
    assert_allclose(part.missing_mask[:, 0].mean(), 0.75, atol=0.08)  # its own, or those put on top
    assert_allclose(part.missing_mask[:, 2].mean(), RATE, atol=0.08)


@pytest.mark.parametrize("n", [60, 4000])
def test_a_value_that_hardly_any_row_has_is_learned_from(n):
    """Few rows are held out in folds, and of many rows only some are looked at."""
    X = np.random.default_rng(0).normal(size=(n, 3))
    X[1:, 2] = np.nan
    for seed in range(4):
        parts = hold_out(X, Columns.infer(X), random_state=seed)
        for part in parts:
            assert 0 in part.train and 0 not in part.held
            assert len(part.matrix) == len(part.held) == len(part.missing_mask)
        assert len(np.unique(np.concatenate([part.held for part in parts]))) >= n / 6
    found = select_from([Factorized(random_state=0)], X, Columns.infer(X))
    assert np.isfinite(found.density.score(X))


def test_a_one_hot_group_is_masked_as_one_and_a_state_is_no_missing_value():
    rng = np.random.default_rng(2)
    X = np.column_stack([np.eye(3)[rng.integers(3, size=1200)], rng.normal(size=1200)])
    X[:200, 3] = np.nan
    columns = Columns(
        (*(Column(name, Kind.INTEGER) for name in "abc"), Column("d", nullable=True)),
        (OneHotGroup("abc", (0, 1, 2)),),
    )
    (part,) = hold_out(X, columns)
    assert (part.missing_mask[:, :3].all(axis=1) == part.missing_mask[:, :3].any(axis=1)).all()
    unrecorded = np.isnan(part.matrix[:, 3]) & ~part.missing_mask[:, 3]
    assert unrecorded.any() and (part.held[unrecorded] < 200).all()
    assert_allclose(part.missing_mask[:, 3].mean(), RATE, atol=0.12)


def test_few_rows_are_held_out_in_folds_and_very_few_not_at_all():
    X = np.random.default_rng(0).normal(size=(60, 2))
    folds = hold_out(X, Columns.infer(X))
    assert sorted(np.concatenate([fold.held for fold in folds])) == list(range(60))
    assert hold_out(X[:10], Columns.infer(X)) == []


def test_only_eligible_rows_are_held_out():
    X = np.random.default_rng(0).normal(size=(1200, 2))
    eligible = np.arange(1200) < 100
    (part,) = hold_out(X, Columns.infer(X), eligible=eligible)
    assert eligible[part.held].all() and len(part.held) + len(part.train) == 1200


def test_resolution():
    X = np.array([[1.0, 0.1, 3.0, 2.5], [7.0, 0.2, 3.0, np.nan], [9.0, 0.4, 3.0, 2.5]])
    columns = Columns(
        (Column("whole", Kind.INTEGER), Column("tenths"), Column("constant"), Column("one value"))
    )
    assert_allclose(resolution(X, columns), [1.0, 0.15, 1.0, 1.0])


# ---- scores -------------------------------------------------------------------------------------


def select(candidates, X, **options):
    return select_from(candidates, X, Columns.infer(X), **options)


def test_the_better_density_is_kept_and_fitted_on_all_rows():
    X = two_groups(400)
    candidates = [Factorized(random_state=0), Mixture(n_components=2, random_state=0)]
    selected = select(candidates, X)
    table = selected.selection_
    assert list(table.columns) == [
        "name", "metric", "value", "score", "behind", "error", "seconds", "chosen", "note",
    ]  # fmt: skip
    assert table["name"].tolist() == ["mixture", "independent"]
    assert table["chosen"].tolist() == [True, False]
    assert table["behind"][0] == 0 and table["behind"][1] > 4 * table["error"][1] > 0
    assert not hasattr(candidates[1], "weights_")
    again = Mixture(n_components=2, random_state=0).fit(X)
    assert_allclose(selected.density.score_samples(X), again.score_samples(X))


def test_the_error_of_a_difference_is_that_of_paired_rows():
    X = two_groups(1200)
    seen = {}

    def loss(density, part):
        seen[type(density)] = part.held + (0.0 if type(density) is Mixture else X[part.held, 0])
        return seen[type(density)]

    selected = select([Mixture(2, random_state=0), Factorized()], X, score=loss)
    difference = seen[Factorized] - seen[Mixture]
    if selected.selection_["name"][0] == "independent":
        difference = -difference
    second = selected.selection_.iloc[1]
    assert_allclose(second["behind"], difference.mean())
    assert_allclose(second["error"], difference.std() / np.sqrt(len(difference)))


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_choice_does_not_depend_on_units(unit):
    """A point mass has a probability, a Gaussian a density: only in common units they compare."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((600, 2)) < 0.5, 0.0, rng.normal(3, 1, size=(600, 2)))
    candidates = {
        "atoms": Factorized(),
        "gaussian": Factorized(families={"x0": "gaussian", "x1": "gaussian"}),
    }
    first = select(candidates, X).selection_
    second = select(candidates, X * unit).selection_
    assert first["name"].tolist() == second["name"].tolist() == ["atoms", "gaussian"]
    assert_allclose(first["score"], second["score"], rtol=1e-3)


def test_rows_of_no_weight_have_no_say():
    X = two_groups(600)
    weight = np.r_[np.ones(500), np.zeros(100)]

    def loss(density, part):
        own = 0.0 if type(density) is Factorized else 1.0
        return np.where(part.held >= 500, 1e9 * (1 - own), own)

    selected = select(
        [Mixture(2, random_state=0), Factorized()], X, score=loss, sample_weight=weight
    )
    assert selected.selection_["name"].tolist() == ["independent", "mixture"]
    assert selected.selection_["score"].tolist() == [0.0, -1.0]


# ---- what can go wrong --------------------------------------------------------------------------


def test_a_candidate_that_fails_is_recorded():
    table = select([Failing(), Factorized()], two_groups(100)).selection_
    assert table["name"].tolist() == ["independent", "Failing"]
    assert table["note"][1] == "failed: the sky is falling" and np.isnan(table["score"][1])


def test_a_loss_of_nan_is_a_failure():
    def loss(density, part):
        return np.full(len(part.held), np.nan if type(density) is Mixture else 1.0)

    table = select(
        [Mixture(2, random_state=0), Factorized()], two_groups(100), score=loss
    ).selection_
    assert table["chosen"].tolist() == [True, False] and table["name"][0] == "independent"
    assert "NaN" in table["note"][1]


def test_if_all_fail_all_reasons_are_told():
    with pytest.raises(InvalidInput, match="Failing: failed: the sky is falling"):
        select([Failing()], two_groups(100))


@pytest.mark.parametrize(
    ("candidates", "message"), [([], "at least one"), ([3], "must be densities; got int")]
)
def test_candidates_are_checked(candidates, message):
    with pytest.raises(InvalidInput, match=message):
        select(candidates, two_groups(100))


def test_too_few_rows_to_compare():
    table = select([Factorized(), Mixture(2)], two_groups(8)).selection_
    assert table["name"][0] == "independent" and table["note"][0] == "too few rows to compare"


# ---- details ------------------------------------------------------------------------------------


def test_names_are_numbered_or_given_and_progress_is_told():
    X = two_groups(100)
    table = select([Factorized(), Factorized()], X).selection_
    assert sorted(table["name"]) == ["independent", "independent 2"]
    told = []
    select({"plain": Factorized()}, X, advance=lambda *said: told.append(said))
    said = [line for line, *_ in told if line]
    assert said[0] == "choose the size of a density: plain"
    assert said[1] == "compare densities: plain" and said[2].startswith(
        "plain: held-out mean log p "
    )
    assert said[3] == "fit plain to all rows"


def test_all_that_is_told_adds_up():
    X = np.random.default_rng(0).multivariate_normal(np.zeros(3), np.eye(3) + 0.5, size=300)
    done = []
    candidates = [Factorized(), Mixture(random_state=0), GaussianMixture(random_state=0)]
    select(candidates, X, advance=lambda _, amount: done.append(amount))
    assert sum(done) == pytest.approx(100)
    assert min(done) >= 0


def test_the_size_and_the_prior_that_were_found_are_kept():
    X = two_groups(600)
    kept = select([Mixture(random_state=0, n_init=1)], X)
    assert kept.density.n_components == len(kept.density.weights_) > 1
    assert kept.density.strength == kept.density.strength_


def test_who_is_close_gets_a_second_look_with_more_rows():
    rows = {}

    class Better(Factorized):
        """As good as Factorized within a standard error."""

    class Worse(Factorized):
        """Far behind."""

    def loss(density, part):
        rows.setdefault(type(density).__name__, []).append((len(part.train), len(part.held)))
        noise = np.tile([-1.0, 1.0], len(part.held))[: len(part.held)]
        return {"Factorized": 0 * noise, "Better": noise + 0.01, "Worse": noise + 9.0}[
            type(density).__name__
        ]

    X = two_groups(4000)
    found = select([Factorized(), Better(), Worse()], X, score=loss).selection_.set_index("name")
    first, second = (1000, 400), (2000, 800)
    assert rows == {"Factorized": [first, second], "Better": [first, second], "Worse": [first]}
    assert found["note"]["Worse"] == "clearly behind on some of the rows"
    assert found["note"]["independent"] == "best on masked held-out rows"
    assert found["behind"]["Worse"] == pytest.approx(9.0)
    assert found["behind"]["Better"] == pytest.approx(0.01)


def test_sizes_are_found_once_for_all_folds(monkeypatch):
    searches = []
    race = search.race
    monkeypatch.setattr(search, "race", lambda entries: searches.append(entries) or race(entries))
    select([Mixture(random_state=0, n_init=1)], two_groups(300))
    assert [len(entries) > 1 for entries in searches] == [True, *4 * [False]]


def test_the_same_seed_gives_the_same_scores():
    X = two_groups(200)
    first, second = (select([Factorized(), Mixture(2, random_state=0)], X) for _ in range(2))
    assert first.selection_["score"].tolist() == second.selection_["score"].tolist()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((Column("a"),), ["Factorized"]),
        ((Column("a"), Column("b")), ["Factorized", "Mixture", "GaussianMixture"]),
        (
            tuple(Column(name, Kind.CATEGORICAL, ("x", "y")) for name in "abc"),
            ["Factorized", "Mixture", "LatentTree"],
        ),
    ],
)
def test_default_candidates_suit_the_columns(columns, expected):
    assert [type(each).__name__ for each in default_candidates(Columns(columns))] == expected


def test_an_encoded_table_is_taken_as_it_is():
    columns = Columns((Column("city", Kind.CATEGORICAL, ("Graz", "Linz")), Column("size")))
    X = np.column_stack([np.arange(100) % 2, np.arange(100.0)])
    density = select_from([Factorized()], X, columns).density
    assert density.variables_[0].levels == ("Graz", "Linz")


# ---- what is compared ---------------------------------------------------------------------------


def test_means_and_their_errors_are_weighted():
    mean, error = mean_and_error(np.array([1.0, 3.0]), np.array([1.0, 3.0]))
    assert mean == 2.5
    assert_allclose(error, np.hypot(0.25 * 1.5, 0.75 * 0.5))


def test_candidates_learn_with_the_weights_of_their_rows():
    X = two_groups(600)
    weight = np.where(X[:, 0] > 0, 3.0, 0.2)
    columns = Columns.infer(X)
    scored = []

    def loss(density, part):
        scored.append((density, part))
        return np.ones(len(part.held))

    select_from([Factorized(random_state=0)], X, columns, sample_weight=weight, score=loss)
    density, part = scored[0]
    alone = Factorized(random_state=0).fit_matrix(
        X[part.train], columns, sample_weight=weight[part.train]
    )
    assert_allclose(density.score_samples(X[:20]), alone.score_samples(X[:20]), rtol=1e-9)


class ToldLearner:
    """Log p of held-out rows as told, by size and strength; it counts what it trains."""

    unit, one_is_independent = "components", True

    def __init__(self, log_p):
        X = np.zeros((90, 1))
        columns = Columns.infer(X)
        evidence = columns.evidence(columns.matrix(X))
        self.rows = WeightedRows(columns.variables, evidence, np.ones(90), np.arange(90))
        self.training = Training(
            1, tol=0, n_init=1, fraction=0.1, may_mask=False, seed=0, report=lambda line: None
        )
        self.log_p, self.trained = log_p, []

    def on(self, rows):
        return self

    def alone(self):
        return self

    def encode(self, rows):
        return rows

    def fit(self, size, strength, held):
        self.trained.append(size)
        return SimpleNamespace(parameters=size)

    def log_densities(self, size, held):
        return self.log_p[size] * np.ones(len(held)) + np.tile([-0.1, 0.1], len(held))[: len(held)]


def raced(log_p):
    learner = ToldLearner(log_p)
    return search.race([search.Entry(learner, size, 1.0) for size in log_p]).size, learner.trained


def test_a_race_does_not_stop_at_a_first_dip():
    """Held-out scores of a hospital table: 2 components are worse than 1, 32 are the best."""
    size, trained = raced({1: -57.75, 2: -58.90, 32: -56.04})
    assert size == 32
    # After the first of three folds, those clearly behind are not trained again.
    assert sorted(trained) == [1, 2, 32, 32, 32]


def test_independent_variables_are_kept_unless_others_are_surely_better(monkeypatch):
    noisy = np.tile([-1.0, 1.0], 15)  # the mean of 90 rows has a standard error of about 0.105
    monkeypatch.setattr(
        ToldLearner, "log_densities",
        lambda self, size, held: self.log_p[size] + {1: 0, 2: 1, 4: -1, 8: 1}[size] * noisy,
    )  # fmt: skip
    assert raced({1: 0.0, 2: 0.25})[0] == 1
    assert raced({1: 0.0, 2: 0.40})[0] == 2
    # Of others, the smallest that is as good within a standard error.
    assert raced({2: 0.0, 4: 0.1})[0] == 2
    assert raced({2: 0.0, 4: 0.3, 8: 0.31})[0] == 4


def test_the_better_way_to_read_columns_is_kept():
    rng = np.random.default_rng(2)
    X = np.exp(1.5 * rng.multivariate_normal(np.zeros(3), 0.1 * np.eye(3) + 0.9, size=600))
    # One row is far beyond all others, and would decide: held out and seen as a whole, it has a
    # log p of -1092 under normal scores.
    X = X[X.sum(axis=1) < X.sum(axis=1).max()]
    candidates = [Mixture(random_state=0, n_init=1), GaussianMixture(random_state=0)]
    chosen = select(candidates, X).density
    assert isinstance(chosen, GaussianMixture) and chosen.normal_scores is True
