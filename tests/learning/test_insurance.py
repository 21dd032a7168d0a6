"""The paper's experiment on Insurance, in a small form.

With ``KNOTHOLE_FULL`` set: all rates of holes and ten trials, against the errors that tuning
conditioned on the target has to reach.
"""

import os

import numpy as np
import pytest
from tests.learning.insurance import FAIR, PAPER, RATES, Insurance, table

from knothole.densities.mixture import Mixture

FULL = bool(os.environ.get("KNOTHOLE_FULL"))
TARGETS = dict(zip(RATES, (5450, 6900, 8350, 9950, 11350), strict=True))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "KNOTHOLE_DATA" not in os.environ, reason="KNOTHOLE_DATA is not set: no Insurance data"
    ),
]


@pytest.fixture(scope="module")
def data():
    return Insurance.load()


def run(data, settings):
    if FULL:
        return table(data, settings, trials=10)
    return table(data, settings, trials=2, density=Mixture(4, random_state=0), rates=(0.3, 0.7))


def test_given_y_beats_xgboost_and_the_paper(data):
    found = run(data, FAIR)
    assert (found["given y"] < found["XGBoost"]).all()
    assert (found["given y"] < found["expected loss"]).all()
    if FULL:
        assert (found["given y"] <= [TARGETS[rate] for rate in found.index]).all(), found


def test_the_paper_s_ordering_in_its_settings(data):
    found = run(data, PAPER)
    others = np.minimum(found["XGBoost"], found["expected prediction"])
    assert (found["expected loss"] < 0.85 * others).all()
    assert (found["given y"] < found["expected loss"]).all()
