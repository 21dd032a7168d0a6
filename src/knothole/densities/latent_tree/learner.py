"""Learning a latent tree from encoded rows: the start, mini-batches, full passes.

The start breaks the symmetry of the states at the rows' level: every state takes after a few
random rows, in all variables alike, and latents tend to agree with their parent's. That is a
mixture of products to begin with, which EM then bends locally; it needs no randomness per
variable, so the columns' order does not matter.

Mini-batches (stepwise EM: Cappé and Moulines 2009) do most of the work: statistics are running
averages with a falling step size. Full passes finish. Unless a strength of the prior is given, it
follows the held-out rows: after each round the M step is tried with less and with more of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from knothole.arrays import Floats, Ints
from knothole.columns.columns import Kind
from knothole.densities.em import Run, Training
from knothole.densities.held_out import FEW_ROWS_TO_SEARCH
from knothole.densities.latent_tree.chow_liu import Tree, chow_liu
from knothole.densities.latent_tree.em import (
    TreeParameters,
    TreeStatistics,
    add_statistics,
    expect,
    log_likelihood,
    maximise,
)
from knothole.densities.learner import LatentLearner
from knothole.densities.rows import EncodedRows, WeightedRows
from knothole.densities.search import fit_and_refine
from knothole.densities.univariate.base import Univariate, maximised

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
# Rows per state that the prior is worth, where it follows the held-out rows: to begin with, and
# how it is varied within bounds.
FIRST_STRENGTH = 0.5
FACTORS = (1.0, 0.25, 4.0)
BOUNDS = (0.01, 1e3)
# Rounds before it is varied: while latents have yet to settle, no structure looks best.
SETTLED = 5
# What a row that needs log space (or is impossible) counts as when trees are compared.
FAR_OUT = -1e4

TreeRun = Run[TreeParameters]


@dataclass(frozen=True, eq=False)
class Task:
    """Rows to learn from and to judge by.

    Attributes
    ----------
    rows, held : EncodedRows
        To learn from, and to judge by.
    training : Training
        Steps are rounds of mini-batches and full passes together. Passes stop where the held-out
        score gains less than ``tol``.
    strength : float or None
        Weight of the prior; None: it follows the held-out score.
    """

    rows: EncodedRows
    held: EncodedRows
    training: Training
    strength: float | None

    def score(self, parameters: TreeParameters) -> float:
        """Mean log p of the held-out rows."""
        return float(np.average(log_densities(parameters, self.held), weights=self.held.weight))

    def expect(self, parameters: TreeParameters, rows: Ints) -> TreeStatistics:
        """Statistics of rows, scaled to the weight of all."""
        weight = self.rows.weight
        return expect(parameters, self.rows.packed, rows, weight, float(weight.sum()))

    def judged(self, run: TreeRun, statistics: TreeStatistics) -> TreeRun:
        """The M step with the strength, near the present one, that held-out rows like best."""
        n_iter = len(run.objective)
        strengths = {run.strength}
        if self.strength is None and n_iter >= SETTLED:
            strengths |= {float(np.clip(run.strength * factor, *BOUNDS)) for factor in FACTORS}
        tries = []
        for strength in sorted(strengths):
            parameters = maximise(run.parameters, self.rows.packed, statistics, strength)
            tries.append((self.score(parameters), strength, parameters))
        score, strength, parameters = max(tries, key=lambda one: one[0])
        self.training.report(f"{n_iter + 1}: held-out {score:.5f}, strength {strength:g}")
        trace = np.append(run.objective, score)
        return Run(parameters, strength, trace, n_iter + 1, converged=True, held_out=score)


def log_densities(parameters: TreeParameters, rows: EncodedRows) -> Floats:
    """Log p of rows, for comparisons."""
    values = log_likelihood(parameters, rows.packed)
    return np.nan_to_num(values, nan=FAR_OUT, neginf=FAR_OUT)


def learn_tree(
    task: Task, tree: Tree, distributions: Sequence[Univariate], n_states: int
) -> TreeRun:
    """A latent tree with so many states, judged by the held-out rows throughout.

    ``distributions`` are marginals, with one state.
    """
    strength = FIRST_STRENGTH if task.strength is None else task.strength
    starts = []
    for number in range(task.training.n_init):
        rng = np.random.default_rng([task.training.seed, n_states, number])
        parameters = sticky_start(task.rows, tree, distributions, n_states, rng)
        begin = Run(parameters, strength, np.empty(0), 0, converged=True, held_out=-np.inf)
        starts.append(Stepwise(task, begin, rng))
    for start in starts:
        start.round()
    chosen = max(starts, key=lambda start: start.best.held_out)
    return full_passes(task, chosen.finish())


def independent(
    tree: Tree, distributions: Sequence[Univariate], n_states: int = 1
) -> TreeParameters:
    """Independent variables, of distributions with one state, the same in so many states."""
    everywhere = np.zeros(n_states, dtype=np.int64)
    return TreeParameters(
        tree,
        np.full(n_states, 1 / n_states),
        np.full((len(distributions), n_states, n_states), 1 / n_states),
        tuple(one.take(everywhere) for one in distributions),
    )


def sticky_start(
    rows: EncodedRows,
    tree: Tree,
    distributions: Sequence[Univariate],
    n_states: int,
    rng: np.random.Generator,
) -> TreeParameters:
    """States that take after random rows, each a few, and prefer their parent's state."""
    packed, n_variables = rows.packed, len(distributions)
    n_centres = n_states * CENTRES
    centres = rng.choice(len(rows), n_centres, replace=n_centres > len(rows))
    gamma = np.tile(np.eye(n_states), (n_variables, 1, CENTRES))
    sums = packed.nothing(n_states)
    add_statistics(packed.values(), centres, gamma, sums)
    alike = independent(tree, distributions, n_states)
    statistics = packed.statistics(alike.distributions, sums)
    transition = np.tile(STICKY * np.eye(n_states) + (1 - STICKY) / n_states, (n_variables, 1, 1))
    transition[tree.order[0]] = alike.prior
    return replace(
        alike,
        transition=transition,
        distributions=maximised(alike.distributions, statistics, float(CENTRES)),
    )


class Stepwise:
    """Mini-batches, in rounds, of which the best is kept.

    They are half of ``max_iter`` at most; a quarter, where rows are few and soon learned.
    """

    def __init__(self, task: Task, run: TreeRun, rng: np.random.Generator) -> None:
        n_rows = len(task.rows)
        size = int(np.clip(n_rows // BATCHES, *BATCH))
        self.task = task
        self.run = self.best = run
        self.running: TreeStatistics | None = None
        self.rounds = max(1, task.training.max_iter // (4 if n_rows < FEW_ROWS_TO_SEARCH else 2))
        epoch = -(-n_rows // size)
        self.batches = max(min(BATCHES, epoch), EPOCHS * epoch // self.rounds)
        self.steps = iter(np.geomspace(*STEP, self.rounds * self.batches))
        self.stream = _batches(n_rows, size, rng)

    def finish(self) -> TreeRun:
        """Rounds until none has been better for a while; the best stage."""
        while len(self.run.objective) < min(self.rounds, self.best.steps + PATIENCE):
            self.round()
        return replace(self.best, objective=self.run.objective)

    def round(self) -> None:
        """A number of mini-batches, then a look at the held-out rows."""
        parameters, strength = self.run.parameters, self.run.strength
        for _ in range(self.batches):
            new, step = self.task.expect(parameters, next(self.stream)), next(self.steps)
            self.running = new if self.running is None else self.running.moved(new, step)
            parameters = maximise(parameters, self.task.rows.packed, self.running, strength)
        if self.running is not None:
            self.run = self.task.judged(replace(self.run, parameters=parameters), self.running)
        self.best = max(self.best, self.run, key=lambda run: run.held_out)


def full_passes(task: Task, run: TreeRun) -> TreeRun:
    """EM passes over all training rows until the held-out score is no better by ``tol``."""
    everything = np.arange(len(task.rows))
    while len(run.objective) < task.training.max_iter:
        new = task.judged(run, task.expect(run.parameters, everything))
        gain = new.held_out - run.held_out
        run = new if gain > 0 else replace(run, objective=new.objective)
        if gain < task.training.tol:
            return run
    return replace(run, converged=False)


def _batches(n_rows: int, size: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Mini-batches without end: every row once before any row twice."""
    while True:
        order = rng.permutation(n_rows)
        yield from np.array_split(order, max(1, round(n_rows / size)))


# The ranking of edges needs no more rows than this.
ROWS_FOR_STRUCTURE = 20_000
# Numbers of states to choose from, each needing some rows.
STATES = (4, 8, 16, 32)
ROWS_PER_STATE = 10


class TreeLearner(LatentLearner):
    """Trains latent trees."""

    unit: ClassVar[str] = "states"
    strengths: ClassVar[tuple[float, ...]] = (0.3, 1.5, 8.0, 40.0)

    look: Tree

    @classmethod
    def look_at(cls, rows: WeightedRows) -> Tree:
        """The tree of the variables."""
        some = rows[:ROWS_FOR_STRUCTURE]
        categorical = [variable.kind is Kind.CATEGORICAL for variable in rows.variables]
        return chow_liu(some.points(), some.own_weight(), categorical)

    @property
    def default_strength(self) -> float | None:
        """Many rows find it while they train."""
        return self.strengths[1] if len(self.rows) < FEW_ROWS_TO_SEARCH else None

    def few_rows_for(self, size: int) -> bool:
        """Whether rows are so few that the strength is chosen before, not while, training."""
        return len(self.rows) < FEW_ROWS_TO_SEARCH

    def fit(self, size: int, strength: float | None, held: Any = None) -> TreeRun:
        """Train on all rows; those held out are the judge (all, where there are none)."""
        judges = self.encoded if held is None else held
        if size > 1:
            task = Task(self.encoded, judges, self.training, strength)
            return learn_tree(task, self.look, self.distributions, size)
        run = self.fit_one(strength)
        parameters = independent(self.look, run.parameters.distributions)
        return replace(run, parameters=parameters, held_out=self.score(parameters, judges))

    def fit_like(self, size: int, strength: float | None, runs: Sequence[Run[Any]]) -> TreeRun:
        """Train as ever, with some rows held out: the stages of folds do not add up to a number."""
        return self.fit(1, strength) if size == 1 else fit_and_refine(self, size, strength)

    def refined(self, run: TreeRun) -> TreeRun:
        """One more pass, over all rows."""
        rows, packed = np.arange(len(self.rows)), self.encoded.packed
        found = expect(run.parameters, packed, rows, self.encoded.weight)
        parameters = maximise(run.parameters, packed, found, run.strength)
        return replace(run, parameters=parameters)

    def log_densities(self, parameters: TreeParameters, rows: EncodedRows) -> Floats:
        """Log p of encoded rows."""
        return log_densities(parameters, rows)


def sizes_for(rows: WeightedRows) -> list[int]:
    """1, and numbers of states that so many rows, and the memory, can bear."""
    return rows.affordable([1, *(n for n in STATES if n * ROWS_PER_STATE <= len(rows))])
