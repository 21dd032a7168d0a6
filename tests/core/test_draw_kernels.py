"""The kernels of draws refuse arrays that do not fit."""

import numpy as np
import pytest
from tests.core.calls import copied, recorded
from tests.trees.generate import random_ensemble

from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.mixture.density import Mixture
from knothole.expectation.expectation import Expectation
from knothole.expectation.monte_carlo.statistics import MeanOf

# Of each kernel: the place of an argument, a field of it, what is done to it, and the error.
WRONG = {
    "monte_carlo.fill_margins": [
        (2, None, lambda a: a[:, :, :-1].copy(), ValueError),
        (3, "mask_row", lambda a: a + 1000, ValueError),
        (3, "set_nodes", lambda a: a.astype(np.int32), TypeError),
        (5, "rounded", lambda a: a[:, 1:].copy(), ValueError),
        (6, None, lambda a: a.astype(np.float32), TypeError),
    ],
    "monte_carlo.fill_group_sums": [
        (0, None, lambda a: a.astype(np.int64), TypeError),
        (1, None, lambda a: a[:, :1].copy(), ValueError),
        (2, "row_variable", lambda a: a[:-1].copy(), ValueError),
        (3, "node", lambda a: a + np.uint64(1 << 20), ValueError),
        (5, None, lambda a: np.broadcast_to(0.0, a.shape), TypeError),
    ],
    "monte_carlo.fill_reached": [
        (1, None, lambda a: a[:, 1:].copy(), ValueError),
        (3, None, lambda a: 99, ValueError),
        (8, "leaf", lambda a: a.astype(np.int64), TypeError),
        (8, "stop", lambda a: a[1:].copy(), ValueError),
    ],
    "monte_carlo.summarise": [
        (0, None, lambda a: a[:, :, 1:].copy(), ValueError),
        (3, None, lambda a: np.zeros_like(a, dtype=np.float32), TypeError),
    ],
    "shared_draws.fill_components": [
        (3, None, lambda a: 4, ValueError),
        (2, None, lambda a: a + 1, ValueError),
        (4, None, lambda a: a.astype(np.int8), TypeError),
    ],
    "shared_draws.fill_shared_margins": [
        (0, None, lambda a: a[:, 1:].copy(), ValueError),
        (2, "lowest", lambda a: a[:, 1:].copy(), ValueError),
        (3, None, lambda a: 1 << 20, ValueError),
        (4, "variable", lambda a: a[1:].copy(), ValueError),
        (5, None, lambda a: a + (1 << 20), ValueError),
    ],
    "shared_draws.fill_cells": [
        (4, None, lambda a: a + 1000, ValueError),
        (5, None, lambda a: a.T, TypeError),
        (7, None, lambda a: a[:, 1:].copy(), ValueError),
    ],
    "shared_draws.add_cells": [(0, None, lambda a: a[:, 1:].copy(), ValueError)],
}


@pytest.fixture(scope="module")
def calls():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 3))
    ensemble = random_ensemble(seed=1, levels=(0,) * 3, n_trees=4, depth=3)
    rows = np.where(rng.random((9, 3)) < 0.6, np.nan, X[:9])
    rows[0] = [np.nan, 0.0, 0.0]
    found = {}
    with recorded(found):
        for density in (GaussianMixture(2, random_state=0), Mixture(2, n_init=1, random_state=0)):
            expectation = Expectation.of(ensemble, density.fit(X))
            engine, evidence = expectation.monte_carlo, expectation.evidence(rows)
            engine.margin(evidence)
            engine.margins(evidence, range(1))
            engine.mean(evidence, MeanOf(np.tanh))
            list(engine.entries(evidence))
    return found


@pytest.mark.parametrize(
    ("kernel", "change"),
    [(kernel, i) for kernel, all_of in WRONG.items() for i in range(len(all_of))],
)
def test_what_does_not_fit_is_refused(calls, kernel, change):
    _, run, args = calls[kernel]
    run(*copied(args))
    args = list(copied(args))
    place, field, spoil, error = WRONG[kernel][change]
    own = args[place]
    args[place] = own._replace(**{field: spoil(getattr(own, field))}) if field else spoil(own)
    with pytest.raises(error):
        run(*args)
