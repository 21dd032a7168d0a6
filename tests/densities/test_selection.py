"""Choosing a density: rows to choose by, scores, and what is kept."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from knothole.columns.columns import Block, Column, Columns, Kind
from knothole.densities import select as module
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.held_out import RATE, hold_out, mean_and_error
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.densities.search import Search, Tried
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
    assert np.array_equal(np.isnan(part.matrix), part.holes)
    assert_allclose(part.matrix[~part.holes], X[part.held][~part.holes])
    rate = part.holes.mean(axis=0)
    assert_allclose(rate, RATE, atol=4 * np.sqrt(RATE * (1 - RATE) / len(part.held)))


def test_held_out_rows_take_the_patterns_of_other_rows():
    """The first two columns are only ever missing together, in half of the rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2000, 3))
    X[rng.random(2000) < 0.5, :2] = np.nan
    (part,) = hold_out(X, Columns.infer(X))
    assert (part.holes[:, 0] == part.holes[:, 1]).all()
    assert part.holes[np.isnan(X[part.held])].all()
    assert_allclose(part.holes[:, 0].mean(), 0.75, atol=0.08)  # its own, or those put on top
    assert_allclose(part.holes[:, 2].mean(), RATE, atol=0.08)


@pytest.mark.parametrize("n", [60, 5000])
def test_a_value_that_hardly_any_row_has_is_learned_from(n):
    """Few rows are held out in folds, and of many rows only some are looked at."""
    X = np.random.default_rng(0).normal(size=(n, 3))
    X[1:, 2] = np.nan
    for seed in range(4):
        parts = hold_out(X, Columns.infer(X), random_state=seed)
        for part in parts:
            assert 0 in part.train and 0 not in part.held
            assert len(part.matrix) == len(part.held) == len(part.holes)
        assert len(np.unique(np.concatenate([part.held for part in parts]))) >= n / 6
    found = select_from([Factorized(random_state=0)], X, Columns.infer(X))
    assert np.isfinite(found.density.score(X))


def test_a_block_is_masked_as_one_and_a_state_is_no_hole():
    rng = np.random.default_rng(2)
    X = np.column_stack([np.eye(3)[rng.integers(3, size=800)], rng.normal(size=800)])
    X[:200, 3] = np.nan
    columns = Columns(
        (*(Column(name, Kind.INTEGER) for name in "abc"), Column("d", nullable=True)),
        (Block("abc", (0, 1, 2)),),
    )
    (part,) = hold_out(X, columns)
    assert (part.holes[:, :3].all(axis=1) == part.holes[:, :3].any(axis=1)).all()
    unrecorded = np.isnan(part.matrix[:, 3]) & ~part.holes[:, 3]
    assert unrecorded.any() and (part.held[unrecorded] < 200).all()
    assert_allclose(part.holes[:, 3].mean(), RATE, atol=0.12)


def test_few_rows_are_held_out_in_folds_and_very_few_not_at_all():
    X = np.random.default_rng(0).normal(size=(60, 2))
    folds = hold_out(X, Columns.infer(X))
    assert sorted(np.concatenate([fold.held for fold in folds])) == list(range(60))
    assert hold_out(X[:10], Columns.infer(X)) == []


def test_only_eligible_rows_are_held_out():
    X = np.random.default_rng(0).normal(size=(600, 2))
    eligible = np.arange(600) < 100
    (part,) = hold_out(X, Columns.infer(X), eligible=eligible)
    assert eligible[part.held].all() and len(part.held) + len(part.train) == 600


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
    candidates = [Factorized(random_state=0), Mixture(components=2, random_state=0)]
    selected = select(candidates, X)
    table = selected.selection_
    assert list(table.columns) == [
        "name", "score", "behind", "error", "seconds", "chosen", "note",
    ]  # fmt: skip
    assert table["name"].tolist() == ["Mixture", "Factorized"]
    assert table["chosen"].tolist() == [True, False]
    assert table["behind"][0] == 0 and table["behind"][1] > 4 * table["error"][1] > 0
    assert not hasattr(candidates[1], "weights_")
    again = Mixture(components=2, random_state=0).fit(X)
    assert_allclose(selected.density.score_samples(X), again.score_samples(X))


def test_the_error_of_a_difference_is_that_of_paired_rows():
    X = two_groups(600)
    seen = {}

    def loss(density, part):
        seen[type(density)] = part.held + (0.0 if type(density) is Mixture else X[part.held, 0])
        return seen[type(density)]

    selected = select([Mixture(2, random_state=0), Factorized()], X, score=loss)
    difference = seen[Factorized] - seen[Mixture]
    if selected.selection_["name"][0] == "Factorized":
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
    assert selected.selection_["name"].tolist() == ["Factorized", "Mixture"]
    assert selected.selection_["score"].tolist() == [0.0, -1.0]


# ---- what can go wrong --------------------------------------------------------------------------


def test_a_candidate_that_fails_is_recorded():
    table = select([Failing(), Factorized()], two_groups(100)).selection_
    assert table["name"].tolist() == ["Factorized", "Failing"]
    assert table["note"][1] == "failed: the sky is falling" and np.isnan(table["score"][1])


def test_a_loss_of_nan_is_a_failure():
    def loss(density, part):
        return np.full(len(part.held), np.nan if type(density) is Mixture else 1.0)

    table = select(
        [Mixture(2, random_state=0), Factorized()], two_groups(100), score=loss
    ).selection_
    assert table["chosen"].tolist() == [True, False] and table["name"][0] == "Factorized"
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
    assert table["name"][0] == "Factorized" and table["note"][0] == "too few rows to compare"


# ---- details ------------------------------------------------------------------------------------


def test_names_are_numbered_or_given_and_progress_is_told():
    X = two_groups(100)
    table = select([Factorized(), Factorized()], X).selection_
    assert sorted(table["name"]) == ["Factorized", "Factorized 2"]
    told = []
    select({"plain": Factorized()}, X, advance=lambda *said: told.append(said))
    assert told[0][0].startswith("plain: score")
    assert told[-1][0] == "plain it is"


def test_all_that_is_told_adds_up():
    X = np.random.default_rng(0).multivariate_normal(np.zeros(3), np.eye(3) + 0.5, size=300)
    done = []
    candidates = [Factorized(), Mixture(random_state=0), GaussianMixture(random_state=0)]
    select(candidates, X, advance=lambda _, amount: done.append(amount))
    assert sum(done) == pytest.approx(100)
    assert min(done) >= 0


def test_training_on_all_rows_starts_from_what_was_judged():
    rng = np.random.default_rng(0)
    X = rng.choice([-9.0, 0.0, 9.0], size=(400, 1)) + rng.normal(size=(400, 2))
    like = GaussianMixture(3, strength=1.0, random_state=0)
    cold, known = clone(like).fit(X), clone(like).fit(X[:300])
    for name in ("weights_", "means_", "covariances_"):
        setattr(known, name, getattr(known, name)[::-1].copy())
    warm = clone(like).beginning_with(known).fit(X)
    assert_allclose(warm.means_, known.means_, atol=0.2)
    assert_allclose(warm.means_, cold.means_[::-1], atol=0.05)
    # It serves once; what is of another kind, or over other variables, is no start.
    assert_array_equal(warm.fit(X).means_, cold.means_)
    for other in (Mixture(3, random_state=0).fit(X), clone(like).fit(X[:, :1]), None):
        assert_array_equal(clone(like).beginning_with(other).fit(X).means_, cold.means_)


def test_the_size_and_the_prior_that_were_found_are_kept():
    X = two_groups(600)
    kept = select([Mixture(random_state=0, n_init=1)], X)
    ((scored, _),) = kept.scored
    assert kept.density.components == len(scored.weights_) > 1
    assert kept.density.strength == scored.strength_


def test_who_is_clearly_behind_in_a_rehearsal_is_not_searched(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.multivariate_normal(np.zeros(4), 0.05 * np.eye(4) + 0.95, size=800)
    candidates = {
        "search": Mixture(random_state=0, n_init=1),
        "gauss": GaussianMixture(random_state=0),
        "given": Mixture(2, random_state=0),
    }
    found = select(candidates, X).selection_.set_index("name")
    assert found["note"].to_dict() == {
        "gauss": "best on masked held-out rows",
        "given": "",
        "search": "clearly behind in a rehearsal",
    }
    assert found["behind"]["search"] > 2 * found["error"]["search"] > 0
    # What is told of it is its rehearsal; without the bar it searches, and is better than that.
    monkeypatch.setattr(module, "BEHIND", np.inf)
    again = select(candidates, X).selection_.set_index("name")
    assert again["note"]["search"] == ""
    assert again["score"]["search"] > found["score"]["search"]


def test_who_is_far_behind_on_few_rows_rehearses_no_more(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.multivariate_normal(np.zeros(8), 0.02 * np.eye(8) + 0.98, size=800)
    candidates = {
        "search": Mixture(random_state=0, n_init=1),
        "gauss": GaussianMixture(random_state=0),
    }
    monkeypatch.setattr(module, "FEW_TO_REHEARSE", 150)
    rows = []
    judge = module.Candidate.judge

    def noted(self, parts, *rest):
        rows.append((self.name, *(len(part.train) for part in parts)))
        judge(self, parts, *rest)

    monkeypatch.setattr(module.Candidate, "judge", noted)
    found = select(candidates, X).selection_.set_index("name")
    assert found["note"]["search"] == "clearly behind in a rehearsal"
    few = [("search, rehearsing", 150), *2 * [("gauss, rehearsing", 150)]]
    assert rows == [*few, ("gauss", 600)]
    # Whoever is not that far behind rehearses with all rows, too.
    rows.clear()
    monkeypatch.setattr(module, "FAR_BEHIND", np.inf)
    again = select(candidates, X).selection_.set_index("name")
    assert again["note"]["search"] == "clearly behind in a rehearsal"
    assert rows[:3] == few and ("search, rehearsing", 600) in rows[3:]


def test_there_is_no_rehearsal_for_one_that_searches():
    X = two_groups(300)
    table = select([Factorized(), Mixture(random_state=0, n_init=1)], X).selection_
    assert not table["note"].str.contains("rehearsal").any()


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
    options = {"sample_weight": weight, "score": lambda density, part: np.ones(len(part.held))}
    found = select_from([Factorized(random_state=0)], X, columns, **options)
    ((density, part),) = found.scored
    alone = Factorized(random_state=0).fit_matrix(
        X[part.train], columns, sample_weight=weight[part.train]
    )
    assert_allclose(density.score_samples(X[:20]), alone.score_samples(X[:20]), rtol=1e-9)


class ToldFold:
    """A fold whose rows have these log p, whatever is trained, and that counts how often."""

    def __init__(self, log_p):
        self.log_p, self.trained = log_p, 0

    def attempt(self, size, strength):
        self.trained += 1
        return f"run {self.trained}", self.log_p, np.ones(len(self.log_p))


def test_folds_are_tried_as_long_as_there_is_doubt():
    """What is clear on the first fold needs no other; what is not is compared on all rows."""
    noise = np.tile([-1.0, 1.0], 50)
    for gain, needed in ((0.5, 1), (0.2, 3)):  # five standard errors, and two
        better = [ToldFold(gain + noise) for _ in range(3)]
        worse = [ToldFold(0 * noise) for _ in range(3)]
        one, other = Tried(None, better, 2, 1.0), Tried(None, worse, 1, 1.0)
        for tried in (one, other):
            tried.on(1)
        found = one.gain_over(other)
        expected = mean_and_error(np.tile(gain + noise, needed), np.ones(100 * needed))
        assert found == pytest.approx(expected, rel=1e-12)
        assert [fold.trained for fold in better + worse] == 2 * [1, *(2 * [int(needed == 3)])]
        assert len(one.runs) == needed


@pytest.mark.parametrize(("gain", "chosen"), [(0.9, 1), (1.1, 2)])
def test_a_larger_size_must_be_better_by_a_standard_error(gain, chosen):
    """Size 2 gains so many standard errors over size 1, and size 4 does harm."""
    search = object.__new__(Search)
    noise = np.tile([-1.0, 1.0], 50)  # whose mean has a standard error of a tenth
    log_p = {1: 0 * noise, 2: 0.1 * gain + noise, 4: -5.0 + 0 * noise}
    search.attempt = lambda size, strength: Tried(
        None, [None], size, strength, [None], [log_p[size]], [np.ones(100)]
    )
    assert search.try_sizes([1, 2, 4], 1.0).size == chosen


def test_a_way_to_read_that_is_clearly_behind_is_not_searched_either():
    rng = np.random.default_rng(0)
    X = np.exp(1.5 * rng.multivariate_normal(np.zeros(3), 0.1 * np.eye(3) + 0.9, size=600))
    candidates = [Mixture(random_state=0, n_init=1), GaussianMixture(random_state=0)]
    ((scored, _),) = select(candidates, X).scored
    assert isinstance(scored, GaussianMixture) and scored.normal_scores is True
