"""Names of densities: values of ``density=`` in Python and on the command line."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from knothole.checks import check_choice

if TYPE_CHECKING:
    from knothole.densities.base import Density

#: The class of each density that has a name.
CLASS_NAMES = {
    "gaussian-mixture": "GaussianMixture",
    "mixture": "Mixture",
    "latent-tree": "LatentTree",
    "independent": "Factorized",
}
#: The values that users can pass; "auto" compares the named ones on held-out rows.
CHOICES = ("auto", *CLASS_NAMES)


def from_name(name: str, random_state: Any = None) -> Density:
    """A new density with the defaults of its class.

    Examples
    --------
    >>> from_name("independent", random_state=0)
    Factorized(random_state=0)
    >>> from_name("factorized")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    knothole.errors.InvalidInput: density must be 'auto', ... or 'independent'; got 'factorized'.
    """
    from knothole.densities.storage import CLASSES

    check_choice("density", name, CHOICES)
    class_name = CLASS_NAMES[name]
    density: Density = getattr(import_module(CLASSES[class_name]), class_name)(
        random_state=random_state
    )
    return density


def name_of(density: Any) -> str:
    """The name of a density's class; classes without one have their own name.

    Examples
    --------
    >>> from knothole.densities.mixture.density import Factorized
    >>> name_of(Factorized())
    'independent'
    """
    class_name = type(density).__name__
    return next((name for name, known in CLASS_NAMES.items() if known == class_name), class_name)
