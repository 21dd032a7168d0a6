"""How wrong each method is, over a range of hole rates, on the same rows with the same holes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from knothole import missingness
from knothole.arrays import Floats
from knothole.checks import check_whole
from knothole.progress import Advance, silent
from knothole.report.measures import Task, measure
from knothole.report.methods import KNOTHOLE, METHODS, Case, Method

RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
# Rows, fewer and more, that tell whether a method takes longer than these seconds.
FEW = (50, 200)
PATIENCE = 15.0


@dataclass(frozen=True, eq=False)
class Robustness:
    """Errors of methods by hole rate."""

    #: Shares of entries that were made missing.
    rates: tuple[float, ...]
    #: By metric, then by method: float64 (rates, repeats). All metrics are errors: less is better.
    #: The first is the main one.
    errors: dict[str, dict[str, Floats]]
    #: By metric: the error of the best answer that ignores the row.
    constant: dict[str, float]
    #: How many rows were predicted, each time.
    rows: int
    #: By method: seconds to predict 1000 rows with holes, on average.
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
        """How often holes were poked at each rate."""
        return int(next(iter(self.errors[self.metric].values())).shape[1])

    def table(self, metric: str | None = None) -> pd.DataFrame:
        """Mean error over the repeats: a row a method, a column a rate."""
        errors = self.errors[self.metric if metric is None else metric]
        means = {method: error.mean(axis=1) for method, error in errors.items()}
        return pd.DataFrame.from_dict(means, orient="index", columns=list(self.rates))


@dataclass(frozen=True)
class Comparison:
    """Which methods answer, at which rates of holes, and how often.

    Parameters
    ----------
    rates : tuple of float
        Shares of entries to make missing; natural holes come on top.
    repeats : int
        How often, with other holes each time.
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
        """Places of a rate and a repeat; without holes all repeats are one."""
        for place, rate in enumerate(self.rates):
            yield from ((place, repeat) for repeat in range(self.repeats if rate > 0 else 1))


#: What a report shows unless told otherwise.
USUAL = Comparison()


def compare(
    case: Case, comparison: Comparison = USUAL, learning: float = nan, advance: Advance = silent
) -> Robustness:
    """Poke holes completely at random, and let every method answer the same rows.

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
    blocks = {block.name: list(block.columns) for block in case.robust.columns_.blocks} or None
    methods, runs = case.methods(comparison.methods), list(comparison.runs())
    left_out = too_slow(case, comparison, methods, blocks)
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
        holes = rates[r] > 0
        poked = missingness.mcar(case.test, rates[r], seed + 1000 * repeat + r, blocks=blocks)
        predicted_rows += len(poked) * holes
        for name, method in methods.items():
            start = time.perf_counter()
            predicted = method.predict(poked)
            spent[name] += (time.perf_counter() - start) * holes
            for metric, error in measure(case.task, case.target, predicted).items():
                errors[metric][name][r, repeat if holes else slice(None)] = error
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
    case: Case, comparison: Comparison, methods: dict[str, Method], blocks: Any
) -> dict[str, float]:
    """Methods that would take too long, with the seconds, by a try on few rows.

    They learn from few rows for it: how long they take to predict does not depend on how many.
    """
    if comparison.patience is None:
        return {}
    poked = missingness.mcar(case.test, max(comparison.rates), comparison.seed, blocks=blocks)
    times = sum(comparison.rates[rate] > 0 for rate, _ in comparison.runs())
    found = {}
    some = case.train.iloc[np.linspace(0, len(case.train) - 1, FEW[1]).round().astype(np.intp)]
    for name in methods.keys() - {KNOTHOLE}:
        methods[name].learn(some, comparison.seed)
        spent = []
        for rows in FEW:
            start = time.perf_counter()
            methods[name].predict(poked.iloc[:rows])
            spent.append(time.perf_counter() - start)
        slope = max(spent[1] - spent[0], 0.0) / (FEW[1] - FEW[0])
        seconds = times * (spent[1] + slope * max(len(poked) - FEW[1], 0))
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
