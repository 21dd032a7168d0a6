"""Emission families: distributions of one variable, for every state of a latent at once.

A family is a class, a subclass of :class:`~.base.Emission`, listed in ``FAMILIES``; the contract
tests in ``tests/densities/test_emissions.py`` pick it up from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import require
from knothole.columns.columns import NOT_RECORDED, Kind, Variable
from knothole.densities.univariate.atoms import Atoms
from knothole.densities.univariate.base import Emission, part_of
from knothole.densities.univariate.categorical import Categorical
from knothole.densities.univariate.choice import PLAIN, USUAL, repeated_values
from knothole.densities.univariate.gaussian import Gaussian
from knothole.errors import InvalidInput

__all__ = [
    "FAMILIES",
    "Atoms",
    "Categorical",
    "Emission",
    "Gaussian",
    "check_emissions",
    "choose",
    "emission_arrays",
    "emissions_from",
    "start_emission",
    "with_continuous",
]

FAMILIES: dict[str, type[Emission]] = {**PLAIN, Atoms.family: Atoms}
NUMERIC = [family for family in PLAIN if family != Categorical.family]


def choose(variable: Variable, x: Floats) -> type[Emission]:
    """The family for a variable, from its values (which may hold NaN)."""
    usual = USUAL[variable.kind]
    if usual is Categorical:
        return Categorical
    points = variable.nullable or len(repeated_values(variable, x, np.ones(len(x))))
    return Atoms if points else usual


def start_emission(
    variable: Variable, x: Floats, weight: Floats, n_states: int, family: str | None = None
) -> Emission:
    """An emission for a variable: of the family chosen from the data, unless one is named.

    ``"atoms+histogram"`` names the family beside the points. A nullable numeric variable keeps its
    state "not recorded" beside whatever family.
    """
    if family is None:
        return choose(variable, x).start(variable, x, weight, n_states)
    _check_family(variable, family)
    if family in FAMILIES and not (variable.nullable and family in NUMERIC):
        return FAMILIES[family].start(variable, x, weight, n_states)
    _, plus, rest = family.rpartition("+")
    points = repeated_values(variable, x, weight) if plus else np.empty(0)
    if variable.nullable:
        points = np.append(points, NOT_RECORDED)
    return Atoms.beside(FAMILIES[rest], points, variable, x, weight, n_states)


def _check_family(variable: Variable, family: str) -> None:
    known = [*FAMILIES, *(f"atoms+{rest}" for rest in NUMERIC)]
    if family not in known:
        raise InvalidInput(
            f"families: {family!r} for {variable.name!r} is no family; there are {known}."
        )
    discrete = variable.kind is Kind.CATEGORICAL
    if discrete != (family == Categorical.family):
        raise InvalidInput(
            f"families: {variable.name!r} is {variable.kind}, so its family "
            f"{'must' if discrete else 'cannot'} be 'categorical'; got {family!r}."
        )


def with_continuous(family: str, variable: Variable, x: Floats) -> str:
    """The name of the family that :func:`choose` takes, with another one for its values."""
    return f"atoms+{family}" if choose(variable, x) is Atoms else family


def emission_arrays(emissions: Sequence[Emission]) -> dict[str, NDArray[Any]]:
    """The arrays of some emissions, for storage; :func:`emissions_from` has the inverse."""
    return {
        f"leaf{e}.{name}": array
        for e, emission in enumerate(emissions)
        for name, array in emission.arrays().items()
    }


def check_emissions(
    variables: Sequence[Variable], emissions: Sequence[Emission], n_states: Sequence[int]
) -> None:
    """Refuse what a file holds where it is not one emission a variable, with these states each."""
    counts = f"{len(emissions)} emissions, {len(variables)} variables"
    require(len(emissions) == len(variables) == len(n_states), counts)
    for variable, emission, size in zip(variables, emissions, n_states, strict=True):
        discrete = variable.kind is Kind.CATEGORICAL
        fits = discrete == (emission.family == Categorical.family)
        require(fits, f"{variable.name!r} is {variable.kind}, not of family {emission.family!r}")
        emission.check(variable, size)


def emissions_from(
    families: Sequence[str], arrays: dict[str, NDArray[Any]]
) -> tuple[Emission, ...]:
    """Emissions of these families."""
    return tuple(
        FAMILIES[family].from_arrays(part_of(arrays, f"leaf{e}"))
        for e, family in enumerate(families)
    )
