"""Mixtures of products, and the product alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from knothole.arrays import Floats
from knothole.checks import check_chances, check_whole
from knothole.columns.columns import Evidence
from knothole.densities.base import EmissionDensity, Within
from knothole.densities.circuit.build import mixture_to_circuit
from knothole.densities.circuit.density import Circuit
from knothole.densities.em import Run, Step
from knothole.densities.mixture.em import (
    ProductMixture,
    expected,
    log_densities,
    shares,
    stepped,
)
from knothole.densities.mixture.kernels import pick
from knothole.densities.mixture.learner import ProductLearner, choose_families, sizes_for
from knothole.densities.rows import EncodedRows
from knothole.densities.search import Wanted, can_hold_out, learn
from knothole.densities.univariate.packed import pack
from knothole.densities.univariate.table import log_of
from knothole.out_of_core.base import Parts


@dataclass(eq=False, repr=False)
class Mixture(EmissionDensity):
    """A mixture of products: given its component, a row's variables are independent.

    Parameters
    ----------
    components : int or "auto"
        Number of components; "auto" takes the best of 1, 2, 4, ... by held-out log p.
    families : mapping from a variable's name to a family, optional
        Families for some variables ("gaussian", "histogram", "integer", ...); the others' are
        chosen from the data.
    strength : float or "auto"
        Weight of the prior in rows, per component: Dirichlet and normal-inverse-gamma priors
        centred on the columns' own distributions. "auto" chooses it by held-out log p where
        rows are few for the number of components.
    max_iter : int
        Most steps of EM.
    tol : float
        Training stops when a step gains less log likelihood than this per row, and those to come,
        as far as gains shrink, promise less than ten times as much.
    n_init : int
        Starts, of which the best is trained to the end.
    validation_fraction : float
        Part of the rows held out to stop training before it overfits; 0 for none. The last
        steps are made on all rows.
    informative : bool
        Whether p is also over which variables are holes, for data that is not missing at random.
    random_state : int, RandomState or None
        Seed of starts, splits and draws.
    verbose : bool
        Whether to print progress.

    Attributes
    ----------
    weights_ : float64 (components,)
    emissions_ : tuple of Emission
        One for each variable.
    n_iter_ : int
        Steps of EM on the whole training part.
    converged_ : bool
    objective_ : float64 (passes,)
        Log likelihood of the training part plus log prior, before each step.
    strength_ : float
        The strength of the prior that was used.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> centre = rng.choice([-2.0, 2.0], size=(500, 1))
    >>> X = centre + 0.1 * rng.normal(size=(500, 2))
    >>> density = Mixture(components=2, random_state=0).fit(X)
    >>> hole = np.nan
    >>> bool(abs(density.complete([[2.0, hole]], draws=50)[0, :, 1].mean() - 2) < 0.1)
    True
    """

    stored_values = ("converged", "strength")
    stored_arrays = ("weights", "objective")

    components: int | Literal["auto"] = "auto"
    _: KW_ONLY
    n_init: int = 3

    weights_: Floats = field(init=False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_whole("components", self.components, also=["auto"])

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        rows, training = self._prepared(evidence, weight)
        sizes = sizes_for(rows) if self.components == "auto" else [int(self.components)]
        named = self.families or {}
        chosen: Mapping[str, str] | None = None if sizes[-1] == 1 else {}
        if sizes[-1] > 1 and can_hold_out(training, len(rows)):
            chosen = choose_families(rows, training, named)
        learner = ProductLearner.of(rows, training, named, chosen)
        _, run = learn([learner], Wanted(sizes, self._given_strength))
        self._adopt(run)

    def _adopt(self, run: Run[ProductMixture]) -> None:
        self._keep(run)
        self.weights_, self.emissions_ = run.parameters.weight, run.parameters.emissions
        self.objective_ = run.objective

    def encoded(self, evidence: Evidence, weight: Floats) -> EncodedRows:
        """Rows as EM takes them."""
        return EncodedRows(pack(self.emissions_, evidence), weight)

    def going_on(self, rows: Parts) -> tuple[ProductMixture, Step[ProductMixture]]:
        """See :meth:`Density.going_on`."""
        return self._mixture, lambda mixture: stepped(
            mixture, rows.summed(expected, mixture), self.strength_
        )

    @property
    def _mixture(self) -> ProductMixture:
        return ProductMixture(self.weights_, self.emissions_)

    @property
    def emission_states(self) -> list[int]:
        """One for each component."""
        return [len(self.weights_)] * len(self.variables_)

    def check(self) -> None:
        """With the weights."""
        check_chances("weights", self.weights_, (None,))
        super().check()

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(evidence), (rows,), and p(component | evidence), (rows, components).

        A row that no component can have has log p = -inf and the weights for responsibilities.
        """
        return shares(pack(self.emissions_, evidence, passing=True), self._mixture)

    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,)."""
        regions = sum((self.log_region(region) for region in within), np.zeros(len(self.weights_)))
        return log_densities(pack(self.emissions_, evidence), self._mixture, regions)

    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows from their terms: the slow twin of the compiled sums."""
        return np.asarray(logsumexp(np.add.reduce(terms) + log_of(self.weights_), axis=1))

    @property
    def state_coordinates(self) -> int:
        """The component's."""
        return 1

    def draw_states(
        self, evidence: Evidence, uniform: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The component of every draw, for each variable."""
        log_p, share = self.responsibilities(evidence)
        component = np.empty(uniform.shape[:2], dtype=np.int64)
        pick(share, np.ascontiguousarray(uniform[:, :, 0]), component)
        states = np.broadcast_to(component[:, :, None], (*component.shape, len(self.emissions_)))
        return states, np.isneginf(log_p)

    def to_circuit(self) -> Circuit:
        """The same density as a circuit of sums, products and emissions."""
        self._check_fitted()
        return mixture_to_circuit(self, self.weights_)


class Factorized(Mixture):
    """All variables independent: a mixture of one component.

    Parameters
    ----------
    families : mapping from a variable's name to a family, optional
        Families for some variables; the others' are chosen from the data.
    informative : bool
        Whether p is also over which variables are holes.
    random_state : int, RandomState or None
        Seed of draws.

    Examples
    --------
    >>> density = Factorized().fit([[0.0, "red"], [1.0, "blue"], [None, "red"]])
    >>> float(density.score_samples([[None, None]])[0])
    0.0
    """

    def __init__(
        self,
        *,
        families: Mapping[str, str] | None = None,
        informative: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(1, families=families, informative=informative, random_state=random_state)
