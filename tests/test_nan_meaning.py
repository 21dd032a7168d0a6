"""Which meaning of NaN is chosen, given what each costs."""

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from knothole.columns.columns import Columns
from knothole.densities.held_out import hold_out
from knothole.densities.mixture.density import Mixture
from knothole.expectation.tolerance import Spread
from knothole.nan_meaning import NanMeaning, nullable
from knothole.scoring import PredictionLoss, squared
from knothole.trees.read import read

RATES = (0.1, 0.2, 0.3)


class Costs(NanMeaning):
    """The choice alone: ``cost`` says what rows lose, given the variables integrated over."""

    def __init__(self, cost):
        X = np.zeros((10, 3))
        for column, rate in enumerate(RATES):
            X[: round(10 * rate), column] = np.nan
        self.columns = Columns.infer(X).with_nullable(np.ones(3, dtype=np.bool_))
        self.variables = nullable(self.columns, X)
        self.cost = cost

    def losses(self, chosen):
        return self.cost(chosen)


def spread(mean, scale=0.0):
    """Losses of 100 rows with this mean and this standard deviation."""
    return mean + scale * np.tile([-1.0, 1.0], 50)


@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
def test_the_number_of_variables_with_the_least_loss_is_taken(wanted):
    # Single variables never change sides: what they gain is nothing beside its error.
    meaning = Costs(lambda chosen: spread(abs(chosen.sum() - wanted), 100.0 * (chosen.sum() % 2)))
    integrate, table = meaning.choose()
    np.testing.assert_array_equal(integrate, np.arange(3) < wanted)
    np.testing.assert_array_equal(table["integrate"], integrate)
    np.testing.assert_allclose(table["nan_in_training"], RATES)


@pytest.mark.parametrize(("gain", "changes"), [(0.19, False), (0.21, True)])
def test_a_variable_changes_sides_for_more_than_one_standard_error(gain, changes):
    """Nothing is integrated over, but for the last variable, which alone gains ``gain``."""

    def cost(chosen):
        if chosen.tolist() == [False, False, True]:
            return spread(1.0 - gain, 0.2 * 10 * np.sqrt(99 / 100))
        return spread(1.0 + chosen.sum())

    integrate, table = Costs(cost).choose()
    assert integrate.tolist() == [False, False, changes]
    last = table.iloc[-1]
    assert (last["gain"], last["error"]) == (pytest.approx(gain), pytest.approx(0.2))
    assert (table["gain"][:2] == -1.0).all()


def test_gains_are_of_integrating_whichever_side_a_variable_was_on():
    integrate, table = Costs(lambda chosen: spread(3.0 - chosen @ [1.0, 1.0, 1.0])).choose()
    assert integrate.all()
    np.testing.assert_allclose(table["gain"], 1.0)


def test_only_rows_with_holes_that_they_never_had_are_predicted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) + rng.normal(size=(300, 1))
    y = X.sum(axis=1)
    X[rng.random(X.shape) < 0.2] = np.nan
    ensemble = read(DecisionTreeRegressor(max_depth=4, random_state=0).fit(X, y))
    columns = Columns.infer(X).with_nullable(np.ones(3, dtype=np.bool_))
    (part, *_) = hold_out(X, columns)
    density = Mixture(3, random_state=0).fit_matrix(X[part.train], columns)
    asked = []

    class Loss(PredictionLoss):
        def under(self, expectation, part, holes):
            asked.append(len(holes))
            return super().under(expectation, part, holes)

    spread_of_f = Spread.of(ensemble, ensemble.margin(X))
    loss = Loss(ensemble, y[:, None], squared, np.ones(300, dtype=np.bool_), spread_of_f)
    meaning = NanMeaning(loss, ((density, part),), columns, X)
    for chosen in ([0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 0]):
        found = meaning.losses(np.array(chosen, dtype=bool))
        again = NanMeaning(loss, ((density, part),), columns, X)
        np.testing.assert_array_equal(found, again.losses(np.array(chosen, dtype=bool)))
    assert asked[0] == asked[1] == len(part.held)
    assert 0 < asked[2] < len(part.held)
    assert asked[-2] == 0
