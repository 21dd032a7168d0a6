"""How wrong each method is, over a range of hole rates, on the same rows with the same holes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole import missingness
from knothole.arrays import Floats
from knothole.benchmark.datasets import Task
from knothole.benchmark.models import row_losses
from knothole.errors import InvalidInput
from knothole.progress import Advance, silent
from knothole.report.methods import KNOTHOLE, METHODS, Case

RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, eq=False)
class Robustness:
    """Errors of methods by hole rate.

    Attributes
    ----------
    rates : tuple of float
        Shares of entries that were made missing.
    errors : dict
        By metric, then by method: float64 (rates, repeats). All metrics are errors: less is
        better. The first is the main one.
    constant : dict
        By metric: the error of the best answer that ignores the row.
    seconds : dict
        By method: to predict 1000 rows with holes, on average.
    learning : dict
        By method: seconds to learn how to fill; of knothole those of wrapping, NaN if not known.
    rows : int
        How many rows were predicted, each time.
    labels : dict
        By method: what plots call it.
    """

    rates: tuple[float, ...]
    errors: dict[str, dict[str, Floats]]
    constant: dict[str, float]
    rows: int
    seconds: dict[str, float] = field(default_factory=dict)
    learning: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

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


def compare(
    case: Case,
    *,
    rates: Sequence[float] = RATES,
    repeats: int = 5,
    methods: tuple[str, ...] = METHODS,
    seed: int = 0,
    learning: float | None = None,
    advance: Advance = silent,
) -> Robustness:
    """Poke holes completely at random, and let every method answer the same rows.

    Parameters
    ----------
    case : Case
        Model and rows.
    rates : sequence of float
        Shares of entries to make missing; natural holes come on top.
    repeats : int
        How often, with other holes each time.
    methods : tuple of str
        Some of :data:`~knothole.report.methods.METHODS`.
    seed : int
        Of masks and imputers.
    learning : float, optional
        Seconds that wrapping took, to be shown beside the others' learning.
    advance : callable
        Told the label of each method, once for every rate; see :func:`steps`.
    """
    if repeats < 1:
        raise InvalidInput(f"repeats must be at least 1; got {repeats}.")
    blocks = {block.name: list(block.columns) for block in case.robust.columns_.blocks} or None
    peers = case.methods(tuple(methods))
    errors: dict[str, dict[str, Floats]] = {metric: {} for metric in metrics(case.task)}
    seconds: dict[str, float] = {}
    learned: dict[str, float] = {}
    for name, peer in peers.items():
        start = time.perf_counter()
        peer.fit(case.training(seed))
        learned[name] = time.perf_counter() - start
        advance(case.labels[name])
        for metric in errors:
            errors[metric][name] = np.empty((len(rates), repeats))
    learned[KNOTHOLE] = math.nan if learning is None else learning
    spent = dict.fromkeys(peers, 0.0)
    predicted_rows = 0
    for r, rate in enumerate(rates):
        for repeat in range(repeats if rate > 0 else 1):
            poked = missingness.mcar(case.test, rate, seed + 1000 * repeat + r, blocks=blocks)
            predicted_rows += len(poked) if rate > 0 else 0
            for name, peer in peers.items():
                start = time.perf_counter()
                predicted = peer.predict(poked)
                spent[name] += (time.perf_counter() - start) if rate > 0 else 0.0
                for metric, error in measure(case.task, case.target, predicted).items():
                    # Without holes all repeats are one.
                    errors[metric][name][r, repeat if rate > 0 else slice(None)] = error
                advance(case.labels[name])
    for name in peers:
        seconds[name] = spent[name] / max(predicted_rows, 1) * 1000
    return Robustness(
        rates=tuple(rates),
        errors=errors,
        constant=constant_errors(case),
        rows=len(case.test),
        seconds=seconds,
        learning=learned,
        labels=case.labels,
    )


def steps(case: Case, rates: Sequence[float], repeats: int, methods: tuple[str, ...]) -> int:
    """How often :func:`compare` will advance."""
    runs = sum(repeats if rate > 0 else 1 for rate in rates)
    return len(case.methods(tuple(methods))) * (1 + runs)


def metrics(task: Task) -> tuple[str, ...]:
    """Names of the errors that are measured, the main one first."""
    return ("RMSE",) if task is Task.REGRESSION else ("log loss", "error rate")


def measure(task: Task, target: NDArray[Any], predicted: Floats) -> dict[str, float]:
    """The errors of predictions.

    Examples
    --------
    >>> measure(Task.REGRESSION, np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    {'RMSE': 1.4142135623730951}
    """
    losses = row_losses(task, target, predicted)
    if task is Task.REGRESSION:
        return {"RMSE": float(np.sqrt(losses.mean()))}
    wrong = predicted.argmax(axis=1) != target
    return {"log loss": float(losses.mean()), "error rate": float(wrong.mean())}


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
