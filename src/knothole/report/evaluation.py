"""Everything a report shows, measured in one go.

Errors of each method over a range of missing rates, on the same rows with the same missing values;
single columns out; intervals against the truth; the density against data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from knothole import missingness
from knothole.arrays import Floats
from knothole.checks import check_whole
from knothole.columns.columns import Columns, Kind, Variable
from knothole.progress import Advance, silent
from knothole.report.methods import KNOTHOLE, METHODS, NATIVE, Case, Method, Task, measure

RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
# Rows, fewer and more, that tell whether a method takes longer than these seconds.
FEW = (50, 200)
PATIENCE = 15.0


@dataclass(frozen=True, eq=False)
class Robustness:
    """Errors of methods by rate of missing values."""

    #: Shares of entries that were made missing.
    rates: tuple[float, ...]
    #: By metric, then by method: float64 (rates, repeats). All metrics are errors: less is better.
    #: The first is the main one.
    errors: dict[str, dict[str, Floats]]
    #: By metric: the error of the best answer that ignores the row.
    constant: dict[str, float]
    #: How many rows were predicted, each time.
    rows: int
    #: By method: seconds to predict 1000 rows with missing values, on average.
    seconds: dict[str, float] = field(default_factory=dict)
    #: By method: seconds to learn how to fill; of knothole those of wrapping, NaN if not known.
    learning: dict[str, float] = field(default_factory=dict)
    #: By method: what plots call it.
    labels: dict[str, str] = field(default_factory=dict)
    #: By method that was left out: seconds that it would have taken.
    left_out: dict[str, float] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The main metric."""
        return next(iter(self.errors))

    @property
    def repeats(self) -> int:
        """How often values were made missing at each rate."""
        return int(next(iter(self.errors[self.metric].values())).shape[1])

    def table(self, metric: str | None = None) -> pd.DataFrame:
        """Mean error over the repeats: a row a method, a column a rate."""
        errors = self.errors[self.metric if metric is None else metric]
        means = {method: error.mean(axis=1) for method, error in errors.items()}
        return pd.DataFrame.from_dict(means, orient="index", columns=list(self.rates))


@dataclass(frozen=True)
class Comparison:
    """Which methods answer, at which rates of missing values, and how often.

    Parameters
    ----------
    rates : tuple of float
        Shares of entries to make missing; natural missing values come on top.
    repeats : int
        How often, with other masks each time.
    methods : tuple of str
        Some of :data:`~knothole.report.methods.METHODS`.
    seed : int
        Of masks and imputers.
    patience : float, optional
        Seconds that a method other than knothole may take for all predictions, as far as a try on
        a few rows tells; one that would take longer is left out. By default there is no limit.
    """

    rates: tuple[float, ...] = RATES
    repeats: int = 5
    methods: tuple[str, ...] = METHODS
    seed: int = 0
    patience: float | None = None

    def __post_init__(self) -> None:
        check_whole("repeats", self.repeats)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Places of a rate and a repeat; without missing values all repeats are one."""
        for place, rate in enumerate(self.rates):
            yield from ((place, repeat) for repeat in range(self.repeats if rate > 0 else 1))


#: What a report shows unless told otherwise.
USUAL = Comparison()


def compare(
    case: Case, comparison: Comparison = USUAL, learning: float = nan, advance: Advance = silent
) -> Robustness:
    """Make values missing completely at random, and let every method answer the same rows.

    Parameters
    ----------
    case : Case
        Model and rows.
    comparison : Comparison
        Methods, rates, repeats.
    learning : float
        Seconds that wrapping took, where known, to be shown beside the others' learning.
    advance : callable
        Told the label of each method when it has learned, and after each of its runs.
    """
    rates, repeats, seed = comparison.rates, comparison.repeats, comparison.seed
    one_hot = {group.name: list(group.columns) for group in case.robust.columns_.one_hot} or None
    methods, runs = case.methods(comparison.methods), list(comparison.runs())
    left_out = too_slow(case, comparison, methods, one_hot)
    for name in left_out:
        del methods[name]
        advance(case.labels[name], 1 + len(runs))
    learned: dict[str, float] = {}
    for name, method in methods.items():
        start = time.perf_counter()
        method.learn(case.train, seed)
        learned[name] = time.perf_counter() - start
        advance(case.labels[name])
    constant = constant_errors(case)
    errors = {
        metric: {name: np.empty((len(rates), repeats)) for name in methods} for metric in constant
    }
    spent, predicted_rows = dict.fromkeys(methods, 0.0), 0
    for r, repeat in runs:
        missing = rates[r] > 0
        incomplete = missingness.mcar(
            case.test, rates[r], seed + 1000 * repeat + r, one_hot=one_hot
        )
        predicted_rows += len(incomplete) * missing
        for name, method in methods.items():
            start = time.perf_counter()
            predicted = method.predict(incomplete)
            spent[name] += (time.perf_counter() - start) * missing
            for metric, error in measure(case.task, case.target, predicted).items():
                errors[metric][name][r, repeat if missing else slice(None)] = error
            advance(case.labels[name])
    return Robustness(
        rates=rates,
        errors=errors,
        constant=constant,
        rows=len(case.test),
        seconds={name: 1000 * spent[name] / max(predicted_rows, 1) for name in methods},
        learning=learned | {KNOTHOLE: learning},
        labels=case.labels,
        left_out=left_out,
    )


def too_slow(
    case: Case, comparison: Comparison, methods: dict[str, Method], one_hot: Any
) -> dict[str, float]:
    """Methods that would take too long, with the seconds, by a try on few rows.

    They learn from few rows for it: how long they take to predict does not depend on how many.
    """
    if comparison.patience is None:
        return {}
    incomplete = missingness.mcar(
        case.test, max(comparison.rates), comparison.seed, one_hot=one_hot
    )
    times = sum(comparison.rates[rate] > 0 for rate, _ in comparison.runs())
    found = {}
    some = case.train.iloc[np.linspace(0, len(case.train) - 1, FEW[1]).round().astype(np.intp)]
    for name in methods.keys() - {KNOTHOLE}:
        methods[name].learn(some, comparison.seed)
        spent = []
        for rows in FEW:
            start = time.perf_counter()
            methods[name].predict(incomplete.iloc[:rows])
            spent.append(time.perf_counter() - start)
        slope = max(spent[1] - spent[0], 0.0) / (FEW[1] - FEW[0])
        seconds = times * (spent[1] + slope * max(len(incomplete) - FEW[1], 0))
        if seconds > comparison.patience:
            found[name] = seconds
    return found


def constant_errors(case: Case) -> dict[str, float]:
    """The errors of the best answer that ignores the row, learned from the training target.

    (From the test target where the training target is not known, which flatters it a little.)
    """
    known = case.target if case.train_target is None else case.train_target
    if case.task is Task.REGRESSION:
        constant = np.full(len(case.target), known.mean())
    else:
        n_classes = int(max(known.max(), case.target.max())) + 1
        shares = np.bincount(known, minlength=n_classes) / len(known)
        constant = np.tile(shares, (len(case.target), 1))
    return measure(case.task, case.target, constant)


# Rows drawn from the density to be held against the data.
SAMPLED = 4000


@dataclass(frozen=True, eq=False)
class Outage:
    """The error when one column (or one-hot group) is gone, for each, the worst first."""

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


def outages(case: Case) -> Outage:
    """Take out one variable after the other, and let the model and knothole answer."""
    methods = case.methods((NATIVE, KNOTHOLE))
    answering = {name: method.learn(case.train) for name, method in methods.items()}
    variables = case.robust.columns_.variables
    complete = measure(case.task, case.target, answering[KNOTHOLE].predict(case.test))
    metric = next(iter(complete))
    errors = {name: np.empty(len(variables)) for name in answering}
    for v, variable in enumerate(variables):
        incomplete = missingness.outage(case.test, list(variable.columns))
        for name, method in answering.items():
            errors[name][v] = measure(case.task, case.target, method.predict(incomplete))[metric]
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
    """How often the answer to the complete row lies in the interval of the incomplete one."""

    #: What the central intervals promise.
    levels: tuple[float, ...]
    #: By rate of missing values: float64 (levels,), the share that they keep.
    covered: dict[float, Floats]


def coverage(
    case: Case,
    rates: Sequence[float] = (0.1, 0.3, 0.5, 0.7),
    levels: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
    seed: int = 0,
) -> Coverage:
    """Central intervals of the prediction, against the model's answer with nothing missing.

    Only rows that lost something count, all outputs of the model alike. A tree has few answers, so
    that many draws tie with the truth: where it stands among them is drawn at random, as if
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
            incomplete = missingness.apply_mask(case.test, mask).iloc[rows]
            found, _ = expectation.quantiles(expectation.evidence(incomplete), _GRID)
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
    """What moves answers to incomplete rows, and which missing value would be worth knowing."""

    #: Of the rows, and the share of their entries that was made missing.
    rows: int
    rate: float
    #: By variable: what it adds where known (mean size of its conditional Shapley values), and what
    #: knowing it would be worth where it is not (mean gain); NaN where no row tells.
    adds: pd.Series[float]
    gains: pd.Series[float]


def asked(case: Case, rate: float = 0.3, rows: int = 32, seed: int = 0) -> Asked:
    """Explain some held-out rows with missing values, and ask what to find out about them."""
    some = missingness.mcar(case.test.iloc[:rows], rate, seed)
    found = case.robust.explain(some, tol=0.1)
    sizes = np.abs(found.values).reshape(*found.data.shape, -1).mean(axis=2)
    adds = pd.DataFrame(sizes, columns=found.data.columns).where(found.data.notna().to_numpy())
    gains = case.robust.acquire(some).gain
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


def density_fit(case: Case, names: Sequence[str] = (), *, shown: int = 12, seed: int = 0) -> Fit:
    """Hold draws from the density against the training table.

    Parameters
    ----------
    case : Case
        Model and rows.
    names : sequence of str
        Variables to show first, such as those whose outage hurts most.
    shown : int
        How many marginals.
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
        _strongest(columns, numeric, observed, points, draws),
        observed[upper][known],
        modelled[upper][known],
    )


# Levels of a categorical that are shown one by one.
SHOWN_LEVELS = 12
# Pairs of variables that are shown, and points of each.
SHOWN_PAIRS, SHOWN_POINTS = 4, 400


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
) -> tuple[Pair, ...]:
    strength = np.abs(np.nan_to_num(np.triu(correlation, 1)))
    chosen: list[Pair] = []
    used: set[int] = set()
    for flat in np.argsort(-strength, axis=None, kind="stable"):
        i, j = np.unravel_index(flat, strength.shape)
        if len(chosen) == SHOWN_PAIRS or strength[i, j] == 0:
            break
        if {i, j} & used:
            continue
        used |= {int(i), int(j)}
        pair = [numeric[i], numeric[j]]
        both = points[:, pair][np.isfinite(points[:, pair]).all(axis=1)]
        drawn = draws[:, pair][np.isfinite(draws[:, pair]).all(axis=1)]
        names = (columns.variables[pair[0]].name, columns.variables[pair[1]].name)
        chosen.append(Pair(names, both[:SHOWN_POINTS], drawn[:SHOWN_POINTS]))
    return tuple(chosen)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured of a case."""

    case: Case
    robustness: Robustness
    outage: Outage
    coverage: Coverage
    fit: Fit
    asked: Asked
    seed: int


def evaluate(
    case: Case, comparison: Comparison = USUAL, learning: float = nan, advance: Advance = silent
) -> Evaluation:
    """Measure a wrapped model on held-out rows.

    The arguments are those of :func:`~knothole.report.evaluation.compare`.

    Examples
    --------
    >>> import numpy as np
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = DecisionTreeRegressor(max_depth=3).fit(X[:200], X[:200].sum(axis=1))
    >>> robust = kh.wrap(model, X[:200], density=kh.Factorized())
    >>> case = Case.of(robust, X[:200], X[200:], X[200:].sum(axis=1))
    >>> quick = Comparison(rates=(0, 0.5), repeats=1, methods=("knothole", "median"))
    >>> evaluate(case, quick).robustness.table().shape
    (2, 2)
    """
    robustness = compare(case, comparison, learning, advance)
    outage = outages(case)
    advance("outages")
    covered = coverage(case, seed=comparison.seed)
    advance("intervals")
    fit = density_fit(case, outage.names, seed=comparison.seed)
    advance("density")
    questions = asked(case, seed=comparison.seed)
    advance("questions")
    return Evaluation(case, robustness, outage, covered, fit, questions, comparison.seed)


def evaluation_steps(case: Case, comparison: Comparison) -> int:
    """How often :func:`evaluate` will advance."""
    checks = 4  # outage, coverage, fit of the density, questions
    return len(case.methods(comparison.methods)) * (1 + len(list(comparison.runs()))) + checks
