"""Learning a latent tree from packed rows: the start, mini-batches, full passes, choices.

The start breaks the symmetry of the states at the rows' level: every state takes after a few
random rows, in all variables alike, and latents tend to agree with their parent's. That is a
mixture of products to begin with, which EM then bends locally; it needs no randomness per
variable, so the columns' order does not matter.

Mini-batches (stepwise EM: Cappé and Moulines 2009) do most of the work: statistics are running
averages with a falling step size. Full passes finish. All along the strength of the prior follows
the held-out rows: after each round the M step is tried with less and with more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from knothole.arrays import Floats, Ints
from knothole.densities.emissions.base import Emission
from knothole.densities.emissions.packed import Packed
from knothole.densities.latent_tree import kernels as kernels
from knothole.densities.latent_tree.chow_liu import Tree
from knothole.densities.latent_tree.em import (
    Expected,
    Parameters,
    expect,
    log_likelihood,
    log_prior,
    maximise,
    maximise_emissions,
    values_of,
)
from knothole.densities.mixture.search import MAX_ITER_OF_ONE, TOL_OF_ONE
from knothole.densities.selection.held_out import SURE, mean_and_error

# Probability that a latent has its parent's state at the start; rows a state takes after.
STICKY = 0.9
CENTRES = 3
# Rows of a mini-batch, the least number of mini-batches of a round, how often all rounds together
# go through the rows at least, and the step size's first and last value.
BATCH = (128, 1024)
BATCHES = 32
EPOCHS = 4
STEP = (0.3, 0.02)
# Rounds without a better held-out score after which mini-batches stop.
PATIENCE = 5
# Rows per state that the prior is worth: to begin with, and how it is varied within bounds.
STRENGTH = 0.5
FACTORS = (1.0, 0.25, 4.0)
BOUNDS = (0.01, 1e3)
# Rounds before it is varied: while latents have yet to settle, no structure looks best.
SETTLED = 5
# Numbers of states to choose from, each needing some rows, and the rows to choose by.
STATES = (4, 8, 16, 32)
ROWS_PER_STATE = 10
ROWS_TO_CHOOSE = 20_000
# Below so many rows, several folds are held out in turn.
FEW_ROWS = 3000
FOLDS = 3
# What they choose the strength of the prior from.
STRENGTHS: tuple[float | None, ...] = (0.3, 1.5, 8.0)
# What a row that needs log space (or is impossible) counts as when tries are compared.
FAR_OUT = -1e4


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learned from.

    Attributes
    ----------
    packed : Packed
    weight : float64 (rows,)
    train, held : int64
        Positions of rows to learn from, and to judge by.
    tree : Tree
    emissions : tuple of Emission
        With one state: the marginals.
    strength : float or None
        Weight of the prior; None: chosen by held-out score.
    max_iter : int
        Rounds of mini-batches and full passes together, at most.
    tol : float
        Full passes stop where the held-out score, per row, improves by less.
    n_init : int
        Starts, of which the best after a round is taken further.
    report : callable
        Told of progress.
    anew : callable
        The task for other rows to learn from and to judge by, which have no say in the tree and
        the marginals.
    """

    packed: Packed
    weight: Floats
    train: Ints
    held: Ints
    tree: Tree
    emissions: tuple[Emission, ...]
    strength: float | None
    max_iter: int
    tol: float
    n_init: int
    report: Callable[[str], None]
    anew: Callable[[Ints, Ints], Task]

    def scores(self, parameters: Parameters) -> Floats:
        """Log p of the held-out rows."""
        values = log_likelihood(parameters, self.packed, self.held)
        return np.nan_to_num(values, nan=FAR_OUT, neginf=FAR_OUT)

    def mean(self, scores: Floats) -> float:
        """Weighted mean of held-out scores."""
        return float(np.average(scores, weights=self.weight[self.held]))

    def expect(self, parameters: Parameters, rows: Ints) -> Expected:
        """Statistics of rows, scaled to the weight of all training rows."""
        return expect(parameters, self.packed, rows, self.weight, self.total)

    @cached_property
    def total(self) -> float:
        """Weight of all training rows."""
        return float(self.weight[self.train].sum())


@dataclass(frozen=True, eq=False)
class Fit:
    """A stage of learning: parameters, the prior's strength, and the mean held-out score."""

    parameters: Parameters
    strength: float
    score: float = -np.inf
    n_iter: int = 0
    converged: bool = True


def choose(task: Task, sizes: Sequence[int], rng: np.random.Generator) -> Fit | None:
    """The latent tree that serves held-out rows best, with one of these numbers of states.

    Several numbers are tried upwards as long as the gain exceeds its standard error, over
    independent variables :data:`SURE` times; a single one must be better than those at all. None
    where they remain. Of small tables every row is held out once, and the strength of the prior is
    chosen before, not while, learning; of large ones a part is enough to choose between sizes.
    """
    if sizes[-1] == 1:
        return None
    if len(sizes) == 1 and task.strength is not None:
        return learn(task, sizes[0], rng)
    folds = folds_of(task, several=len(sizes) > 1)
    best = independent = Tried(folds, [independence(fold) for fold in folds])
    beyond = SURE if len(sizes) > 1 else 0.0
    strengths = STRENGTHS if len(folds) > 1 and task.strength is None else (task.strength,)
    for n_states in sizes:
        tries = []
        for strength in strengths:
            tasks = [replace(fold, strength=strength) for fold in folds]
            tries.append(Tried(tasks, [learn(fold, n_states, rng) for fold in tasks]))
        tried = max(tries, key=lambda one: one.mean)
        gain, error = tried.gain_over(best)
        task.report(f"{n_states} states: {gain:+.5f} on held-out rows, standard error {error:.5f}")
        if gain <= (beyond if best is independent else 1.0) * error:
            break
        best, strengths = tried, (tried.tasks[0].strength,)
    if best is independent:
        return None
    n_states, strength = best.fits[0].parameters.n_states, strengths[0]
    if len(sizes) > 1 and len(folds) > 1 and not confirmed(task, n_states, strength, rng):
        return None
    if len(folds) == 1 and len(folds[0].train) == len(task.train):
        return best.fits[0]
    return learn(replace(task, strength=strength), n_states, rng)


def confirmed(task: Task, n_states: int, strength: float | None, rng: np.random.Generator) -> bool:
    """Whether what was chosen beats independent variables on rows that had no say in anything.

    The rows that a size and a strength were chosen by also said when to stop. So, on other folds,
    learning is done as it will be in the end, and then judged by rows it has not seen.
    """
    rows = rng.permutation(np.concatenate([task.held, task.train]))
    folds = [task.anew(train, held) for train, held in parts_of(rows)]
    fits = []
    for fold in folds:
        n_held = len(fold.train) * len(task.held) // len(rows)
        held, train = fold.train[:n_held], fold.train[n_held:]
        own = replace(fold, train=train, held=held, strength=strength)
        fits.append(refined(own, learn(own, n_states, rng)))
    apart = Tried(folds, [independence(fold) for fold in folds])
    gain, error = Tried(folds, fits).gain_over(apart)
    task.report(f"{n_states} states: {gain:+.5f} on other folds, standard error {error:.5f}")
    return gain > SURE * error


class Tried:
    """Fits of all folds with the same settings, and log p of all rows that they held out."""

    def __init__(self, tasks: list[Task], fits: list[Fit]) -> None:
        pairs = zip(tasks, fits, strict=True)
        self.tasks, self.fits = tasks, fits
        self.scores = np.concatenate([task.scores(fit.parameters) for task, fit in pairs])
        self.weight = np.concatenate([task.weight[task.held] for task in tasks])
        self.mean = float(np.average(self.scores, weights=self.weight))

    def gain_over(self, other: Tried) -> tuple[float, float]:
        """How much better this is than other fits of the same folds, and the standard error."""
        return mean_and_error(self.scores - other.scores, self.weight)


def sizes_for(n_rows: int) -> list[int]:
    """Numbers of states that so many rows can bear."""
    return [n for n in STATES if n * ROWS_PER_STATE <= n_rows] or [1]


def folds_of(task: Task, several: bool) -> list[Task]:
    """Tasks to choose by: folds of a small table; to compare several sizes, part of a large one."""
    rows = np.concatenate([task.held, task.train])
    if task.held is not task.train and len(rows) < FEW_ROWS:
        folds = [task.anew(train, held) for train, held in parts_of(rows)]
        return [replace(fold, max_iter=max(2, task.max_iter // 2)) for fold in folds]
    return [replace(task, train=task.train[:ROWS_TO_CHOOSE]) if several else task]


def parts_of(rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Rows to learn from and rows to hold out, for each fold."""
    number = np.arange(len(rows)) % FOLDS
    for fold in range(FOLDS):
        yield rows[number != fold], rows[number == fold]


def learn(task: Task, n_states: int, rng: np.random.Generator) -> Fit:
    """A latent tree with so many states, judged by the held-out rows throughout."""
    strength = STRENGTH if task.strength is None else task.strength
    starts = [
        Stepwise(task, Fit(sticky_start(task, n_states, rng), strength), rng)
        for _ in range(task.n_init)
    ]
    for start in starts:
        start.round()
    chosen = max(starts, key=lambda start: start.best.score)
    return full_passes(task, chosen.run())


def independence(task: Task) -> Fit:
    """All variables independent: one state, which needs no more of a prior than a row.

    Where no sets of categories are known, one pass is all. Where some are, the likelihood has a
    single maximum, which nothing held out is needed to find.
    """
    strength = 1.0 if task.strength is None else task.strength
    parameters = Parameters(
        task.tree, np.ones(1), np.ones((len(task.emissions), 1, 1)), task.emissions
    )
    objective, n_iter, gain = -np.inf, 0, np.inf
    while gain >= TOL_OF_ONE * task.total and n_iter < MAX_ITER_OF_ONE:
        expected = task.expect(parameters, task.train)
        found = expected.log_likelihood + log_prior(parameters, strength)
        objective, gain = found, found - objective
        parameters = maximise(parameters, expected, strength)
        n_iter += 1
    score = task.mean(task.scores(parameters))
    return Fit(parameters, strength, score, n_iter, gain < task.tol * task.total)


def repeated(parameters: Parameters, n_states: int) -> Parameters:
    """Parameters of one state, in so many states."""
    everywhere = np.zeros(n_states, dtype=np.int64)
    n_variables = len(parameters.emissions)
    return Parameters(
        parameters.tree,
        np.full(n_states, 1 / n_states),
        np.full((n_variables, n_states, n_states), 1 / n_states),
        tuple(emission.take(everywhere) for emission in parameters.emissions),
    )


def sticky_start(task: Task, n_states: int, rng: np.random.Generator) -> Parameters:
    """States that take after random rows, each a few, and prefer their parent's state."""
    packed, n_variables = task.packed, len(task.emissions)
    n_centres = n_states * CENTRES
    rows = rng.choice(task.train, n_centres, replace=n_centres > len(task.train))
    gamma = np.tile(np.eye(n_states), (n_variables, 1, CENTRES))
    sums = kernels.sums_for(n_variables, n_states, int(packed.offset[-1]), packed.z.shape[1])
    kernels.add_statistics(values_of(packed), rows, gamma, sums)
    emissions = [emission.take(np.zeros(n_states, dtype=np.int64)) for emission in task.emissions]
    statistics = packed.statistics(emissions, sums.codes, sums.first, sums.second)
    prior = np.full(n_states, 1 / n_states)
    transition = np.tile(STICKY * np.eye(n_states) + (1 - STICKY) / n_states, (n_variables, 1, 1))
    transition[task.tree.order[0]] = prior
    return Parameters(
        task.tree, prior, transition, maximise_emissions(emissions, statistics, float(CENTRES))
    )


class Stepwise:
    """Mini-batches, in rounds: for half of ``max_iter`` at most. The best stage is kept."""

    def __init__(self, task: Task, fit: Fit, rng: np.random.Generator) -> None:
        size = int(np.clip(len(task.train) // BATCHES, *BATCH))
        self.task = task
        self.fit = self.best = fit
        self.running: Expected | None = None
        self.rounds = max(1, task.max_iter // 2)
        epoch = -(-len(task.train) // size)
        self.batches = max(min(BATCHES, epoch), EPOCHS * epoch // self.rounds)
        self.steps = iter(np.geomspace(*STEP, self.rounds * self.batches))
        self.stream = _batches(task.train, size, rng)

    def run(self) -> Fit:
        """Rounds until none has been better for a while; the best stage."""
        while self.fit.n_iter < self.rounds and self.fit.n_iter - self.best.n_iter < PATIENCE:
            self.round()
        return replace(self.best, n_iter=self.fit.n_iter)

    def round(self) -> None:
        """A number of mini-batches, then a look at the held-out rows."""
        parameters, strength = self.fit.parameters, self.fit.strength
        for _ in range(self.batches):
            new, step = self.task.expect(parameters, next(self.stream)), next(self.steps)
            self.running = new if self.running is None else self.running.moved(new, step)
            parameters = maximise(parameters, self.running, strength)
        if self.running is not None:
            self.fit = _judged(self.task, replace(self.fit, parameters=parameters), self.running)
        self.best = max(self.best, self.fit, key=lambda fit: fit.score)


def full_passes(task: Task, fit: Fit) -> Fit:
    """EM passes over all training rows until the held-out score is no better by ``tol``."""
    while fit.n_iter < task.max_iter:
        new = _judged(task, fit, task.expect(fit.parameters, task.train))
        gain = new.score - fit.score
        fit = new if gain > 0 else replace(fit, n_iter=new.n_iter)
        if gain < task.tol:
            return fit
    return replace(fit, converged=False)


def refined(task: Task, fit: Fit) -> Fit:
    """One more pass, over the held-out rows too."""
    rows = np.concatenate([task.train, task.held])
    expected = expect(fit.parameters, task.packed, rows, task.weight)
    return replace(fit, parameters=maximise(fit.parameters, expected, fit.strength))


def _judged(task: Task, fit: Fit, expected: Expected) -> Fit:
    """The M step with the strength, near the present one, that held-out rows like best."""
    strengths = {fit.strength}
    if task.strength is None and fit.n_iter >= SETTLED:
        strengths |= {float(np.clip(fit.strength * factor, *BOUNDS)) for factor in FACTORS}
    tries = []
    for strength in sorted(strengths):
        parameters = maximise(fit.parameters, expected, strength)
        score = task.mean(task.scores(parameters))
        tries.append(Fit(parameters, strength, score, fit.n_iter + 1))
    best = max(tries, key=lambda one: one.score)
    task.report(f"{best.n_iter}: held-out {best.score:.5f}, strength {best.strength:g}")
    return best


def _batches(rows: Ints, size: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Mini-batches without end: every row once before any row twice."""
    while True:
        order = rng.permutation(rows)
        yield from np.array_split(order, max(1, round(len(order) / size)))
