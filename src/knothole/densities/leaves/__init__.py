"""Leaf families: distributions of one variable, for every state of a latent at once.

A family is one file here with one class, a subclass of :class:`~.base.Leaf`, listed in
``FAMILIES``; the contract tests in ``tests/densities/test_leaves.py`` pick it up from there.
"""

from __future__ import annotations

from knothole.columns import Kind, Variable
from knothole.densities.leaves.base import Floats, Leaf
from knothole.densities.leaves.categorical import Categorical
from knothole.densities.leaves.gaussian import Gaussian

FAMILIES: dict[str, type[Leaf]] = {family.family: family for family in (Categorical, Gaussian)}


def choose(variable: Variable, x: Floats) -> type[Leaf]:
    """The family for a variable, from its values (which may hold NaN)."""
    return Categorical if variable.kind is Kind.CATEGORICAL else Gaussian
