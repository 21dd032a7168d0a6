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

# Gains to come, in ``tol`` per row, at which training stops: a step may rest on a plateau.
TO_COME = 10

Parameters = TypeVar("Parameters")
#: The objective at some parameters, and the parameters of the next step.
Step = Callable[[Parameters], tuple[float, Parameters]]


@dataclass(frozen=True)
class Training:
    """How to train, whatever the rows, the size and the prior.

    ``max_iter``, ``tol`` and ``n_init`` are as for all densities; ``fraction`` of the rows is held
    out, and given holes where there are hardly any, if it ``may_mask`` them (not where holes are
    variables themselves); ``seed`` is for everything random; ``report`` is told of progress.
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
        The density that was kept, and the ``strength`` of its prior in rows.
    objective : float64 (steps tried,)
        The objective before each step.
    steps : int
        How many the parameters have behind them: fewer, where later ones had a worse score.
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
    step: Step[Parameters],
    parameters: Parameters,
    strength: float,
    rows: float,
    training: Training,
    score: Callable[[Parameters], float] | None = None,
) -> Run[Parameters]:
    """Steps until one gains less than ``tol`` per row, or ``score`` has stopped rising.

    ``step`` gives the objective at some parameters, and the parameters of the next step; ``rows``
    is the weight of all rows; ``score`` is a held-out one, and what had the best is kept.

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
        converged = len(trace) > 1 and settled(np.diff(trace[-3:]) / rows, training.tol)
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


def settled(gains: Floats, tol: float) -> bool:
    """Whether the last gain is below ``tol``, and those to come, as a geometric series, are small.

    Examples
    --------
    >>> settled(np.array([8e-4, 4e-4]), tol=1e-3), settled(np.array([8e-4, 7.9e-4]), tol=1e-3)
    (True, False)
    """
    before, last = gains[0], gains[-1]
    if last >= tol:
        return False
    return bool(last <= 0 or last**2 <= TO_COME * tol * max(before - last, 0.0))
