"""Mixtures of products, and the product alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from knothole.arrays import Floats
from knothole.densities.base import EmissionDensity, Within
from knothole.densities.checks import check_names, check_number, check_whole
from knothole.densities.circuit.build import mixture_to_circuit
from knothole.densities.circuit.density import Circuit
from knothole.densities.draw import check_possible, fill_holes
from knothole.densities.emissions.packed import pack
from knothole.densities.emissions.table import log_of
from knothole.densities.mixture.em import Components, log_densities, shares
from knothole.densities.mixture.kernels import pick
from knothole.densities.mixture.search import learn
from knothole.densities.mixture.training import Settings, Table
from knothole.tables.columns import Evidence


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
        Training stops when a step gains less log likelihood than this per row.
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
    objective_ : float64 (n_iter_,)
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

    weights_: Floats
    n_iter_: int
    converged_: bool
    objective_: Floats
    strength_: float

    def __init__(
        self,
        components: int | Literal["auto"] = "auto",
        *,
        families: Mapping[str, str] | None = None,
        strength: float | Literal["auto"] = "auto",
        max_iter: int = 200,
        tol: float = 1e-3,
        n_init: int = 3,
        validation_fraction: float = 0.1,
        informative: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.components = components
        self.families = families
        self.strength = strength
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.validation_fraction = validation_fraction
        self.informative = informative
        self.random_state = random_state
        self.verbose = verbose

    # ---- learning ----------------------------------------------------------------------------

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        self._check_parameters()
        rng = self._rng()
        order = rng.permutation(np.flatnonzero(weight > 0))
        settings = Settings(
            families=self.families or {},
            max_iter=self.max_iter,
            tol=self.tol,
            n_init=self.n_init,
            seed=int(rng.integers(2**31)),
            may_mask=not self.informative,
            report=self._report,
        )
        table = Table(self.variables_, evidence, weight, order)
        size = self.components if self.components == "auto" else int(self.components)
        strength = self.strength if self.strength == "auto" else float(self.strength)
        run, self.strength_ = learn(table, settings, size, strength, self.validation_fraction)
        self.weights_, self.emissions_ = run.components.weight, run.components.emissions
        self.objective_, self.n_iter_ = run.objective, len(run.objective)
        self.converged_ = bool(run.converged)
        if not run.converged:
            warnings.warn(
                f"EM stopped after max_iter={self.max_iter} steps while it was still gaining more "
                f"than tol={self.tol} per row; raise one of them.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _check_parameters(self) -> None:
        if self.components != "auto":
            check_whole("components", self.components)
        if self.strength != "auto":
            check_number("strength", self.strength)
        check_whole("max_iter", self.max_iter)
        check_whole("n_init", self.n_init)
        check_number("tol", self.tol)
        check_number("validation_fraction", self.validation_fraction, below=1)
        check_names("families", self.families or {}, self.variables_)

    def _report(self, line: str) -> None:
        if self.verbose:
            print(f"[{type(self).__name__}] {line}")

    # ---- storage -----------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """With the weights, and how training went."""
        header, arrays = super().state()
        header |= {"converged": self.converged_, "strength": self.strength_}
        arrays |= {"weights": self.weights_, "objective": self.objective_}
        return header, arrays

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """With the weights, and how training went."""
        super().restore(header, arrays)
        self.weights_, self.objective_ = arrays["weights"], arrays["objective"]
        self.n_iter_ = len(self.objective_)
        self.converged_, self.strength_ = header["converged"], header["strength"]

    # ---- questions ---------------------------------------------------------------------------

    @property
    def _components(self) -> Components:
        return Components(self.weights_, self.emissions_)

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(evidence), (rows,), and p(component | evidence), (rows, components).

        A row that no component can have has log p = -inf and the weights for responsibilities.
        """
        return shares(pack(self.emissions_, evidence), self._components)

    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,)."""
        regions = sum((self.log_region(region) for region in within), np.zeros(len(self.weights_)))
        return log_densities(pack(self.emissions_, evidence), self._components, regions)

    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows from their terms: the slow twin of the compiled sums."""
        return np.asarray(logsumexp(np.add.reduce(terms) + log_of(self.weights_), axis=1))

    def sample_points(self, n: int, rng: np.random.Generator) -> Floats:
        """Draws of all variables, (n, variables)."""
        component = rng.choice(len(self.weights_), size=n, p=self.weights_)
        return np.stack([emission.sample(component, rng) for emission in self.emissions_], axis=1)

    @property
    def coordinates(self) -> int:
        """The component, then each variable's value."""
        return 1 + len(self.emissions_)

    def draw_points(self, evidence: Evidence, uniform: Floats) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        log_p, share = self.responsibilities(evidence)
        check_possible(np.isneginf(log_p))
        component = np.empty(uniform.shape[:2], dtype=np.int64)
        pick(share, uniform[:, :, 0], component)
        states = np.broadcast_to(component[:, :, None], (*component.shape, len(self.emissions_)))
        return fill_holes(self.emissions_, evidence, states, uniform[:, :, 1:])

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
