"""The contract of an emission family.

An emission is the distribution of one variable given the state of a latent (the component of a
mixture, a node of a latent tree), for all ``n_states`` states at once. Every family is written in
one form, so that EM, reach and sampling need no code per family: a value ``x`` is *encoded* once
as a code ``c``, a number ``z`` and a base measure ``h``, and then

    log p(x | k) = h + table[c, k] + z * linear[k] + z**2 * square[k].

A Gaussian has one code and uses ``z``; a categorical has a code per level and ``z = 0``; a point
mass beside a Gaussian has a code for the point (``z = 0``) and one for the rest. Sufficient
statistics follow the same form: responsibilities summed per code, and weighted sums of ``z`` and
``z**2``. A hole has code -1 and contributes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, require
from knothole.columns.columns import Variable
from knothole.compiled.exp import FARTHEST


@dataclass(frozen=True, eq=False)
class Encoded:
    """Values of one variable in the form of the module's docstring.

    Attributes
    ----------
    code : int32 (rows,)
        Row of the table; -1 for a hole.
    z : float64 (rows,)
        Standardised value; 0 where the code says it all.
    base : float64 (rows,) or None
        Log base measure; None where it is 0 everywhere.
    """

    code: NDArray[np.int32]
    z: Floats
    base: Floats | None = None


@dataclass(frozen=True, eq=False)
class Natural:
    """Parameters in the form of the module's docstring: (codes, states), (states,), (states,).

    A family that does not use ``z`` has ``linear = square = None``.
    """

    table: Floats
    linear: Floats | None = None
    square: Floats | None = None


@dataclass(frozen=True, eq=False)
class Statistics:
    """Expected sufficient statistics: additive over rows, blocks and workers.

    Attributes
    ----------
    count : float64 (codes, states)
        Sum of responsibilities per code.
    first, second : float64 (states,)
        Sums of responsibility times ``z`` and ``z**2``.
    """

    count: Floats
    first: Floats
    second: Floats


class Stored:
    """A dataclass of arrays and numbers that files keep, without pickle."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All fields."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """The inverse of :meth:`arrays`."""
        return cls(**{name: array if array.ndim else array[()] for name, array in arrays.items()})


class Emission(Stored, ABC):
    """One variable's distribution in each of ``n_states`` states. Immutable: steps return new ones.

    What depends on the column alone (levels, bin edges, location and scale, the value of a point
    mass) is settled by :meth:`start` and stays; EM changes the rest through :meth:`maximise`.
    """

    family: ClassVar[str]

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.form.table.shape[1])

    @property
    def n_codes(self) -> int:
        """Number of codes."""
        return len(self.form.table)

    @classmethod
    @abstractmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """An emission for this variable, the same in every state: the marginal of ``x``.

        The learner breaks the symmetry by a first :meth:`maximise` on its initial
        responsibilities.
        """

    @abstractmethod
    def encode(self, x: Floats) -> Encoded:
        """Values (rows,), NaN for holes, in the common form."""

    @abstractmethod
    def natural(self) -> Natural:
        """Parameters in the common form."""

    @cached_property
    def form(self) -> Natural:
        """:meth:`natural`, worked out once: an emission never changes."""
        return self.natural()

    @abstractmethod
    def maximise(self, statistics: Statistics, strength: float) -> Self:
        """The maximum a posteriori emission given expected statistics.

        ``strength`` is the weight of the prior, in rows, per state: a conjugate prior centred on
        the marginal that :meth:`start` saw (Dirichlet, normal-inverse-gamma). 0 is plain maximum
        likelihood, kept away from singular solutions.
        """

    @classmethod
    def maximise_each(
        cls, emissions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """:meth:`maximise` of several emissions, each with its own strength.

        A family that is met often does so for all of them at once.
        """
        each = zip(emissions, statistics, strengths.tolist(), strict=True)
        return [emission.maximise(own, strength) for emission, own, strength in each]

    @abstractmethod
    def log_prior(self, strength: float) -> float:
        """Log prior density of the parameters (up to a constant), which EM's objective includes."""

    @abstractmethod
    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """P(low <= x < high, or x not recorded where the flag is set | state), (regions, states).

        For a categorical family use :meth:`set_mass`.
        """

    def set_mass(self, allowed: NDArray[np.bool_]) -> Floats:
        """P(code in the set | state): (sets, states) from a bool array (sets, levels)."""
        raise NotImplementedError

    @abstractmethod
    def invert(self, state: NDArray[np.integer[Any]], uniform: Floats) -> Floats:
        """One value for each entry of ``state``: uniform numbers become draws of the family.

        By inversion where values have an order, so that numbers that are spread evenly make draws
        that are.
        """

    def sample(self, state: NDArray[np.integer[Any]], rng: np.random.Generator) -> Floats:
        """One independent draw for each entry of ``state``."""
        return self.invert(state, rng.random(len(state)))

    @abstractmethod
    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """The emission with only these states, in this order (repeats allowed)."""

    def check(self, variable: Variable, n_states: int) -> None:
        """Refuse what a file holds where it is no emission of this variable with these states.

        A subclass checks its fields first.
        """
        natural = self.form
        shape = (self.n_codes, n_states)
        check_array(f"the {self.family} table", natural.table, shape, finite=False)
        require((natural.table < np.inf).all(), f"the {self.family} table must not be infinite")
        for slope in (natural.linear, natural.square):
            if slope is not None:
                check_array(f"parameters of a {self.family}", slope, (n_states,))
                require((np.abs(slope) < FARTHEST).all(), f"a {self.family} narrower than can be")

    def log_density(self, x: Floats) -> Floats:
        """Log p(x | state), (rows, states); 0 at holes. The slow twin of the compiled sums."""
        encoded, natural = self.encode(x), self.form
        out = np.asarray(natural.table[encoded.code])
        if natural.linear is not None and natural.square is not None:
            with np.errstate(over="ignore"):  # values so far out have density 0
                out = out + encoded.z[:, None] * natural.linear
                out = out + encoded.z[:, None] ** 2 * natural.square
        if encoded.base is not None:
            out = out + encoded.base[:, None]
        return np.asarray(np.where(encoded.code[:, None] < 0, 0.0, out))


def maximised(
    emissions: Sequence[Emission], statistics: Sequence[Statistics], strength: float | Floats
) -> tuple[Emission, ...]:
    """Each emission after a step of EM; ``strength`` is one for all, or each one's own."""
    strengths = np.broadcast_to(np.asarray(strength, dtype=np.float64), len(emissions))
    alike: dict[tuple[type[Emission], int], list[int]] = {}
    for e, emission in enumerate(emissions):
        alike.setdefault((type(emission), statistics[e].count.shape[1]), []).append(e)
    out = list(emissions)
    for (family, _), own in alike.items():
        each = [emissions[e] for e in own]
        after = family.maximise_each(each, [statistics[e] for e in own], strengths[own])
        for e, emission in zip(own, after, strict=True):
            out[e] = emission
    return tuple(out)


def observed(x: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Values that are no holes (nor "not recorded") and have weight, and their weights."""
    keep = np.isfinite(x) & (weight > 0)
    return x[keep], weight[keep]


def owned(owner: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays under the names that they have beside others': the inverse of :func:`part_of`."""
    return {f"{owner}.{name}": array for name, array in arrays.items()}


def part_of(arrays: dict[str, NDArray[Any]], owner: str) -> dict[str, NDArray[Any]]:
    """The arrays that are called ``owner.name``, by name."""
    prefix = f"{owner}."
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
