"""Enumeration of what was lost, what was not recorded, and of all values; and cases for it."""

import warnings
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from scipy.special import betaln
from sklearn.exceptions import ConvergenceWarning
from tests.expectation.cases import EXACT, as_table, training_matrix
from tests.expectation.naive import cells_of
from tests.trees.generate import random_ensemble

from knothole.columns.columns import NOT_RECORDED, OneHotGroup
from knothole.columns.evidence import Evidence
from knothole.missingness.inference import LossPrior
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import in_variables
from knothole.trees.links import Link

#: Variables: a category, a number, a category, a number, a one-hot group of three columns. All but
#: the first and the fourth are nullable.
N_VARIABLES = 5
NULLABLE = np.array([False, True, True, False, True])
MEMBERS = ([0], [1], [2], [3], [4, 5, 6])


@dataclass(frozen=True)
class Case:
    """An ensemble, a density over its columns, and rows; what of them is known to be lost."""

    ensemble: Ensemble
    density: Any
    rows: np.ndarray
    lost: np.ndarray
    nullable: np.ndarray
    members: tuple[list[int], ...]


def losing_case(
    seed, density="Mixture", n_rows=4, rate=0.45, n_trees=3, depth=3, link="identity", marked=0.0,
    n_outputs=1,
):  # fmt: skip
    """Rows of which values are missing, some groups in part; a share of them is marked as lost."""
    rng = np.random.default_rng(seed)
    levels = (3, 0, 2, 0, 0, 0, 0)
    ensemble = random_ensemble(
        seed=seed, n_trees=n_trees, depth=depth, levels=levels, n_outputs=n_outputs
    )
    ensemble = replace(ensemble, link=Link(link))
    X = training_matrix(levels, 80, rng)
    columns = ensemble.columns.describe(as_table(ensemble.columns, X))
    columns = replace(columns, one_hot=(OneHotGroup("group", (4, 5, 6)),))
    columns = columns.with_nullable([False, True, True, False, True, True, True])
    group = X[:, 3] > 0.3  # what is not recorded goes together, and with a number
    for v, members in enumerate(MEMBERS):
        if NULLABLE[v]:
            gone = rng.random(len(X)) < np.where(group, 0.5, 0.1)
            X[np.ix_(gone, members)] = np.nan
    made = EXACT[density](seed) if isinstance(density, str) else density
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = made.fit(as_table(columns, X), columns=columns)
    rows = training_matrix(levels, n_rows, rng)
    for v, members in enumerate(MEMBERS):
        gone = rng.random(n_rows) < rate
        rows[np.ix_(gone, members)] = np.nan
        if len(members) > 1:  # in part: two of three
            some = np.flatnonzero(~gone & (rng.random(n_rows) < 0.3))
            rows[some, members[v % 2]] = np.nan
            rows[some, members[2]] = np.nan
    lost = np.isnan(rows) & (rng.random(rows.shape) < marked)
    return Case(ensemble, fitted, rows, lost, NULLABLE, MEMBERS)


def categories_case(seed, density="Mixture", n_rows=4, n=6):
    """Categories alone, all of them nullable, of which one row lacks all and others most."""
    rng = np.random.default_rng(seed)
    levels = (2,) * n
    ensemble = random_ensemble(seed=seed, n_trees=3, depth=4, levels=levels)
    group = rng.integers(0, 2, 200)
    X = (rng.random((200, n)) < 0.2 + 0.6 * group[:, None]).astype(float)
    columns = ensemble.columns.describe(as_table(ensemble.columns, X))
    columns = columns.with_nullable(np.ones(n, dtype=bool))
    X[rng.random((200, n)) < 0.05 + 0.3 * rng.random((200, 1))] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = EXACT[density](seed).fit(as_table(columns, X), columns=columns)
    rows = (rng.random((n_rows, n)) < 0.5).astype(float)
    rows[rng.random(rows.shape) < 0.8] = np.nan
    rows[0] = np.nan
    members = tuple([v] for v in range(n))
    return Case(ensemble, fitted, rows, np.zeros(rows.shape, bool), np.ones(n, bool), members)


def plain(case):
    """Evidence of rows whose missing values say nothing."""
    return case.density.columns_.evidence(case.rows, np.isnan(case.rows))


@dataclass(frozen=True)
class Losses:
    """What may have happened to one row, by enumeration.

    Attributes
    ----------
    cell : int (outcomes, variables)
        The cell (:func:`~tests.expectation.naive.cells_of`) that each variable is in, -1 where it
        is observed.
    probability : float64 (outcomes,)
    lost : float64 (variables,)
        The probability that each variable was recorded, and lost; NaN where it is observed.
    margins, predictions : float64 (outcomes, outputs)
    leaf_probabilities : float64 (leaves,)
    """

    cell: np.ndarray
    probability: np.ndarray
    lost: np.ndarray
    margins: np.ndarray
    predictions: np.ndarray
    leaf_probabilities: np.ndarray

    @property
    def mean(self):
        return self.probability @ self.margins

    @property
    def std(self):
        return np.sqrt(self.probability @ (self.margins - self.mean) ** 2)

    @property
    def prediction(self):
        return self.probability @ self.predictions

    def gain(self, v):
        """What knowing a variable is expected to take off the variance of the margin."""
        found = 0.0
        for value in np.unique(self.cell[:, v]):
            own = self.cell[:, v] == value
            share = self.probability[own].sum()
            if share > 0:
                here = self.probability[own] @ self.margins[own] / share
                found += share * ((here - self.mean) ** 2).sum()
        return found


def prior_weight(prior: LossPrior):
    """From how many are lost, must be lost, are observed and are unknown to a likelihood."""

    def weight(lost, must, observed, unknown):
        n_lost, total = len(lost) + must, must + observed + len(unknown)
        scattered = 1 - prior.nothing - prior.column
        ratio = betaln(prior.a + n_lost, prior.b + observed) - betaln(prior.a, prior.b)
        out = scattered * np.exp(ratio)
        if n_lost == 0:
            # Or the column that is out was not recorded in this row anyway.
            out += prior.nothing + prior.column / max(total, 1) * len(unknown)
        if n_lost == 1:
            out += prior.column / total
        return out

    return weight


def rate_weight(rates):
    """The same for variables that are lost with rates of their own."""
    return lambda lost, must, observed, unknown: np.prod([rates[v] for v in lost])


def enumerate_losses(case, row, weight, absent=()):
    """Add up over all cells of all missing variables, each lost or not recorded."""
    density, original = case.density, case.ensemble
    ensemble = in_variables(original, density.columns_)
    evidence = plain(case)[row : row + 1]
    point = evidence.points[0]
    allowed = {v: sets[0] for v, _, sets in evidence.restricted()}
    members, n_variables = case.members, len(case.members)
    missing = [v for v in range(n_variables) if np.isnan(point[v])]
    marked = {v for v in missing if case.lost[row, members[v]].any()}
    known = marked | {v for v in missing if set(members[v]) & set(absent)}
    unknown = [v for v in missing if case.nullable[v] and v not in known and v not in allowed]
    must = len([v for v in missing if v not in known and v not in unknown])
    terms = density.terms(Evidence(evidence.points))
    cells, logs = {}, {}
    for v in missing:
        cells[v] = cells_of(ensemble, density, v)
        if v in allowed:
            cells[v] = [cell for cell in cells[v] if allowed[v][cell[0].codes[0]]]
        if v in marked:
            cells[v] = [cell for cell in cells[v] if not _none(density, v, cell)]
        logs[v] = np.stack([density.log_region(cell[0]) for cell in cells[v]])
    outcomes = list(product(*(range(len(cells[v])) for v in missing)))
    which = np.array(outcomes, dtype=int).reshape(len(outcomes), len(missing))
    points = np.repeat(point[None, :n_variables], len(which), axis=0)
    cell = np.full((len(which), n_variables), -1)
    recorded = np.zeros((len(which), n_variables), dtype=bool)
    terms = [np.repeat(term, len(which), axis=0) for term in terms]
    for place, v in enumerate(missing):
        terms[v] = logs[v][which[:, place]]
        points[:, v] = np.array([one[1] for one in cells[v]])[which[:, place]]
        cell[:, v] = which[:, place]
        here = np.array([not _none(density, v, one) for one in cells[v]])
        recorded[:, v] = here[which[:, place]]
    log_p = density.combine(terms)
    p = np.exp(log_p - log_p.max())
    n_observed = n_variables - len(missing)
    for i in range(len(which)):
        p[i] *= weight([v for v in unknown if recorded[i, v]], must, n_observed, unknown)
    p /= p.sum()
    leaves = ensemble.leaves(points, 1)
    indicator = np.zeros((len(points), ensemble.n_leaves))
    np.put_along_axis(indicator, leaves, 1.0, axis=1)
    lost = np.full(n_variables, np.nan)
    lost[missing] = [p @ recorded[:, v] for v in missing]
    margins = ensemble.margin(points, 1)
    return Losses(cell, p, lost, margins, ensemble.link(margins), p @ indicator)


def _none(density, v, cell):
    """Whether a cell is "not recorded"."""
    if not density.variables_[v].nullable:
        return False
    levels = len(density.variables_[v].levels)
    return cell[1] == (levels - 1 if levels else NOT_RECORDED)
