"""EM as all densities run it: steps until they gain too little, or held-out rows gain nothing.

The objective is the weighted log likelihood plus the log prior of all parameters; a step never
lowers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from knothole.arrays import Floats

# Steps without a better held-out score before training stops.
PATIENCE = 3

Parameters = TypeVar("Parameters")


@dataclass(frozen=True)
class Training:
    """How to train, whatever the rows, the size and the prior.

    Attributes
    ----------
    max_iter : int
        Most steps.
    tol : float
        Gain per row below which steps stop.
    n_init : int
        Starts, of which the best is trained to the end.
    fraction : float
        Part of the rows that is held out.
    may_mask : bool
        Whether held-out rows may be given holes: not where holes themselves are variables.
    seed : int
        Of everything random.
    report : callable
        Told of progress, a line at a time.
    """

    max_iter: int
    tol: float
    n_init: int
    fraction: float
    may_mask: bool
    seed: int
    report: Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Run(Generic[Parameters]):
    """What training came to.

    Attributes
    ----------
    parameters : object
        The density that was kept.
    strength : float
        The weight of the prior that it has, in rows.
    objective : float64 (steps tried,)
        The objective before each step.
    steps : int
        How many steps the parameters have behind them: fewer than were tried, where later ones had
        a worse held-out score.
    converged : bool
        Whether training stopped before it ran out of steps.
    held_out : float
        The held-out score of the parameters; NaN where nothing was held out.
    """

    parameters: Parameters
    strength: float
    objective: Floats
    steps: int
    converged: bool
    held_out: float = np.nan


def train(
    step: Callable[[Parameters], tuple[float, Parameters]],
    parameters: Parameters,
    strength: float,
    rows: float,
    training: Training,
    score: Callable[[Parameters], float] | None = None,
) -> Run[Parameters]:
    """Steps until one gains less than ``tol`` per row, or ``score`` has stopped rising.

    Parameters
    ----------
    step : callable
        The objective at some parameters, and the parameters of the next step.
    parameters : object
        Where to start.
    strength : float
        Of the prior, for the record.
    rows : float
        The weight of all rows.
    training : Training
    score : callable, optional
        A held-out score of parameters; those with the best one are kept.

    Examples
    --------
    Half of the way to 3 with each step:

    >>> training = Training(
    ...     max_iter=100, tol=1e-6, n_init=1, fraction=0.1, may_mask=True, seed=0, report=print
    ... )
    >>> run = train(lambda x: (-((x - 3) ** 2), (x + 3) / 2), 0.0, 0.0, 1.0, training)
    >>> round(run.parameters, 2), run.converged, run.steps == len(run.objective) - 1
    (3.0, True, True)
    """
    trace: list[float] = []
    kept, steps, best, misses = parameters, 0, np.nan, 0
    converged = False
    while len(trace) < training.max_iter and not converged:
        objective, stepped = step(parameters)
        trace.append(objective)
        converged = len(trace) > 1 and trace[-1] - trace[-2] < training.tol * rows
        if converged:
            break
        parameters = stepped
        now = np.nan if score is None else score(parameters)
        if now <= best:
            misses += 1
            converged = misses == PATIENCE
        else:
            kept, steps, best, misses = parameters, len(trace), now, 0
    return Run(kept, strength, np.array(trace), steps, converged, best)
