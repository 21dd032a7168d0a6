"""Reported errors hold where a value that hardly any draw meets changes the answer.

Discrete tables whose columns have rare levels; all that missing values may be is enumerated.
"""

import itertools
import os

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.ensemble import GradientBoostingClassifier

import knothole as kh
from knothole.columns.evidence import Evidence
from knothole.densities.base import Within
from knothole.expectation.expectation import Expectation
from knothole.expectation.monte_carlo.rare import PROBES, Cell, Pairs, Probes, missed
from knothole.expectation.monte_carlo.statistics import std_of

FULL = bool(os.environ.get("KNOTHOLE_FULL"))
SEEDS = 40 if FULL else 8
LEVELS = [
    [0.998, 0.002], [0.98, 0.02], [0.9, 0.07, 0.02, 0.01], [0.34, 0.33, 0.33], [0.7, 0.3],
    [0.995, 0.005],
]  # fmt: skip
DENSITIES = {
    "Mixture": lambda: kh.Mixture(6, n_init=1, random_state=0),
    "GaussianMixture": lambda: kh.GaussianMixture(3, random_state=0),
    "LatentTree": lambda: kh.LatentTree(4, n_init=1, random_state=0),
    "Factorized": kh.Factorized,
    "Circuit": lambda: kh.Mixture(4, n_init=1, random_state=0),
}


def table(seed, n=4000):
    """Levels, and a score that some of them, and two together, move far."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.choice(len(p), n, p=p) for p in LEVELS], axis=1)
    codes[:, 4] = np.where(rng.random(n) < 0.5, codes[:, 3] > 0, codes[:, 4])
    effects = [4 * rng.normal(size=len(p)) for p in LEVELS]
    effects = [np.append(effect[0] / 2, effect[1:]) for effect in effects]
    score = sum(effect[codes[:, j]] for j, effect in enumerate(effects))
    score = score + 3 * (codes[:, 3] == 1) * (codes[:, 4] == 0) + 0.5 * rng.normal(size=n)
    columns = {
        f"c{j}": pd.Categorical(codes[:, j], categories=range(len(p))) for j, p in enumerate(LEVELS)
    }
    return pd.DataFrame(columns), score


def enumerated(expectation, density, evidence):
    """Means and standard deviations of predictions, (rows, outputs) each."""
    found = []
    for point in evidence.points:
        missing = np.flatnonzero(np.isnan(point))
        levels = [range(len(LEVELS[v])) for v in missing]
        points = np.repeat(point[None], np.prod([len(each) for each in levels], dtype=int), axis=0)
        points[:, missing] = list(itertools.product(*levels))
        log_p = density.log_evidence(Evidence(points))
        weight = np.exp(log_p - log_p.max())
        weight /= weight.sum()
        values = expectation.ensemble.predict(points)
        mean = weight @ values
        found.append((mean, np.sqrt(weight @ (values - mean) ** 2)))
    return [np.array(each) for each in zip(*found, strict=True)]


MODELS = ["regressor", "two classes", "three classes"]


@pytest.mark.parametrize("name", DENSITIES if FULL else ["Mixture", "GaussianMixture"])
def test_errors_of_answers_under_rare_levels(name):
    """Of predictions, probabilities and standard deviations; all models count together."""
    found = [errors_of_answers(name, model) for model in MODELS]
    of_std = np.concatenate([std for _, std in found])
    of_probability = np.concatenate([mean for mean, _ in found[1:]])
    for z in (found[0][0], of_probability, of_std):
        assert (z > 3).mean() <= 0.015
        assert not (z > 10).any()


def errors_of_answers(name, model):
    """Largest errors of each row, in reported ones: of means and of standard deviations."""
    X, score = table(0)
    common = {"n_estimators": 30, "max_depth": 3, "n_jobs": 1, "enable_categorical": True}
    if model == "regressor":
        fitted = xgb.XGBRegressor(**common).fit(X, score)
    else:
        parts = [0.5] if model == "two classes" else [1 / 3, 2 / 3]
        fitted = xgb.XGBClassifier(**common).fit(X, np.digitize(score, np.quantile(score, parts)))
    robust = kh.wrap(fitted, X, density=DENSITIES[name](), correction=False)
    density = robust.density_.to_circuit() if name == "Circuit" else robust.density_
    rows = X.sample(80, random_state=1).reset_index(drop=True)
    hidden = np.random.default_rng(5).random(rows.shape) < 0.5
    rows = rows.mask(hidden)
    spread = Expectation.of(robust.ensemble_, density).spread
    truth, beyond = None, {"mean": [], "std": []}
    for seed in range(SEEDS):
        expectation = Expectation.of(robust.ensemble_, density, seed=seed, spread=spread)
        evidence = expectation.evidence(rows)
        truth = truth or enumerated(expectation, density, evidence)
        answers = expectation.predict(evidence), expectation.std(evidence)
        for what, (value, error), true in zip(beyond, answers, truth, strict=True):
            off = np.abs(value - true)
            off[off < 1e-6 * np.maximum(1.0, np.abs(true))] = 0.0
            beyond[what].append((off / np.maximum(error, 1e-300)).max(axis=1))
    return [np.concatenate(z) for z in beyond.values()]


def test_a_rare_level_that_decides_the_answer_is_within_three_errors():
    """Seven of 4,000 rows have it; all draws of a row may lack it, and agree."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, 4000))
    rare = rng.random(4000) < 0.002
    y = (x > -5) & ~rare & (rng.random(4000) >= 0.02)
    X = np.column_stack([x, z, rare])
    model = GradientBoostingClassifier(n_estimators=30, random_state=0).fit(X, y)
    density = kh.Mixture(4, random_state=0).fit(X)
    robust = kh.wrap(model, X, density=density, correction=False)
    row = np.array([[0.3, np.nan, np.nan]])
    drawn = density.complete(row, 10**6)[0]
    predictions = robust.ensemble_.predict(drawn)
    truth, spread = predictions.mean(axis=0), predictions.std(axis=0)
    assert spread.max() > 0.03
    for seed in range(SEEDS):
        expectation = Expectation.of(robust.ensemble_, density, seed=seed)
        evidence = expectation.evidence(row)
        mean, error = expectation.predict(evidence)
        std, std_error = expectation.std(evidence)
        noise = spread / 1000
        assert (np.abs(mean[0] - truth) <= 3 * np.hypot(error[0], noise)).all()
        assert (np.abs(std[0] - spread) <= 3 * np.hypot(std_error[0], 20 * noise)).all()


def test_probes_are_draws_of_the_row_with_values_put_in():
    rng = np.random.default_rng(0)
    cells = [Cell(Within(v, codes=(code,)), float(code)) for v in range(4) for code in range(3)]
    row = np.repeat([2, 5, 6], [1, 7, 4])
    first = rng.integers(12, size=12)
    second = np.where(rng.random(12) < 0.5, (first + 5) % 12, -1)
    pairs = Pairs(row, first, second, rng.random(12))
    drawn = 10 + rng.random((3, 4, PROBES))
    probes = Probes.of(pairs, cells, drawn)
    of_word = probes.draws.reshape(len(probes.draws), 4, -1, PROBES)
    for number, of_row in enumerate(np.searchsorted([2, 5, 6], row)):
        expected = drawn[of_row].copy()
        np.testing.assert_array_equal(of_word[probes.first[number], :, 0], expected)
        for cell in (first[number], second[number]):
            if cell >= 0:
                expected[cells[cell].within.variable] = cells[cell].value
        found = of_word[probes.word[number], :, probes.slot[number]]
        np.testing.assert_array_equal(found, expected)
        assert probes.row[probes.word[number]] == of_row
    margins = rng.random((len(probes.draws), 64, 2))
    inside, beside = probes.margins(margins)
    word, slot = probes.word[3], probes.slot[3]
    np.testing.assert_array_equal(inside[3], margins[word, slot * PROBES : (slot + 1) * PROBES])
    np.testing.assert_array_equal(beside[3], margins[probes.first[3], :PROBES])


def test_few_draws_that_make_up_a_spread_have_the_error_of_independent_draws():
    rng = np.random.default_rng(0)
    margins = 1e-3 * rng.normal(size=(1, 8, 32, 1))
    margins[0, :, 0] = 1.0  # one in each group: the groups agree
    std, error = std_of(lambda values: values)(margins, np.arange(1))
    square = (margins - margins.mean()) ** 2
    independent = square.std() / np.sqrt(square.size) / (2 * std)
    np.testing.assert_allclose(error, independent, rtol=1e-9)
    many = rng.normal(size=(1, 8, 3200, 1))
    std, error = std_of(lambda values: values)(many, np.arange(1))
    assert error < 3 * std / np.sqrt(2 * many.size)


def test_what_nets_leave_of_common_values():
    """Each of 8 groups meets a value as often as it should, rounded down or up."""
    mass = np.array([0.5, 0.3, 0.002])
    found = missed(mass, 256)
    np.testing.assert_allclose(found, [0.0, 8 * 0.6 * 0.4 / 256, 0.002], atol=1e-12)
