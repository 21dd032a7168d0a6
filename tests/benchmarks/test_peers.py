"""Every peer answers every task, knows what it should, and leaves complete rows alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.benchmarks.tables import make_missing, small_dataset, small_training

from benchmarks.suite import models
from benchmarks.suite.peers import imputation
from benchmarks.suite.peers.base import Native, Peer, Training
from benchmarks.suite.peers.own import Knothole, KnotholeGrown, KnotholeRefitted
from benchmarks.suite.peers.roster import all_peers
from benchmarks.suite.peers.trained import Retrained
from knothole.densities.mixture.density import Mixture
from knothole.report.methods import Dummies, Task, outputs, row_losses

QUICK = Mixture(n_components=3, random_state=0)
PEERS = dict(all_peers()) | {
    "MICE x20": imputation.mice(draws=3),
    "knothole": Knothole(density=QUICK),
    "knothole refitted": KnotholeRefitted(density=QUICK),
    "knothole grown": KnotholeGrown(density=QUICK, refit_leaves=None),
}


def present(name: str) -> Peer:
    absent = PEERS[name].missing()
    if absent:
        pytest.skip(f"{absent[0]} is not installed")
    return PEERS[name]


def loss_of_knowing_nothing(task: Task, target: np.ndarray) -> float:
    seen = small_dataset(task).target
    if task is Task.REGRESSION:
        return row_losses(task, target, np.full(len(target), seen.mean())).mean()
    shares = np.bincount(seen) / len(seen)
    return row_losses(task, target, np.tile(shares, (len(target), 1))).mean()


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_answers_every_task(name, task):
    peer = present(name).fit(small_training(task))
    dataset = small_dataset(task, rows=200, seed=1)
    found = peer.predict(make_missing(dataset.table, 7))
    assert np.isfinite(found).all()
    if task is Task.REGRESSION:
        assert found.shape == (200,)
    else:
        assert found.shape == (200, 2 if task is Task.BINARY else 3)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
        assert (found >= 0).all()
    # Classes in the wrong order would do worse than no answer; so may these two, with missing
    # values.
    if name not in ("native", "mode"):
        loss = row_losses(task, dataset.target, found).mean()
        assert loss < loss_of_knowing_nothing(task, dataset.target)


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if not peer.informed])
def test_rows_without_missing_values_are_the_models_own(name):
    if name in ("ydf", "knothole refitted", "knothole grown"):
        pytest.skip("it has a model of its own, or leaves")
    training = small_training(Task.REGRESSION)
    table = small_dataset(Task.REGRESSION, rows=50, seed=1).table
    own = outputs(training.fitted(training.table), table, training.task)
    np.testing.assert_allclose(present(name).fit(training).predict(table), own, rtol=1e-5)


def test_informed_peers_are_told_how_missing_values_come():
    asked = []

    def counted(table, seed):
        asked.append(seed)
        return make_missing(table, seed)

    Retrained(3).fit(small_training(Task.REGRESSION, make_missing=counted, seed=5))
    assert asked == [5, 6, 7]
    imputation.MeanAndMask().fit(small_training(Task.REGRESSION, make_missing=counted))
    assert len(asked) == 4


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.informed])
def test_informed_peers_learn_from_missing_values_that_training_has(name):
    complete = small_training(Task.REGRESSION)
    training = small_training(Task.REGRESSION, has_missing=True)
    incomplete = make_missing(complete.table, 3)
    object.__setattr__(training, "table", incomplete)
    found = PEERS[name].fit(training).predict(incomplete)
    worse = Native().fit(complete).predict(incomplete)
    losses = [row_losses(Task.REGRESSION, complete.target, y).mean() for y in (found, worse)]
    assert losses[0] < losses[1]


def test_masked_copies_of_a_table_with_missing_values_begin_with_the_table_itself():
    fitted = []

    class Watched(Training):
        def fitted(self, table, target=None, **options):
            fitted.append(table)
            return super().fitted(table, target, **options)

    plain = small_training(Task.REGRESSION)
    incomplete = make_missing(plain.table, 3)
    Retrained(3).fit(
        Watched(incomplete, plain.target, plain.task, plain.model, 5, make_missing, True)
    )
    copies = [fitted[0].iloc[start : start + 240] for start in (0, 240, 480)]
    pd.testing.assert_frame_equal(
        copies[0].reset_index(drop=True), incomplete.reset_index(drop=True)
    )
    for copy in copies[1:]:
        gone = copy.isna().to_numpy()
        assert (
            gone[incomplete.isna().to_numpy()].all() and 0.45 < gone.mean() < 0.57
        )  # 1 - 0.7 ** 2


def test_stacked_imputations_weigh_as_much_as_their_rows():
    weights = []

    class Watched(Training):
        def fitted(self, table, target=None, **options):
            weights.append(options["sample_weight"])
            assert not table.isna().any(axis=None)
            return super().fitted(table, target, **options)

    plain = small_training(Task.REGRESSION)
    incomplete = make_missing(plain.table, 3)
    peer = imputation.Stacked(3).fit(Watched(incomplete, plain.target, plain.task, plain.model))
    assert len(weights[0]) == 3 * len(incomplete) and weights[0].sum() == pytest.approx(
        len(incomplete)
    )
    one, other = (peer._fill(incomplete)["a"] for _ in range(2))
    assert (one != other)[incomplete["a"].isna()].all()


@pytest.mark.parametrize("task", Task)
def test_leaves_are_refitted_on_missing_training_values_given_the_target(task):
    training = small_training(task, make_missing=None)
    object.__setattr__(training, "table", make_missing(training.table, 3))
    peer = PEERS["knothole refitted"].fit(training)
    assert peer.needs_missing_in_training
    assert peer.robust_.nan_policy_ == "lost"
    assert peer.robust_.refit_.conditioned in ("values", "scores", "labels")
    original = PEERS["knothole"].fit(training).robust_
    np.testing.assert_array_equal(peer.robust_.ensemble_.threshold, original.ensemble_.threshold)
    assert (peer.robust_.ensemble_.value != original.ensemble_.value).mean() > 0.5
    dataset = small_dataset(task, rows=500, seed=1)
    found = peer.predict(make_missing(dataset.table, 7))
    loss = row_losses(task, dataset.target, found).mean()
    assert loss < loss_of_knowing_nothing(task, dataset.target)


@pytest.mark.parametrize("name", PEERS)
def test_a_column_that_is_gone_is_survived(name):
    training = small_training(Task.REGRESSION)
    table = small_dataset(Task.REGRESSION, rows=30, seed=1).table
    gone = {"a": np.nan, "hue": pd.Categorical([None] * 30, table["hue"].cat.categories)}
    found = present(name).fit(training).predict(table.assign(**gone))
    assert found.shape == (30,) and np.isfinite(found).all()


@pytest.mark.parametrize("name", PEERS)
def test_a_column_never_observed_in_training_is_survived(name):
    training = small_training(Task.REGRESSION)
    object.__setattr__(training, "table", training.table.assign(empty=np.nan))
    table = make_missing(training.table.assign(empty=1.0), 7)
    assert np.isfinite(present(name).fit(training).predict(table)).all()


# --- imputation ----------------------------------------------------------------------------------


def test_dummies_lead_back_to_the_table():
    table = make_missing(small_dataset(Task.REGRESSION).table, 1)
    dummies = Dummies(table)
    numbers = dummies.numbers(table)
    assert numbers.shape == (len(table), 3 + 3)
    filled = dummies.table(np.nan_to_num(numbers, nan=0.25), table)
    assert not filled.isna().any(axis=None)
    for name in table:
        known = table[name].notna()
        assert (filled.loc[known, name] == table.loc[known, name]).all()
    assert (filled.loc[table["hue"].isna(), "hue"] == "blue").all()  # the first of equals
    assert (filled.loc[table["a"].isna(), "a"] == 0.25).all()
    assert filled["hue"].dtype == table["hue"].dtype


@pytest.mark.parametrize(
    "peer",
    [
        imputation.mice(),
        imputation.Imputed("nearest neighbours", imputation.Neighbours()),
        imputation.filled("median"),
    ],
)
def test_imputers_keep_what_was_observed(peer):
    training = small_training(Task.REGRESSION)
    table = make_missing(small_dataset(Task.REGRESSION, seed=2).table, 1)
    peer.fit(training)
    filled = peer._fill(table)
    assert not filled.isna().any(axis=None)
    for name in table:
        known = table[name].notna()
        assert (filled.loc[known, name] == table.loc[known, name]).all()


def test_chained_regressions_run_all_rounds_on_complete_training_tables():
    """Two columns that tell each other and one more: a single round would not get there."""
    training = small_training(Task.REGRESSION)
    peer = imputation.mice().fit(training)
    assert peer.imputer.imputer_.n_iter_ == 10
    table = training.table.assign(b=np.nan)
    filled = peer._fill(table)
    assert np.corrcoef(filled["b"], training.table["b"])[0, 1] > 0.9


def test_draws_differ_and_are_averaged():
    peer = imputation.mice(draws=20).fit(small_training(Task.REGRESSION))
    table = small_dataset(Task.REGRESSION).table.assign(count=np.nan)
    one, two = (peer._fill(table)["count"] for _ in range(2))
    assert np.std(one - two) > 0.5
    spread = np.std(peer.predict(table) - peer.predict(table))
    single = outputs(peer.model_, peer._fill(table), Task.REGRESSION)
    other = outputs(peer.model_, peer._fill(table), Task.REGRESSION)
    assert spread < np.std(single - other) / 2


def test_fills_are_those_of_the_training_column():
    training = small_training(Task.REGRESSION)
    table = training.table.iloc[:3].assign(a=np.nan, hue=pd.Categorical([None] * 3))
    for statistic, expected in {
        "mean": training.table["a"].mean(),
        "median": training.table["a"].median(),
    }.items():
        filled = (
            imputation.filled(statistic)
            .fit(training)
            ._fill(table.astype({"hue": training.table["hue"].dtype}))
        )
        assert (filled["a"] == expected).all()
        assert (filled["hue"] == training.table["hue"].mode()[0]).all()


def test_peers_say_what_they_miss():
    class Odd(Native):
        requires = ("a_library_that_is_not_there",)

    assert Odd().missing() == ("a_library_that_is_not_there",)
    assert Native().missing() == ()


# --- models --------------------------------------------------------------------------------------


def test_scores_are_scikit_learns():
    from sklearn.metrics import log_loss, roc_auc_score

    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 50)
    y = rng.integers(0, 3, 50)
    found = models.scores(Task.MULTICLASS, y, p)
    assert found["log_loss"] == pytest.approx(log_loss(y, p))
    assert found["auc"] == pytest.approx(roc_auc_score(y, p, multi_class="ovr"))
    binary = p[:, :2] / p[:, :2].sum(axis=1, keepdims=True)
    assert models.scores(Task.BINARY, y % 2, binary)["auc"] == pytest.approx(
        roc_auc_score(y % 2, binary[:, 1])
    )


def test_a_sure_mistake_costs_much_but_not_everything():
    loss = row_losses(Task.BINARY, np.array([0, 1]), np.array([[0.0, 1.0], [0.0, 1.0]]))
    assert 15 < loss[0] < 17 and loss[1] < 1e-6
