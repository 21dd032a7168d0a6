"""The hidden Chow-Liu tree: a latent for every variable, tied together by a tree.

Liu and Van den Broeck (2021), "Tractable Regularization of Probabilistic Circuits": learn the
Chow-Liu tree of the variables, put a latent with h states in the place of each variable, and hang
the variable below it. With h = 1 the variables are independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, check_whole, require
from knothole.columns.columns import Evidence, Kind
from knothole.densities.base import LatentDensity, Within
from knothole.densities.circuit.density import Circuit, tree_to_circuit
from knothole.densities.em import EncodedRows, Run, WeightedRows
from knothole.densities.latent_tree.chow_liu import Tree, chow_liu
from knothole.densities.latent_tree.em import TreeParameters
from knothole.densities.mixture.density import ProductLearner, learn_latents
from knothole.densities.univariate.base import log_of, log_sum_exp
from knothole.densities.univariate.packed import pack

# The most rows from which the tree is learned.
ROWS_FOR_STRUCTURE = 20_000
# States of each latent, where so many rows are to be had for each; and entries of all transitions
# at most, since steps and answers take as long as they are many. 32 states had the lowest errors of
# 4 to 32 on the tables that they were chosen on (abalone, delta_ailerons, adult, energy_heating,
# pima_diabetes, heart_hungarian).
STATES = 32
ROWS_PER_STATE = 5
MOST_TRANSITIONS = 12_000
STRENGTH_OF_STATES = 1.5
# Initial probability that a latent has its parent's state.
STICKY = 0.9


@dataclass(frozen=True, eq=False)
class TreeLearner(ProductLearner):
    """Learns latent trees.

    They start close to a mixture of products: a latent tends to have its parent's state.
    """

    unit: ClassVar[str] = "states"
    strength: ClassVar[float] = STRENGTH_OF_STATES

    tree: Tree

    @classmethod
    def of(cls, rows: WeightedRows, *how: Any, **more: Any) -> Self:
        """A learner for some rows, with the tree of their variables."""
        first = rows[:ROWS_FOR_STRUCTURE]
        categorical = [variable.kind is Kind.CATEGORICAL for variable in rows.variables]
        tree = chow_liu(first.points(), first.own_weight(), categorical)
        return super().of(rows, *how, tree=tree, **more)

    @property
    def steps_of_stages(self) -> int:
        """With 10, 100,000 rows take twice the time: most steps should be made on few rows."""
        return 40

    def start(self, size: int, prior: float, number: int) -> TreeParameters:
        """The mixture's start, its components the states of every latent."""
        mixture = super().start(size, max(prior, 1.0), number)
        return TreeParameters.even(self.tree, mixture.distributions, size, STICKY)

    def fit(self, size: int, strength: float, held: Any = None) -> Run[TreeParameters]:
        """Fit a latent tree; with one state, variables are independent."""
        run = super().fit(size, strength, held)
        if size > 1:
            return run
        parameters = TreeParameters.even(self.tree, run.parameters.distributions, 1)
        return replace(run, parameters=parameters)


def sizes_for(rows: WeightedRows) -> list[int]:
    """1, or as many states as rows and memory allow."""
    most = min(STATES, len(rows) // ROWS_PER_STATE)
    sizes = [n for n in (1, 2, 4, 8, 16, 32) if n <= most]
    sizes = [n for n in sizes if n <= 4 or n * n * len(rows.variables) <= MOST_TRANSITIONS]
    largest = rows.affordable(sizes or [1])[-1]
    return [1, largest] if largest > 1 else [1]


@dataclass(eq=False, repr=False)
class LatentTree(LatentDensity):
    """A latent tree: each variable depends on a latent of its own, the latents form a tree.

    Parameters
    ----------
    n_states : int or "auto"
        States of each latent; "auto" is 32, fewer where variables are many, and 1
        where held-out rows do not say that variables depend on each other.
    families : mapping from a variable's name to a family, optional
        Families for some variables ("gaussian", "histogram", "integer", ...); the others' are
        chosen from the data.
    strength : float or "auto"
        Weight of the prior in rows, per state: centred on the columns' own distributions for the
        distributions, even for the latents. "auto" is 1.5, or 20 times
        as much, where that suits fewer than 1,000 rows better.
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
    random_state : int, RandomState or None
        Seed of starts, splits and draws.
    verbose : bool
        Whether to print progress.

    Attributes
    ----------
    states_ : int
        States of each latent.
    parent_ : int64 (variables,)
        The parent of each variable in the tree, -1 for the root.
    order_ : int64 (variables,)
        The variables with every parent before its children.
    prior_ : float64 (states,)
        p(z_root).
    transition_ : float64 (variables, states, states)
        ``transition_[v, i, j]`` is p(z_v = j | z_parent = i); the root's rows all hold ``prior_``.
    distributions_ : tuple of Univariate
        p(x_v | z_v), for each variable.
    strength_ : float
        Weight of the prior at the end.
    n_iter_ : int
        Steps of EM on the training part.
    converged_ : bool
    objective_ : float64 (passes,)
        Log likelihood of the training part plus log prior, before each step.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> first = rng.integers(2, size=1000)
    >>> second = np.where(rng.random(1000) < 0.9, first, 1 - first)
    >>> X = np.column_stack([first, second]).astype(float)
    >>> density = LatentTree(n_states=4, random_state=0).fit(X)
    >>> drawn = density.complete([[1.0, np.nan]], draws=200)[0, :, 1]
    >>> bool(0.8 < drawn.mean() < 1)
    True
    """

    stored_arrays = ("parent", "order", "prior", "transition")

    n_states: int | Literal["auto"] = "auto"
    _: KW_ONLY
    n_init: int = 3

    states_: int = field(init=False)
    parent_: NDArray[np.int64] = field(init=False)
    order_: NDArray[np.int64] = field(init=False)
    prior_: Floats = field(init=False)
    transition_: Floats = field(init=False)

    # ---- learning ----------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_whole("n_states", self.n_states, also=["auto"])

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        rows, training = self._prepared(evidence, weight)
        sizes = sizes_for(rows) if self.n_states == "auto" else [int(self.n_states)]
        self._adopt(learn_latents(TreeLearner, rows, training, sizes, self))

    def _adopt(self, run: Run[TreeParameters]) -> None:
        super()._adopt(run)
        parameters = run.parameters
        self.states_ = len(parameters)
        self.parent_, self.order_ = parameters.tree.parent, parameters.tree.order
        self.prior_, self.transition_ = parameters.prior, parameters.transition
        self.distributions_ = parameters.distributions

    def encoded(self, evidence: Evidence, weight: Floats) -> EncodedRows:
        """Rows as EM takes them."""
        return EncodedRows(pack(self.distributions_, evidence), weight)

    # ---- storage -----------------------------------------------------------------------------

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """With the number of states."""
        super().restore(header, arrays)
        self.states_ = len(self.prior_)

    @property
    def distribution_states(self) -> list[int]:
        """The states of the latents."""
        return [len(self.prior_)] * len(self.variables_)

    def check(self) -> None:
        """Also checks that the arrays describe a tree."""
        own = len(self.variables_)
        check_array("parent", self.parent_, (own,), "i")
        check_array("order", self.order_, (own,), "i")
        check_array("prior", self.prior_, (None,))
        check_array("transition", self.transition_, (own, self.states_, self.states_))
        super().check()
        order, parent, transition = self.order_, self.parent_, self.transition_
        permutes = np.array_equal(np.sort(order), np.arange(own))
        require(permutes, "order must be a permutation of the variables")
        place, inner = np.argsort(order), order[1:]
        above = parent[inner]
        one = parent[order[0]] == -1 and (above >= 0).all() and (above < own).all()
        require(one, "parent must describe one tree")
        before = (place[above] < place[inner]).all() and (np.diff(place[above]) >= 0).all()
        require(before, "order must have every parent before its children")
        require((transition > 0).all(), "transition must be positive everywhere")
        require(np.allclose(transition.sum(axis=2), 1.0), "transition must add up to 1")
        same = np.array_equal(transition[order[0], 0], self.prior_)
        require(same, "the root's transition must be its prior")

    # ---- questions ---------------------------------------------------------------------------

    @property
    def _parameters(self) -> TreeParameters:
        tree = Tree(self.parent_, self.order_)
        return TreeParameters(tree, self.prior_, self.transition_, self.distributions_)

    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,)."""
        within = tuple(within)
        if within:
            return super().log_evidence(evidence, within)
        out = self._parameters.log_likelihood(pack(self.distributions_, evidence))
        for row in np.flatnonzero(np.isnan(out)).tolist():
            out[row] = self.combine(self.terms(evidence[row : row + 1]))[0]
        return out

    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows from their terms: the slow twin of the kernels, in log space."""
        below = list(terms)
        log_prior, log_transition = log_of(self.prior_), log_of(self.transition_)
        for v in self.order_[:0:-1]:
            message = log_sum_exp(below[v][:, None, :] + log_transition[v], axis=2)
            below[self.parent_[v]] = below[self.parent_[v]] + message
        return np.asarray(log_sum_exp(below[self.order_[0]] + log_prior, axis=1))

    def region_masses(self, evidence: Evidence, regions: Sequence[Within]) -> Floats:
        """See :meth:`Density.region_masses`: messages towards the root, and back."""
        below, log_transition = self.terms(evidence), log_of(self.transition_)
        root, message = self.order_[0], {}
        for v in self.order_[:0:-1]:
            message[v] = log_sum_exp(below[v][:, None, :] + log_transition[v], axis=2)
            below[self.parent_[v]] = below[self.parent_[v]] + message[v]
        log_joint = {root: below[root] + log_of(self.prior_)}
        for v in self.order_[1:]:
            with np.errstate(invalid="ignore"):  # -inf - -inf: a state that the evidence excludes
                rest = log_joint[self.parent_[v]] - message[v]
            rest[np.isnan(rest)] = -np.inf
            log_joint[v] = below[v] + log_sum_exp(rest[:, :, None] + log_transition[v], axis=1)
        states = {}
        for v in {region.variable for region in regions}:
            with np.errstate(invalid="ignore"):  # impossible rows
                states[v] = np.exp(log_joint[v] - log_sum_exp(log_joint[v], axis=1)[:, None])
        return self.masses_given_states(states, regions)

    @property
    def state_coordinates(self) -> int:
        """The state of each variable's latent."""
        return len(self.distributions_)

    def draw_states(
        self, evidence: Evidence, uniform: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The states of all latents."""
        packed = pack(self.distributions_, evidence)
        states = self._parameters.posterior_states(packed, uniform)
        return states, (states < 0).any(axis=(1, 2)) | np.isneginf(packed.base)

    def to_circuit(self) -> Circuit:
        """The same density as a circuit of sums, products and distributions."""
        self._check_fitted()
        parameters = self._parameters
        return tree_to_circuit(self, parameters.tree, self.prior_, self.transition_)
