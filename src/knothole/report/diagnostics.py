"""Beyond the error: single columns out, intervals against the truth, the density against data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from knothole import missingness
from knothole.arrays import Floats
from knothole.columns.columns import Columns, Kind, Variable
from knothole.report.measures import measure
from knothole.report.methods import KNOTHOLE, NATIVE, Case

# Rows drawn from the density to be held against the data.
SAMPLED = 4000


@dataclass(frozen=True, eq=False)
class Outage:
    """The error when one column (or one-hot block) is gone, for each, the worst first."""

    #: What is measured.
    metric: str
    #: Columns, by how much the first method suffers.
    names: tuple[str, ...]
    #: By method: float64 (columns,).
    errors: dict[str, Floats]
    #: The error with nothing missing.
    complete: float
    #: By method: what plots call it.
    labels: dict[str, str] = field(default_factory=dict)


def outages(case: Case, methods: tuple[str, ...] = (NATIVE, KNOTHOLE)) -> Outage:
    """Take out one variable after the other, and let methods answer."""
    answering = {name: method.learn(case.train) for name, method in case.methods(methods).items()}
    variables = case.robust.columns_.variables
    complete = measure(case.task, case.target, answering[KNOTHOLE].predict(case.test))
    metric = next(iter(complete))
    errors = {name: np.empty(len(variables)) for name in answering}
    for v, variable in enumerate(variables):
        poked = missingness.outage(case.test, list(variable.columns))
        for name, method in answering.items():
            errors[name][v] = measure(case.task, case.target, method.predict(poked))[metric]
    order = np.argsort(-errors[NATIVE if NATIVE in errors else KNOTHOLE], kind="stable")
    return Outage(
        metric=metric,
        names=tuple(variables[v].name for v in order),
        errors={name: error[order] for name, error in errors.items()},
        complete=complete[metric],
        labels=case.labels,
    )


@dataclass(frozen=True, eq=False)
class Coverage:
    """How often the model's answer to the complete row lies in the interval with holes."""

    #: What the central intervals promise.
    levels: tuple[float, ...]
    #: By hole rate: float64 (levels,), the share that they keep.
    covered: dict[float, Floats]


def coverage(
    case: Case,
    rates: Sequence[float] = (0.1, 0.3, 0.5, 0.7),
    levels: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
    seed: int = 0,
) -> Coverage:
    """Central intervals of the prediction, against the model's answer with nothing missing.

    Only rows that lost something count, all outputs of the model alike. A tree has few answers, so
    that many completions tie with the truth: where it stands among them is drawn at random, as if
    the ties were broken. The intervals of the right density then cover exactly what they promise.
    """
    expectation = case.robust.expectation_.rough
    rng = np.random.default_rng(seed)
    truth, _ = expectation.predict(expectation.evidence(case.test))
    covered = {}
    for r, rate in enumerate(rates):
        mask = missingness.mcar_mask(case.test, rate, seed + r)
        rows = np.flatnonzero(mask.any(axis=1))
        if len(rows):
            poked = missingness.apply_mask(case.test, mask).iloc[rows]
            found, _ = expectation.quantiles(expectation.evidence(poked), _GRID)
            place = _place(found, truth[rows], rng)
            inside = 2 * np.abs(place - 0.5)[:, :, None] <= np.asarray(levels)
            covered[rate] = inside.mean(axis=(0, 1))
    return Coverage(tuple(levels), covered)


# Levels of quantiles that stand for the whole distribution of a prediction.
_GRID = ((np.arange(128) + 0.5) / 128).tolist()


def _place(quantiles: Floats, truth: Floats, rng: np.random.Generator) -> Floats:
    """The share of quantiles below the truth (rows, outputs), ties broken at random."""
    slack = 1e-9 * (1 + np.abs(truth))[:, :, None]  # sums in another order
    below = (quantiles < truth[:, :, None] - slack).mean(axis=2)
    up_to = (quantiles <= truth[:, :, None] + slack).mean(axis=2)
    return np.asarray(below + rng.random(truth.shape) * (up_to - below))


@dataclass(frozen=True, eq=False)
class Asked:
    """What moves answers to rows with holes, and which hole would be worth filling."""

    #: Of the rows, and the share of their entries that was made missing.
    rows: int
    rate: float
    #: By variable: what it adds where known (mean size of its conditional Shapley values), and what
    #: knowing it would be worth where it is not (mean gain); NaN where no row tells.
    adds: pd.Series[float]
    gains: pd.Series[float]


def asked(case: Case, rate: float = 0.3, rows: int = 32, seed: int = 0) -> Asked:
    """Explain some held-out rows with holes, and ask what to find out about them."""
    some = missingness.mcar(case.test.iloc[:rows], rate, seed)
    found = case.robust.explain(some, tol=0.1, holes="all")
    sizes = np.abs(found.values).reshape(*found.data.shape, -1).mean(axis=2)
    adds = pd.DataFrame(sizes, columns=found.data.columns).where(found.data.notna().to_numpy())
    gains = case.robust.acquire(some, holes="all").gain
    worth = gains.mean().reindex(adds.columns)
    return Asked(len(some), rate, adds.mean().sort_values(ascending=False), worth)


@dataclass(frozen=True, eq=False)
class Marginal:
    """One variable as the data have it and as the density has it: shares of both, by bin."""

    name: str
    #: Of the histogram, (bins + 1,); None for categories.
    edges: Floats | None
    #: Of the categories.
    labels: tuple[str, ...]
    observed: Floats
    modelled: Floats

    @property
    def distance(self) -> float:
        """Half the sum of differences (total variation): 0 where the shares agree, at most 1."""
        return float(np.abs(self.observed - self.modelled).sum() / 2)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two numeric variables: points of the data and of the density."""

    names: tuple[str, str]
    observed: Floats
    modelled: Floats


@dataclass(frozen=True, eq=False)
class Fit:
    """The density against the data, by variable and by pairs of numeric variables."""

    #: In the order asked for.
    marginals: tuple[Marginal, ...]
    #: Those most strongly associated in the data, no variable twice.
    pairs: tuple[Pair, ...]
    #: Spearman's rank correlation of every pair, in the data and in the density.
    observed: Floats
    modelled: Floats


def density_fit(
    case: Case, names: Sequence[str] = (), *, shown: int = 12, pairs: int = 4, seed: int = 0
) -> Fit:
    """Hold draws from the density against the training table.

    Parameters
    ----------
    case : Case
        Model and rows.
    names : sequence of str
        Variables to show first, such as those whose outage hurts most.
    shown, pairs : int
        How many marginals and pairs.
    seed : int
        Of which rows are shown.
    """
    density = case.robust.density_
    columns = density.columns_
    rng = np.random.default_rng(seed)
    draws = density.sample_points(SAMPLED, rng)[:, : len(columns.variables)]
    points = columns.evidence(columns.matrix(case.train)).points
    places = {variable.name: v for v, variable in enumerate(columns.variables)}
    order = [places[name] for name in names if name in places]
    order += [v for v in range(len(places)) if v not in order]
    marginals = tuple(
        _marginal(columns.variables[v], points[:, v], draws[:, v]) for v in order[:shown]
    )
    numeric = [v for v in order if columns.variables[v].kind is not Kind.CATEGORICAL][: 4 * shown]
    observed, modelled = (_rank_correlations(rows[:, numeric]) for rows in (points, draws))
    upper = np.triu_indices(len(numeric), 1)
    known = np.isfinite(observed[upper]) & np.isfinite(modelled[upper])
    return Fit(
        marginals,
        _strongest(columns, numeric, observed, points, draws, pairs),
        observed[upper][known],
        modelled[upper][known],
    )


# Levels of a categorical that are shown one by one.
SHOWN_LEVELS = 12


def _marginal(variable: Variable, points: Floats, draws: Floats) -> Marginal:
    known, drawn = points[np.isfinite(points)], draws[np.isfinite(draws)]
    if variable.kind is Kind.CATEGORICAL:
        n = len(variable.levels)
        observed, modelled = (np.bincount(x.astype(np.intp), minlength=n) for x in (known, drawn))
        top = np.sort(np.argsort(-observed, kind="stable")[:SHOWN_LEVELS])
        return Marginal(
            variable.name,
            None,
            tuple(str(variable.levels[code]) for code in top),
            observed[top] / max(len(known), 1),
            modelled[top] / max(len(drawn), 1),
        )
    edges = _edges(known, variable.kind is Kind.INTEGER)
    return Marginal(variable.name, edges, (), _shares(known, edges), _shares(drawn, edges))


def _edges(values: Floats, whole: bool) -> Floats:
    """Ends of bins over what occurs, the outer half percent in the first and last bin."""
    low, high = np.quantile(values, [0.005, 0.995]) if len(values) else (0.0, 1.0)
    if whole and high - low <= 40:
        return np.arange(np.floor(low), np.ceil(high) + 2) - 0.5
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, 31)


def _shares(values: Floats, edges: Floats) -> Floats:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return np.asarray(counts / max(len(values), 1), dtype=np.float64)


def _rank_correlations(points: Floats) -> Floats:
    """Spearman's rank correlation of all pairs, each over the rows that have both."""
    known = pd.DataFrame(np.where(np.isfinite(points), points, np.nan))
    return known.corr("spearman", min_periods=3).to_numpy()


def _strongest(
    columns: Columns,
    numeric: list[int],
    correlation: Floats,
    points: Floats,
    draws: Floats,
    n: int,
    rows: int = 400,
) -> tuple[Pair, ...]:
    strength = np.abs(np.nan_to_num(np.triu(correlation, 1)))
    chosen: list[Pair] = []
    used: set[int] = set()
    for flat in np.argsort(-strength, axis=None, kind="stable"):
        i, j = np.unravel_index(flat, strength.shape)
        if len(chosen) == n or strength[i, j] == 0:
            break
        if {i, j} & used:
            continue
        used |= {int(i), int(j)}
        pair = [numeric[i], numeric[j]]
        both = points[:, pair][np.isfinite(points[:, pair]).all(axis=1)]
        drawn = draws[:, pair][np.isfinite(draws[:, pair]).all(axis=1)]
        names = (columns.variables[pair[0]].name, columns.variables[pair[1]].name)
        chosen.append(Pair(names, both[:rows], drawn[:rows]))
    return tuple(chosen)
