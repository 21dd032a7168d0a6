"""Weighted draws for any learner."""

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeRegressor
from tests.leaves.worlds import refit

from knothole.densities.mixture.density import Mixture
from knothole.errors import InvalidInput
from knothole.leaves.induction import expand
from knothole.trees.read import read

rng = np.random.default_rng(0)
N = 400
TABLE = pd.DataFrame(
    {
        "size": rng.normal(size=N),
        "hue": pd.Categorical.from_codes(rng.integers(0, 3, N), ["red", "green", "blue"]),
    }
)
Y = 3 * TABLE["size"].to_numpy() + 2 * (TABLE["hue"] == "red").to_numpy()
TABLE.loc[rng.random(N) < 0.3, "size"] = np.nan
TABLE.loc[rng.random(N) < 0.3, "hue"] = None


def test_rows_weights_and_types():
    density = Mixture(3, random_state=0).fit(TABLE, target=Y)
    weight = rng.uniform(1, 2, N)
    full = expand(density, TABLE, Y, n_draws=5, sample_weight=weight)
    missing_mask = TABLE.isna().any(axis=1).to_numpy()
    assert len(full.X) == (~missing_mask).sum() + 5 * missing_mask.sum()
    assert not full.X.isna().any().any()
    assert full.X["hue"].cat.categories.tolist() == ["red", "green", "blue"]
    np.testing.assert_allclose(np.bincount(full.row, full.weight), weight)
    np.testing.assert_array_equal(full.y, Y[full.row])
    observed = TABLE.notna().to_numpy()[full.row]
    for column in TABLE:
        kept = observed[:, TABLE.columns.get_loc(column)]
        same = full.X[column].to_numpy() == TABLE[column].to_numpy()[full.row]
        assert same[kept].all()


def test_a_learner_on_completions_finds_the_leaves_of_prop_2():
    """The mean of y over weighted draws of a leaf is the closed form, but for the draws."""
    X = rng.normal(size=(300, 2))
    y = X[:, 0] + X[:, 1]
    tree = DecisionTreeRegressor(max_depth=2, random_state=0).fit(X, y)
    incomplete = X.copy()
    incomplete[rng.random(X.shape) < 0.4] = np.nan
    joint = Mixture(4, random_state=0).fit(incomplete, target=y)
    exact = refit(read(tree), joint, incomplete, y, ridge=0.0, objective="expected").ensemble
    full = expand(joint, incomplete, y, n_draws=200)
    leaves = exact.leaves(full.X)[:, 0]
    found = [np.average(full.y[leaves == i], weights=full.weight[leaves == i]) for i in range(4)]
    np.testing.assert_allclose(found, exact.value[:, 0], atol=0.02)


def test_unconditional_draws_ignore_y():
    joint = Mixture(3, random_state=0).fit(TABLE, target=Y)
    given = expand(joint, TABLE, Y, n_draws=30)
    ignoring = expand(joint, TABLE, Y, n_draws=30, condition_on_target=False)
    gone = TABLE["size"].isna().to_numpy()
    correlation = [
        np.corrcoef(e.X["size"][gone[e.row]], e.y[gone[e.row]])[0, 1] for e in (given, ignoring)
    ]
    assert correlation[0] > correlation[1] + 0.3


def test_complete_rows_stay_and_arrays_stay_arrays():
    X = rng.normal(size=(20, 2))
    full = expand(Mixture(1).fit(X), X, n_draws=3)
    np.testing.assert_array_equal(full.X, X)
    assert full.y is None


@pytest.mark.parametrize("draws", [0, 1.5])
def test_draws_are_whole(draws):
    X = np.zeros((3, 1))
    with pytest.raises(InvalidInput, match="draws"):
        expand(Mixture(1).fit(X + np.arange(3)[:, None]), X, n_draws=draws)
