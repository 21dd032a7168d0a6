"""How all densities learn: rows with weights, the EM loop, and the learner that runs it.

The objective of EM is the weighted log likelihood plus the log prior of all parameters; a step
never lowers it. The parameters of a density know their own steps (:class:`Parameters`). Sizes are
chosen by :mod:`knothole.densities.search`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Evidence, Variable
from knothole.densities.held_out import hidden_at_random
from knothole.densities.univariate.base import Statistics, Univariate
from knothole.densities.univariate.families import start_distribution
from knothole.densities.univariate.packed import Packed, pack

# Rows for the first steps of training, and to see what columns are like; how many times as many
# each further stage has.
FIRST_ROWS = 8192
GROWTH = 4
# Where rows have fewer missing values than this, those held out are given some at random.
HARDLY_ANY_MISSING = 0.1
# Most entries that the tables of all levels may have; training keeps some dozens of such tables.
MOST_ENTRIES = 2**21
# Steps without a better held-out score before training stops, and the gain, in ``tol``, from which
# on a score is better. 1 takes up to 1.6 times as long, and expected predictions are as good
# (abalone, bike_sharing_hour, california_housing, natural/sick, anchors/spam).
PATIENCE = 3
LEAST_GAIN = 10.0
# Gains to come, in ``tol`` per row, at which training stops: a step may rest on a plateau.
TO_COME = 10
# The strength of the prior, in rows a component, where a density has no better one.
STRENGTH = 1.0
# Steps of each start, of each stage before the last, and on all rows after training has stopped.
SHORT = 10
REFINE = 5
# Stages with so many rows have no more steps than that, and training does not go on after rows held
# out that are a smaller part of all than this.
MANY_ROWS, FEW_HELD_OUT = 200_000, 0.05


# ---- rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Some rows of evidence, which ``order`` names: in random order, each with its weight."""

    variables: Sequence[Variable]
    evidence: Evidence
    weight: Floats
    order: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, rows: slice | NDArray[Any]) -> WeightedRows:
        return replace(self, order=self.order[rows])

    def affordable(self, sizes: Sequence[int]) -> list[int]:
        """Sizes, ascending, whose tables of levels fit into memory; the first does always."""
        levels = sum(len(variable.levels) for variable in self.variables)
        return [size for size in sizes if size == sizes[0] or size * levels <= MOST_ENTRIES]

    def own_weight(self) -> Floats:
        """The weight of each of the rows."""
        return self.weight[self.order]

    def points(self) -> Floats:
        """What is known of each of the rows."""
        return self.evidence.points[self.order]

    def marginals(self, families: Mapping[str, str]) -> tuple[Univariate, ...]:
        """A distribution with one state for each variable, learned from these rows alone."""
        weight = np.zeros(len(self.weight))
        weight[self.order] = self.own_weight()
        points = self.evidence.points
        return tuple(
            start_distribution(variable, points[:, v], weight, 1, families.get(variable.name))
            for v, variable in enumerate(self.variables)
        )

    def with_missing(self, seed: int) -> WeightedRows:
        """Rows to judge by: as they are, or with missing values at random if they have hardly any.

        A density is for rows with missing values; how it does on complete ones says less.
        """
        held = self.evidence[self.order]
        own = [v for v, variable in enumerate(self.variables) if variable.columns]
        if held.allowed is not None or np.isnan(held.points[:, own]).mean() >= HARDLY_ANY_MISSING:
            return self
        points = held.points.copy()
        for v in own:
            points[hidden_at_random(self.variables[v].name, len(points), seed), v] = np.nan
        masked = replace(held, points=points)
        return WeightedRows(self.variables, masked, self.own_weight(), np.arange(len(self)))


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows in the terms of some distributions, and their weights."""

    packed: Packed
    weight: Floats

    @classmethod
    def of(cls, rows: WeightedRows, distributions: Sequence[Univariate]) -> EncodedRows:
        """Encode rows."""
        return cls(pack(distributions, rows.evidence, rows.order), rows.own_weight())

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice) -> EncodedRows:
        return EncodedRows(self.packed[rows], self.weight[rows])


# ---- the loop -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected sufficient statistics of rows, additive over rows.

    Attributes
    ----------
    log_likelihood : float
    latents : tuple of arrays
        Of weights, transitions or Gaussian moments: each density has its own.
    distributions : tuple of Statistics
        Of each variable's univariate distribution.
    """

    log_likelihood: float
    latents: tuple[Floats, ...]
    distributions: tuple[Statistics, ...] = ()


class Parameters(Protocol):
    """All parameters of a density, which know the steps of EM."""

    def expect(self, rows: Any) -> Expected:
        """The E step: statistics of encoded rows."""
        ...

    def stepped(self, expected: Expected, prior: Any) -> tuple[float, Self]:
        """The objective, and the parameters after the M step."""
        ...

    def log_density(self, rows: Any) -> Floats:
        """Log p of encoded rows."""
        ...


def expected(rows: Any, parameters: Parameters) -> Expected:
    """The E step as a function, for chunks of rows."""
    return parameters.expect(rows)


P = TypeVar("P")


@dataclass(frozen=True)
class Training:
    """How to train, whatever the rows, the size and the prior.

    ``max_iter``, ``tol`` and ``n_init`` are as for all densities; ``fraction`` of the rows is held
    out, and given missing values where there are hardly any, if it ``may_mask`` them; ``seed`` is
    for everything random; ``report`` is told of progress.
    """

    max_iter: int
    tol: float
    n_init: int
    fraction: float
    may_mask: bool
    seed: int
    report: Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Run(Generic[P]):
    """What training came to.

    Attributes
    ----------
    parameters : object
        The parameters that were kept, and the ``strength`` of their prior in rows.
    objective : float64 (steps tried,)
        The objective before each step.
    steps : int
        How many the parameters have behind them: fewer, where later ones had a worse score.
    converged : bool
        Whether training stopped before it ran out of steps.
    held_out : float
        The held-out score of the parameters; NaN where nothing was held out.
    """

    parameters: P
    strength: float
    objective: Floats
    steps: int
    converged: bool
    held_out: float = np.nan


def train(
    step: Callable[[P], tuple[float, P]],
    parameters: P,
    strength: float,
    rows: float,
    training: Training,
    score: Callable[[P], float] | None = None,
    least_gain: float = 0.0,
) -> Run[P]:
    """Steps until one gains less than ``tol`` per row, or ``score`` has stopped rising.

    ``step`` gives the objective at some parameters, and the parameters of the next step; ``rows``
    is the weight of all rows; ``score`` is a held-out one, and what had the best is kept. A step
    that raises it by ``least_gain`` at most does not count.

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
        converged = len(trace) > 1 and has_converged(np.diff(trace[-3:]) / rows, training.tol)
        if converged:
            break
        parameters = stepped
        now = np.nan if score is None else score(parameters)
        misses = misses + 1 if now <= best + least_gain else 0
        converged = misses == PATIENCE
        if not now <= best:
            kept, steps, best = parameters, len(trace), now
    return Run(kept, strength, np.array(trace), steps, converged, best)


def has_converged(gains: Floats, tol: float) -> bool:
    """Whether the last gain is below ``tol``, and those to come, as a geometric series, are small.

    Examples
    --------
    >>> [has_converged(np.array(gains), tol=1e-3) for gains in ([8e-4, 4e-4], [8e-4, 7.9e-4])]
    [True, False]
    """
    before, last = gains[0], gains[-1]
    if last >= tol:
        return False
    return bool(last <= 0 or last**2 <= TO_COME * tol * max(before - last, 0.0))


# ---- learners -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Learner(ABC):
    """Trains one kind of density on some rows: several starts, then more and more of the rows.

    Attributes
    ----------
    unit : str
        What a size counts.
    strength : float
        Of the prior, in rows a component, where none is given.
    one_is_independent : bool
        Whether size 1 means independent variables, which no prior changes.
    rows : WeightedRows
        What it trains on, and ``encoded`` in its own terms.
    training : Training
        How it trains.
    """

    unit: ClassVar[str] = "components"
    strength: ClassVar[float] = STRENGTH
    one_is_independent: ClassVar[bool] = True
    rows: WeightedRows
    encoded: Any
    training: Training

    @abstractmethod
    def on(self, rows: WeightedRows) -> Self:
        """A learner for other rows, which alone say how columns are read."""

    def first(self, n: int) -> Self:
        """The same, training on the first of its rows only; columns are read as before."""
        if n >= len(self.rows):
            return self
        return replace(self, rows=self.rows[:n], encoded=self.encoded[:n])

    def alone(self) -> Self:
        """The learner for size 1, with columns read as suits that best."""
        return self

    @abstractmethod
    def encode(self, rows: WeightedRows) -> Any:
        """Rows, with their ``weight``, as :meth:`fit` and :meth:`log_densities` take them."""

    def prior(self, strength: float) -> Any:
        """What :meth:`start` and :meth:`Parameters.stepped` take for the prior."""
        return strength

    @abstractmethod
    def start(self, size: int, prior: Any, number: int) -> Any:
        """Parameters to start with."""

    @property
    def starts(self) -> tuple[int, int]:
        """How many starts there are, and the steps of each before the best is chosen."""
        return self.training.n_init, SHORT

    @property
    def starts_are_judged(self) -> bool:
        """Whether held-out rows, where there are any, choose among the starts."""
        return False

    @property
    def steps_of_stages(self) -> int:
        """Steps of each stage on a part of the rows."""
        return SHORT

    @property
    def tol(self) -> float:
        """The gain per row at which training stops."""
        return self.training.tol

    def step(self, parameters: Any, prior: Any) -> tuple[float, Any]:
        """The objective, and the parameters after a step."""
        objective, after = parameters.stepped(parameters.expect(self.encoded), prior)
        return objective, after

    def log_densities(self, parameters: Any, rows: Any) -> Floats:
        """Log p of encoded rows, for comparisons."""
        return np.asarray(parameters.log_density(rows))

    def score(self, parameters: Any, rows: Any) -> float:
        """Weighted mean of log p."""
        return float(np.average(self.log_densities(parameters, rows), weights=rows.weight))

    def fit(self, size: int, strength: float, held: Any = None) -> Run[Any]:
        """The best of several starts, trained on more and more of the rows.

        Rows that are held out say when to stop.
        """
        prior = self.prior(strength)
        few = self.first(FIRST_ROWS)
        number, short = few.starts
        starts = [few.start(size, prior, i) for i in range(number if size > 1 else 1)]
        parameters = starts[0]
        if len(starts) > 1:
            judges = held if few.starts_are_judged else None
            runs = [few.train(start, prior, strength, short, judges) for start in starts]
            best = max(runs, key=lambda run: run.objective[-1] if judges is None else run.held_out)
            parameters = best.parameters
        steps = self.steps_of_stages
        if few is not self and steps > short:
            parameters = few.train(parameters, prior, strength, steps - short).parameters
        part = FIRST_ROWS * GROWTH
        while part < len(self.rows):
            steps = steps if part < MANY_ROWS else min(steps, REFINE)
            parameters = self.first(part).train(parameters, prior, strength, steps).parameters
            part *= GROWTH
        return self.train(parameters, prior, strength, self.training.max_iter, held)

    def refined(self, run: Run[Any], held: int) -> Run[Any]:
        """A few more steps on all rows, of which ``held`` were held out from training.

        The record of the training stays. The run is returned unchanged if so few rows were held out
        that more steps would change nothing.
        """
        if held < FEW_HELD_OUT * len(self.rows):
            return run
        again = self.train(run.parameters, self.prior(run.strength), run.strength, REFINE)
        return replace(run, parameters=again.parameters)

    def train(
        self, parameters: Any, prior: Any, strength: float, max_iter: int, held: Any = None
    ) -> Run[Any]:
        """EM on its rows from these parameters."""
        rows = float(self.encoded.weight.sum())
        run = train(
            lambda parameters: self.step(parameters, prior),
            parameters,
            strength,
            rows,
            replace(self.training, max_iter=max_iter, tol=self.tol),
            None if held is None else lambda parameters: self.score(parameters, held),
            LEAST_GAIN * self.tol,
        )
        if run.converged or len(run.objective) < 2:
            return run
        # Out of steps, though no more is to be gained than ``training.tol`` asks for.
        gains = np.diff(run.objective[-3:]) / rows
        return replace(run, converged=has_converged(gains, self.training.tol))
