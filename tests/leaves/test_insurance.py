"""Insurance with missing values in training and test: the right panel of ``make reproduce``.

With ``KNOTHOLE_FULL`` set: the rates that have targets, and ten trials; otherwise in small.
"""

import os

import numpy as np
import pandas as pd
import pytest

from benchmarks.paper import panels
from benchmarks.paper.panels import (
    EXPECTED,
    FAIR,
    OURS,
    PAPER,
    REFITTED,
    TARGETS,
    XGBOOST,
    YARDSTICK,
)

FULL = bool(os.environ.get("KNOTHOLE_FULL"))
RATES, TRIALS = (tuple(TARGETS), 10) if FULL else ((0.3, 0.7), 2)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "KNOTHOLE_DATA" not in os.environ, reason="KNOTHOLE_DATA is not set: no Insurance data"
    ),
]


@pytest.fixture(scope="module")
def results():
    data = panels.Insurance.load()
    records = []
    for rate in RATES:
        density = panels.choose_density(data.incomplete(rate, 0)[0], data.columns())
        for trial in range(TRIALS):
            records += panels.right_panel(data, density, rate, trial)
    return pd.DataFrame(records)


def means(results, settings):
    """Mean RMSE, a row for each rate and a column for each method."""
    part = results[results["settings"] == settings]
    return part.pivot_table(index="rate", columns="method", values="rmse")


def test_given_y_beats_xgboost_and_the_paper(results):
    found = means(results, FAIR)
    assert (found[OURS] < found[XGBOOST]).all()
    assert (found[OURS] < found[REFITTED]).all()


def missed(rate, ours, yardstick):
    """A target that is not reached, and is to be looked at again should it ever be."""
    reason = f"with these masks {ours}; leaves of complete training rows {yardstick}"
    return pytest.param(rate, marks=pytest.mark.xfail(strict=True, reason=reason))


@pytest.mark.skipif(not FULL, reason="KNOTHOLE_FULL is not set: too few trials")
@pytest.mark.parametrize(
    "rate", [missed(0.1, 5533, 5528), 0.3, 0.5, 0.7, missed(0.9, 11435, 11427)]
)
def test_given_y_reaches_its_targets(results, rate):
    assert means(results, FAIR)[OURS][rate] <= TARGETS[rate]


def test_given_y_is_as_good_as_knowing_the_training_rows(results):
    """Missing values in training cost hardly anything: leaves of complete rows gain 1 % at most."""
    found = means(results, FAIR)
    assert (found[OURS] < 1.01 * found[YARDSTICK]).all()


def test_the_paper_s_ordering_in_its_settings(results):
    found = means(results, PAPER)
    others = np.minimum(found[XGBOOST], found[EXPECTED])
    assert (found[REFITTED] < 0.85 * others).all()
    assert (found[OURS] < found[REFITTED]).all()
