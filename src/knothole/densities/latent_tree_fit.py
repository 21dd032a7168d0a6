"""Learning a latent tree from packed rows: the start, mini-batches, full passes, smoothing.

The start breaks the symmetry of the states at the rows' level: every state takes after a random
row, in all variables alike, and latents tend to agree with their parent's ("sticky"). That is a
mixture of products to begin with, which EM then bends locally; it needs no randomness per
variable, so the columns' order does not matter.

Mini-batches (stepwise EM; Cappé and Moulines 2009) do most of the work: statistics are running
averages with a falling step size. Full passes finish. All along, smoothing follows the held-out
rows: after each round the M step is tried with less and with more of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.densities import latent_tree_kernels as kernels
from knothole.densities.chow_liu import Tree
from knothole.densities.latent_tree_em import (
    Expected,
    Parameters,
    expect,
    log_likelihood,
    maximise,
    maximise_leaves,
)
from knothole.densities.leaves.base import Leaf
from knothole.densities.latent_tree_rows import Packed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Probability that a latent has its parent's state at the start; rows a state takes after.
STICKY = 0.9
CENTRES = 3
# Rows of a mini-batch, mini-batches of a round, and the step size's first and last value.
BATCH = (64, 1024)
BATCHES = 32
STEP = (0.3, 0.02)
# Rounds without a better held-out score after which mini-batches stop.
PATIENCE = 6
# Rows per state that the prior is worth: to begin with, and how it is varied within bounds.
SMOOTHING = 0.5
FACTORS = (1.0, 0.25, 4.0)
BOUNDS = (0.01, 1e5)


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learned from.

    Attributes
    ----------
    packed : Packed
    weight : float64 (rows,)
    train, held : int64
        Positions of rows to learn from, and to judge by.
    smoothing : float or None
        None: chosen by held-out score.
    max_iter : int
        Rounds of mini-batches and full passes together, at most.
    tol : float
        Full passes stop where the held-out score, per row, improves by less.
    threads : int or None
    report : callable
        Takes a line of progress.
    """

    packed: Packed
    weight: Floats
    train: Ints
    held: Ints
    smoothing: float | None
    max_iter: int
    tol: float
    threads: int | None
    report: Callable[[str], None]

    def score(self, parameters: Parameters) -> float:
        """Mean log p of the held-out rows."""
        values = log_likelihood(parameters, self.packed, self.held, self.threads)
        # A row that needs log space is far out: any low number will do for comparisons.
        values = np.nan_to_num(values, nan=-1e4, neginf=-1e4)
        return float(np.average(values, weights=self.weight[self.held]))

    def expect(self, parameters: Parameters, rows: Ints) -> Expected:
        """Statistics of rows, scaled to the weight of all training rows."""
        expected = expect(parameters, self.packed, rows, self.weight, self.threads)
        return expected.scaled(float(self.weight[self.train].sum()) / expected.weight)


@dataclass(frozen=True, eq=False)
class Fit:
    """A stage of learning: parameters, the smoothing they came with, and their held-out score."""

    parameters: Parameters
    smoothing: float
    score: float
    n_iter: int = 0
    converged: bool = True


def learn(task: Task, tree: Tree, leaves: tuple[Leaf, ...], rng: np.random.Generator) -> Fit:
    """Parameters of a latent tree with these leaves, which are alike in all their states."""
    parameters = sticky_start(task, tree, leaves, rng)
    fit = Fit(parameters, SMOOTHING if task.smoothing is None else task.smoothing, -np.inf)
    if len(fit.parameters.prior) > 1:
        fit = stepwise(task, fit, rng)
    return full_passes(task, fit)


def sticky_start(
    task: Task, tree: Tree, leaves: tuple[Leaf, ...], rng: np.random.Generator
) -> Parameters:
    """States that take after random rows, each a few, and prefer their parent's state."""
    n_states, n_variables = leaves[0].n_states, len(leaves)
    n_centres = n_states * CENTRES
    rows = rng.choice(task.train, n_centres, replace=n_centres > len(task.train))
    gamma = np.tile(np.eye(n_states), (n_variables, 1, CENTRES))
    sums = kernels.sums_for(n_variables, n_states, task.packed.n_codes)
    kernels.add_statistics(task.packed.values, rows, gamma, sums)
    sums = sums._replace(count=sums.count[: task.packed.start[-1]])
    prior = np.full(n_states, 1 / n_states)
    transition = np.empty((n_variables, n_states, n_states))
    transition[:] = STICKY * np.eye(n_states) + (1 - STICKY) / n_states
    transition[tree.order[0]] = prior
    return Parameters(tree, prior, transition, maximise_leaves(leaves, sums, float(CENTRES)))


def stepwise(task: Task, fit: Fit, rng: np.random.Generator) -> Fit:
    """Mini-batches, for half of the rounds at most; the best stage is kept."""
    size = int(np.clip(len(task.train) // BATCHES, *BATCH))
    rounds = task.max_iter // 2
    batches = min(BATCHES, -(-len(task.train) // size))
    steps = iter(np.geomspace(*STEP, rounds * batches))
    stream = _batches(task.train, size, rng)
    best = fit
    running: Expected | None = None
    for n_iter in range(1, rounds + 1):
        for _ in range(batches):
            new = task.expect(fit.parameters, next(stream))
            step = next(steps)
            running = new if running is None else running.scaled(1 - step) + new.scaled(step)
            fit = Fit(maximise(fit.parameters, running, fit.smoothing), fit.smoothing, -np.inf)
        fit = _smoothed(task, fit, running, n_iter)
        best = fit if fit.score > best.score else best
        task.report(f"round {n_iter}: held-out {fit.score:.5f}, smoothing {fit.smoothing:g}")
        if n_iter - best.n_iter >= PATIENCE:
            break
    return best


def full_passes(task: Task, fit: Fit) -> Fit:
    """EM passes over all training rows until the held-out score is no better by ``tol``."""
    for n_iter in range(fit.n_iter + 1, task.max_iter + 1):
        new = _smoothed(task, fit, task.expect(fit.parameters, task.train), n_iter)
        task.report(f"pass {n_iter}: held-out {new.score:.5f}, smoothing {new.smoothing:g}")
        gain = new.score - fit.score
        fit = new if gain > 0 else fit
        if gain < task.tol:
            return Fit(fit.parameters, fit.smoothing, fit.score, n_iter)
    return Fit(fit.parameters, fit.smoothing, fit.score, task.max_iter, converged=False)


def _smoothed(task: Task, fit: Fit, expected: Expected, n_iter: int) -> Fit:
    """The M step with the smoothing, near the present one, that held-out rows like best."""
    factors = FACTORS if task.smoothing is None else (1.0,)
    candidates = []
    for factor in factors:
        smoothing = (
            fit.smoothing if factor == 1 else float(np.clip(fit.smoothing * factor, *BOUNDS))
        )
        parameters = maximise(fit.parameters, expected, smoothing)
        candidates.append(Fit(parameters, smoothing, task.score(parameters), n_iter))
    return max(candidates, key=lambda candidate: candidate.score)


def _batches(rows: Ints, size: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Mini-batches without end: every row once before any row twice."""
    while True:
        order = rng.permutation(rows)
        yield from np.array_split(order, max(1, round(len(order) / size)))
