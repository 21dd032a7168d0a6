"""The kernels of latent trees refuse arrays that do not fit."""

import numpy as np
import pytest

from knothole._core import latent_tree as kernels
from knothole.densities.latent_tree.em import DistributionTables, Model, TreeSums
from knothole.densities.univariate.packed import Stacked, Values

ROWS, VARIABLES, STATES, CODES, DRAWS = 5, 2, 3, 4, 2


def arguments():
    table = np.zeros((CODES, STATES))
    empty, three = np.zeros((0, STATES)), np.full((VARIABLES, STATES, STATES), 1 / STATES)
    slot, order = np.full(VARIABLES, -1), np.arange(VARIABLES)
    return {
        "values": Values(
            np.zeros((ROWS, VARIABLES), np.int16), np.zeros((ROWS, 0)), np.zeros(ROWS), slot
        ),
        "tables": DistributionTables(table, empty, empty, np.zeros(CODES), table + 1),
        "model": Model(order, order - 1, three[0, 0], three),
        "weight": np.ones(ROWS),
        "limit": -600.0,
        "uniform": np.full((1, VARIABLES, DRAWS), 0.5),
        "states": np.zeros((ROWS, DRAWS, VARIABLES), np.int64),
        "log_p": np.zeros(ROWS),
        "sums": TreeSums(
            np.zeros(STATES),
            np.zeros_like(three),
            Stacked(table.copy(), empty.copy(), empty.copy()),
        ),
    }


KERNELS = {
    "expectation": ("values", "tables", "model", "weight", "log_p", "sums"),
    "log_likelihood": ("values", "tables", "model", "limit", "log_p"),
    "draw_states": ("values", "tables", "model", "uniform", "states"),
}


def call(kernel, changed):
    getattr(kernels, kernel)(*(changed[name] for name in KERNELS[kernel]))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("codes", [np.int16, np.int32])
def test_both_sizes_of_codes_are_taken(kernel, codes):
    given = arguments()
    values = given["values"]
    call(kernel, given | {"values": values._replace(code=values.code.astype(codes))})
    if kernel != "draw_states":
        np.testing.assert_allclose(given["log_p"], 0.0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("name", "field", "wrong", "error"),
    [
        ("values", "code", np.zeros((ROWS, VARIABLES)), TypeError),
        ("values", "code", np.zeros((ROWS, VARIABLES), np.int64), TypeError),
        ("values", "code", np.zeros((VARIABLES, ROWS), np.int16).T, TypeError),
        ("values", "slot", np.zeros(VARIABLES + 1, np.int64), ValueError),
        ("tables", "factor", np.zeros((CODES + 1, STATES)), ValueError),
        ("model", "parent", np.zeros(VARIABLES, np.int32), TypeError),
        ("model", "transition", np.zeros((VARIABLES, STATES, STATES + 1)), ValueError),
        ("sums", "pairs", np.zeros((VARIABLES, STATES, STATES + 1)), ValueError),
        ("sums", "roots", np.zeros(STATES, np.float32), TypeError),
        ("weight", None, np.ones(ROWS + 1), ValueError),
        ("uniform", None, np.zeros((2, VARIABLES, DRAWS)), ValueError),
        ("uniform", None, np.zeros((1, DRAWS, VARIABLES)).transpose(0, 2, 1), TypeError),
        ("states", None, np.zeros((ROWS, DRAWS, VARIABLES)), TypeError),
        ("log_p", None, np.broadcast_to(0.0, ROWS), TypeError),
        ("log_p", None, np.zeros(ROWS - 1), ValueError),
    ],
)
def test_what_does_not_fit_is_refused(kernel, name, field, wrong, error):
    given = arguments()
    if name not in KERNELS[kernel]:
        pytest.skip("not an argument of it")
    given[name] = wrong if field is None else given[name]._replace(**{field: wrong})
    with pytest.raises(error, match=field or ("out" if name in ("states", "log_p") else name)):
        call(kernel, given)
