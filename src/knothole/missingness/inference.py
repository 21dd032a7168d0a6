"""Infer what a missing value means, lost or never recorded, by Bayes' rule for each row.

A density knows which variables are *nullable* (they were missing in training), and the probability
of "not recorded" given everything else. Suppose that a recorded value is lost with probability r,
independently of the others. Then a missing value of a nullable variable has likelihood 1 if it was
not recorded, and r if it was; a missing value of any other variable has likelihood r, an observed
one 1 - r. The rate r is unknown: a row has *hypotheses* (:class:`~.evidence.Hypotheses`), with a
:class:`LossPrior` as their prior, and an answer is the mean over their posterior.

=============  ====================================================================================
nothing        Nothing was lost: r = 0, which is how the model itself reads a missing value.
column         A single variable was lost in all rows, and nothing else.
scattered      r has a Beta prior. A row's likelihood is a polynomial in r, of degree n for n
               missing nullable variables, times powers of r and 1 - r: Gauss-Jacobi quadrature with
               (n + 1) / 2 nodes, rounded up, integrates it exactly. Every node is a hypothesis;
               more than :data:`NODES` are replaced by two with the same first three moments.
=============  ====================================================================================

If only one value is missing for an unknown reason, all hypotheses are merged into one: the odds
that it was not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.checks import check_number
from knothole.columns.columns import Variable
from knothole.columns.evidence import NOT_RECORDED, Evidence, Hypotheses
from knothole.errors import InvalidInput

#: How missing values of nullable variables are read.
NanPolicy = Literal["infer", "lost", "native"]

# The most rates for which a row is predicted if losses are scattered. Where exactness needs more,
# from four missing values on, two rates with the same mean, variance and third moment replace them.
NODES = 2
# Less probable hypotheses are dropped; no probability changes by more.
LEAST = 1e-9
# Rows per evaluation of the density.
ROWS = 4096


@dataclass(frozen=True)
class LossPrior:
    """The prior probability of each way in which values may have been lost.

    Attributes
    ----------
    nothing, column : float
        The probabilities that nothing, or a single variable, was lost; otherwise losses are
        scattered.
    a, b : float
        Parameters of the Beta prior of r, the probability that a value was lost, where losses are
        scattered.
    """

    nothing: float = 0.0
    column: float = 0.0
    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        """Refuse parameters that do not make a prior."""
        shares = self.nothing, self.column, 1 - self.nothing - self.column
        if not all(-1e-12 <= each <= 1 for each in shares):
            raise InvalidInput(
                f"LossPrior: nothing and column must be probabilities that add up to at most 1; "
                f"got nothing={self.nothing!r} and column={self.column!r}."
            )
        check_number("LossPrior: a", self.a, above=0)
        check_number("LossPrior: b", self.b, above=0)

    @property
    def scattered(self) -> float:
        """The probability that losses are scattered."""
        return max(0.0, round(1.0 - self.nothing - self.column, 12))


#: The prior unless y is given to choose another.
DEFAULT_PRIOR = LossPrior(column=0.3)
#: The priors to choose from, given y; None: a missing value says nothing.
PRIORS: dict[str, LossPrior | None] = {
    "a column, or scattered": DEFAULT_PRIOR,
    "scattered": LossPrior(),
    "mostly nothing": LossPrior(nothing=0.6, column=0.3, b=9.0),
    "anything": None,
}


@dataclass(frozen=True, eq=False)
class Reading:
    """How missing values of nullable variables are read.

    Attributes
    ----------
    "infer": by Bayes' rule. "lost": the density has no nullable variables. "native": not
    recorded, unless the caller marks the values as lost.
        were not recorded, unless the caller says that they were lost.
    prior : LossPrior or None
        None: a missing value says nothing.
    rates : float64 (variables,) or None
        In place of a prior: the probability with which each variable is lost in every row.
    """

    policy: NanPolicy = "infer"
    prior: LossPrior | None = DEFAULT_PRIOR
    rates: Floats | None = None

    def read(
        self,
        density: Any,
        evidence: Evidence,
        variables: Sequence[Variable],
        lost: Mask | None = None,
        absent: Sequence[int] = (),
    ) -> Evidence:
        """The evidence, with what missing values say about nullable variables.

        ``lost`` (rows, columns) marks values that are known to be lost; ``absent`` lists columns
        that the table does not have.
        """
        evidence, unknown, known = reasons(evidence, variables, lost, absent)
        if self.policy != "infer" or not unknown.any():
            return evidence
        if self.rates is not None:
            return _at_rates(evidence, unknown, self.rates, variables)
        if self.prior is None:
            return evidence
        missing = np.isnan(evidence.points[:, : len(variables)])
        others = (missing & ~unknown & ~known).sum(axis=1)
        point = not_recorded_points(variables)
        nullable = np.array([v.nullable for v in variables])
        unrecorded = nullable & (evidence.points[:, : len(variables)] == point)
        observed = (~missing & ~unrecorded).sum(axis=1)  # an unrecorded value cannot be lost
        return infer(density, evidence, unknown, others, observed, point, self.prior)


def reasons(
    evidence: Evidence,
    variables: Sequence[Variable],
    lost: Mask | None = None,
    absent: Sequence[int] = (),
) -> tuple[Evidence, Mask, Mask]:
    """Why variables are missing, as far as is known; the arguments are those of ``Reading.read``.

    Returns
    -------
    evidence : Evidence
        With values that are known to be lost.
    unknown, known : bool (rows, variables)
        Nullable variables that are missing for an unknown reason, and variables (missing or not)
        whose reason is known.
    """
    n = len(variables)
    nullable = np.array([v.nullable for v in variables])
    missing = np.isnan(evidence.points[:, :n])
    known = np.array([any(c in absent for c in v.columns) for v in variables])
    known = np.broadcast_to(known, missing.shape)
    # A partly observed one-hot group was recorded.
    asked = missing & nullable
    for v, rows, _ in evidence.restricted():
        asked[rows, v] = False
    if lost is not None and lost.any():
        gone = np.stack([lost[:, list(v.columns)].any(axis=1) for v in variables], axis=1)
        known = known | gone
        if (gone & asked).any():
            odds = np.ones_like(evidence.points)
            odds[:, :n][gone & asked] = 0.0
            evidence = replace(evidence, odds=odds)
    return evidence, asked & ~known, known


#: By Bayes' rule; and as the model itself reads missing values.
INFER, NATIVE = Reading(), Reading("native")


def _at_rates(
    evidence: Evidence, unknown: Mask, rates: Floats, variables: Sequence[Variable]
) -> Evidence:
    """Evidence if each variable has a known probability of being lost."""
    n = len(variables)
    odds = np.ones_like(evidence.points) if evidence.odds is None else evidence.odds.copy()
    points = evidence.points.copy()
    with np.errstate(divide="ignore"):
        odds[:, :n] = np.where(unknown & (rates > 0), 1 / rates, odds[:, :n])
    points[:, :n] = np.where(unknown & (rates == 0), not_recorded_points(variables), points[:, :n])
    return replace(evidence, points=points, odds=odds)


def infer(
    density: Any,
    evidence: Evidence,
    unknown: Mask,
    lost: NDArray[np.int64],
    observed: NDArray[np.int64],
    not_recorded: Floats,
    prior: LossPrior,
) -> Evidence:
    """The evidence with the hypotheses of each row and their posterior probabilities.

    ``unknown`` (rows, variables) marks values that are missing for an unknown reason; ``lost``
    (rows,) counts variables that must have been lost, ``observed`` (rows,) those that certainly
    were not.
    """
    n_rows, counts = len(unknown), unknown.sum(axis=1)
    key = np.stack([lost, observed, counts], axis=1)
    asked = np.flatnonzero(counts)
    kinds, kind = np.unique(key[asked], axis=0, return_inverse=True)
    made = [_hypotheses(m, o, n, prior) for m, o, n in kinds.tolist()]
    width = max(len(rate) for rate, _, _ in made)
    rate, weight = np.ones((n_rows, width)), np.full((n_rows, width), -np.inf)
    gone = np.full((n_rows, width), -1)
    for number, (rates, log_prior, which) in enumerate(made):
        rows, n = asked[kind.reshape(-1) == number], len(rates)
        rate[rows, :n], weight[rows, :n] = rates, log_prior
        # The row's missing variables first.
        where = np.argsort(~unknown[rows], axis=1, kind="stable")[:, : kinds[number, 2]]
        where = np.hstack([where, np.full((len(rows), 1), -1)])
        gone[rows, :n] = where[:, which]
    possible = Hypotheses((weight > -np.inf).astype(np.float64), rate, gone, unknown, not_recorded)
    asking, before = replace(evidence, hypotheses=possible), weight.copy()
    several = np.flatnonzero(possible.chance.sum(axis=1) > 1)
    for start in range(0, len(several), ROWS):
        rows = several[start : start + ROWS]
        row, place = np.nonzero(possible.chance[rows])
        weight[rows[row], place] += density.log_evidence(asking[rows].cases()[2])
    # A row that is impossible under the density keeps its prior.
    impossible = np.isneginf(weight).all(axis=1)
    weight[impossible] = before[impossible]
    weight[counts == 0, 0] = 0.0
    chance = _normalised(np.exp(weight - weight.max(axis=1, keepdims=True)))
    nodes = np.zeros(n_rows, dtype=np.int64)
    nodes[asked] = counts[asked] // 2 + 1
    for n in np.unique(nodes[nodes > NODES]).tolist():
        rows = np.flatnonzero((nodes == n) & (rate[:, :n] > 0).all(axis=1))
        chance[rows, :n], rate[rows, :n] = _two_nodes(chance[rows, :n], rate[rows, :n])
    chance[chance < LEAST] = 0.0
    chance = _normalised(chance)
    found = Hypotheses(chance, rate, gone, unknown, not_recorded)
    return replace(evidence, hypotheses=_ordered(found))


def acquired(
    density: Any, evidence: Evidence, known: Mask, points: Floats
) -> tuple[Evidence, Floats]:
    """The evidence once some missing values become known, and the probability of these values.

    Whether a value turns out to have been recorded changes the hypotheses: their probabilities
    become those given the values.

    Parameters
    ----------
    density : Density
    evidence : Evidence
    known : bool (rows, variables)
        Missing variables that become known; those of other variables are ignored.
    points : float64 (rows, variables)
        Their values.

    Returns
    -------
    evidence : Evidence
    log_p : float64 (rows,)
        Log probability of the values, up to a constant for each row.
    """
    told = evidence.hidden(known)
    told = replace(told, points=np.where(known, points, told.points))
    row, chance, before, after = np.arange(len(points)), np.ones(len(points)), evidence, told
    if evidence.hypotheses is not None:
        row, chance, before = evidence.cases()
        after = told.cases()[2]
    log_p = density.log_evidence(after)
    unrecorded = not_recorded_points(density.columns_.variables)
    for v in np.flatnonzero(known[:, : len(unrecorded)].any(axis=0)).tolist():
        own, none = known[row, v], after.points[:, v] == unrecorded[v]
        # A hypothesis may imply that nothing was recorded, or a probability of that.
        log_p[own & ~np.isnan(before.points[:, v]) & ~none] = -np.inf
        if before.odds is not None:
            with np.errstate(divide="ignore"):
                log_odds = np.log(before.odds[:, v])
            log_p += np.where(own & none & np.isnan(before.points[:, v]), log_odds, 0.0)
    if evidence.hypotheses is None or told.hypotheses is None:
        return told, log_p
    weight = np.full_like(evidence.hypotheses.chance, -np.inf)
    place = np.nonzero(evidence.hypotheses.chance)
    with np.errstate(invalid="ignore"):
        weight[place] = np.log(chance) + log_p - density.log_evidence(before)
    weight[np.isnan(weight)] = -np.inf
    top = weight.max(axis=1, keepdims=True)
    possible = np.isfinite(top)
    weight = np.exp(weight - np.where(possible, top, 0.0))
    weight = np.where(possible, weight, evidence.hypotheses.chance)
    log_p = np.where(possible, top + np.log(weight.sum(axis=1, keepdims=True)), -np.inf)[:, 0]
    found = replace(told.hypotheses, chance=_normalised(weight))
    return replace(told, hypotheses=_ordered(found)), log_p


def _ordered(hypotheses: Hypotheses) -> Hypotheses:
    """Sorted by probability, descending, with no more columns than some row needs."""
    chance = hypotheses.chance
    order = np.argsort(-chance, axis=1, kind="stable")
    order = order[:, : int(np.count_nonzero(chance, axis=1).max(initial=1))]
    return replace(
        hypotheses,
        chance=np.take_along_axis(chance, order, axis=1),
        rate=np.take_along_axis(hypotheses.rate, order, axis=1),
        gone=np.take_along_axis(hypotheses.gone, order, axis=1),
    )


def _normalised(chance: Floats) -> Floats:
    """Normalised rows; the bits of the sums do not depend on how many zeros follow."""
    return np.asarray(chance / np.cumsum(chance, axis=1)[:, -1:])


def _two_nodes(chance: Floats, rate: Floats) -> tuple[Floats, Floats]:
    """Replace rates by two with the same mean, variance and third moment; the rest become 0."""
    total = chance.sum(axis=1, keepdims=True)
    share = chance / np.where(total > 0, total, 1.0)
    mean = (share * rate).sum(axis=1, keepdims=True)
    variance = (share * (rate - mean) ** 2).sum(axis=1, keepdims=True)
    third = (share * (rate - mean) ** 3).sum(axis=1, keepdims=True)
    spread = np.sqrt(variance)
    skew = np.divide(third, spread**3, out=np.zeros_like(third), where=variance > 0) / 2
    above = skew + np.sqrt(skew**2 + 1)  # the product of the two is -1
    part = 1 / (1 + above**2)
    out, rates = np.zeros_like(chance), rate.copy()
    out[:, :2] = total * np.hstack([part, 1 - part])
    rates[:, :2] = np.clip(
        mean + spread * np.hstack([above, -1 / above]),
        rate.min(axis=1, keepdims=True),
        rate.max(axis=1, keepdims=True),
    )
    return out, rates


def _hypotheses(
    lost: int, observed: int, n: int, prior: LossPrior
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Rates, log prior weights, and which missing variable is lost for certain (or -1).

    For rows in which ``n`` variables are missing for an unknown reason.
    """
    rate: list[float] = []
    weight: list[float] = []
    gone: list[int] = []
    if prior.nothing > 0 and lost == 0:
        rate, weight, gone = [0.0], [float(np.log(prior.nothing))], [-1]
    if prior.column > 0 and lost <= 1:  # the lost one is nullable, or it is the other one
        out = list(range(n)) if lost == 0 else [-1]
        column = float(np.log(prior.column / (lost + observed + n)))
        rate, weight, gone = rate + [0.0] * len(out), weight + [column] * len(out), gone + out
    # If the prior rules out everything else, losses count as scattered.
    if prior.scattered > 0 or not weight:
        a, b = prior.a + lost, prior.b + observed
        nodes, log_share = gauss_jacobi(a, b, n // 2 + 1)
        # log(B(a, b) / B(prior.a, prior.b)), as a ratio of products.
        of_nodes = np.log(prior.scattered or 1.0) + np.log(prior.a + np.arange(lost)).sum()
        of_nodes += np.log(prior.b + np.arange(observed)).sum()
        of_nodes -= np.log(prior.a + prior.b + np.arange(lost + observed)).sum()
        # The density is evaluated with odds of 1 / r for "not recorded": a factor r**n is missing.
        of_nodes = of_nodes + log_share + n * np.log(nodes)
        rate, weight = [*nodes.tolist(), *rate], [*of_nodes.tolist(), *weight]
        gone = [-1] * len(nodes) + gone
    rates, weights, which = np.array(rate), np.array(weight), np.array(gone)
    if n > 1:
        return rates, weights, which
    # A single missing value: each hypothesis gives odds that it was not recorded, and together they
    # are one hypothesis. If the variable is lost for certain, its odds are even; at rate 0 nothing
    # was recorded.
    recorded = np.where(rates > 0, weights, np.where(which == 0, weights, -np.inf))
    with np.errstate(divide="ignore"):
        not_recorded = np.where(rates > 0, weights - np.log(rates), weights)
    both = np.logaddexp.reduce(recorded), np.logaddexp.reduce(not_recorded)
    rate_of_all = np.exp(both[0] - both[1])
    weight_of_all = both[0] if rate_of_all > 0 else both[1]
    return np.array([rate_of_all]), np.array([weight_of_all]), np.array([-1])


@lru_cache(maxsize=4096)
def gauss_jacobi(a: float, b: float, n: int) -> tuple[Floats, Floats]:
    """Nodes and log weights of Gauss quadrature under a Beta(a, b) density.

    Exact for polynomials up to degree 2 n - 1. The nodes are computed by Golub and Welsch's
    method. The weights sum to 1; their logarithms are -log(sum of p_k**2) with the orthonormal
    polynomials p_k at the nodes: a product of many small rates is largest at nodes of tiny weights,
    which have no correct digit if computed from eigenvectors.

    Examples
    --------
    >>> nodes, log_weights = gauss_jacobi(2.0, 3.0, 2)
    >>> weights = np.exp(log_weights)
    >>> round(float(weights @ nodes), 12), round(float(weights @ nodes**3), 12)
    (0.4, 0.114285714286)
    """
    k, total = np.arange(n, dtype=np.float64), a + b - 2.0
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (a - b) * total / ((2 * k + total) * (2 * k + total + 2))
        middle[0] = (a - b) / (a + b)
        j = k[1:]
        beside = 4 * j * (j + a - 1) * (j + b - 1) * (j + total)
        beside = beside / ((2 * j + total) ** 2 * (2 * j + total + 1) * (2 * j + total - 1))
    if n > 1:
        beside[0] = 4 * a * b / ((a + b) ** 2 * (a + b + 1))
    beside = np.sqrt(beside)
    x = np.linalg.eigvalsh(np.diag(middle) + np.diag(beside, -1))  # uses the lower triangle
    before, now = np.zeros(n), np.ones(n)
    squares, scale = np.ones(n), np.zeros(n)
    for i in range(n - 1):
        further = (x - middle[i]) * now - (beside[i - 1] * before if i else 0.0)
        before, now = now, further / beside[i]
        squares = squares + now**2
        large = np.sqrt(squares)  # avoids overflow
        before, now, squares, scale = before / large, now / large, np.ones(n), scale + np.log(large)
    return (1.0 + x) / 2, -2 * scale - np.log(squares)


# Passes over the variables to estimate their loss rates, and the change at which they end.
SWEEPS, CHANGE = 20, 1e-3
# Grid of rates from 0 to 1. Rates within FIT of the best log likelihood fit equally well; if
# these span more than APART, the rate is unknown.
GRID, FIT, APART = 201, 2.0, 0.5


def learn_rates(
    density: Any, evidence: Evidence, unknown: Mask, variables: Sequence[Variable]
) -> tuple[Floats, Mask]:
    """The probability with which each variable is lost, and which ones cannot be determined.

    Maximum likelihood, one variable at a time until none changes: a row in which it is missing
    has likelihood r p(row) + (1 - r) p(row, not recorded), one in which it is observed 1 - r. The
    rate of a variable that is not nullable is the share of rows in which it is missing.
    """
    missing = np.isnan(evidence.points[:, : len(variables)])
    nullable = np.array([v.nullable for v in variables])
    rates, unsure = missing.mean(axis=0), np.zeros(len(variables), dtype=np.bool_)
    grid = np.linspace(0.0, 1.0, GRID)
    for _ in range(SWEEPS):
        before = rates.copy()
        for v in np.flatnonzero(nullable).tolist():
            rows = np.flatnonzero(unknown[:, v])
            others = unknown[rows].copy()
            others[:, v] = False
            plain = _at_rates(evidence[rows], others, rates, variables)
            points = plain.points.copy()
            points[:, v] = not_recorded_points(variables)[v]
            share = np.exp(
                density.log_evidence(replace(plain, points=points)) - density.log_evidence(plain)
            )  # p(row, not recorded)
            share = np.nan_to_num(np.minimum(share, 1.0), nan=1.0)
            observed = np.count_nonzero(~missing[:, v])
            with np.errstate(divide="ignore", invalid="ignore"):
                fit = np.log(grid[:, None] + (1 - grid[:, None]) * share).sum(axis=1)
                fit = fit + (observed * np.log1p(-grid) if observed else 0.0)
            as_good = grid[fit >= fit.max() - FIT]
            rates[v], unsure[v] = grid[fit.argmax()], np.ptp(as_good) > APART
        if np.abs(rates - before).max(initial=0.0) < CHANGE:
            break
    return rates, unsure


def lost_probability(density: Any, evidence: Evidence, nullable: Mask) -> Floats:
    """The probability that each missing value was recorded and then lost, (rows, variables).

    NaN where a value is observed.
    """
    n = len(nullable)
    missing = np.isnan(evidence.points[:, :n])
    out = np.where(missing, 1.0, np.nan)
    if not nullable.any():
        return out
    row, chance = np.arange(len(missing)), np.ones(len(missing))
    cases = evidence
    if evidence.hypotheses is not None:
        row, chance, cases = evidence.cases()
    log_p = density.log_evidence(cases)
    odds = np.ones_like(cases.points) if cases.odds is None else cases.odds
    point = not_recorded_points(density.columns_.variables)
    possible = odds > 0
    for v, rows, allowed in cases.restricted():
        possible[rows, v] &= allowed[:, -1]
    for v in np.flatnonzero(nullable).tolist():
        asked = np.flatnonzero(np.isnan(cases.points[:, v]) & possible[:, v])
        known = cases[asked].points.copy()
        known[:, v] = point[v]
        log_q = density.log_evidence(replace(cases[asked], points=known))
        share = np.zeros(len(row))
        with np.errstate(invalid="ignore"):
            ratio = np.exp(np.log(odds[asked, v]) + log_q - log_p[asked])
        share[asked] = np.nan_to_num(np.minimum(ratio, 1.0), nan=1.0)
        share[missing[row, v] & ~np.isnan(cases.points[:, v])] = 1.0
        unrecorded = np.bincount(row, chance * share, minlength=len(missing))
        out[:, v] = np.where(missing[:, v], 1.0 - unrecorded, np.nan)
    return np.clip(out, 0.0, 1.0)


def not_recorded_points(variables: Sequence[Variable]) -> Floats:
    """The point of each variable that says "not recorded"."""
    return np.array([len(v.levels) - 1 if v.levels else NOT_RECORDED for v in variables])
