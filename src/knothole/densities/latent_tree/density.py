"""The hidden Chow-Liu tree: a latent for every variable, tied together by a tree.

Liu and Van den Broeck (2021), "Tractable Regularization of Probabilistic Circuits": learn the
Chow-Liu tree of the variables, put a latent with h states in the place of each variable, and hang
the variable below it. With h = 1 the variables are independent.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from knothole.arrays import Floats, Ints
from knothole.densities.base import EmissionDensity, Within
from knothole.densities.checks import check_names, check_number, check_whole
from knothole.densities.circuit.build import tree_to_circuit
from knothole.densities.circuit.density import Circuit
from knothole.densities.draw import check_possible, fill_holes
from knothole.densities.emissions import start_emission
from knothole.densities.emissions.base import Emission
from knothole.densities.emissions.packed import pack
from knothole.densities.latent_tree import kernels as kernels
from knothole.densities.latent_tree.chow_liu import Tree, chow_liu
from knothole.densities.latent_tree.em import Parameters, log_likelihood, posterior_states
from knothole.densities.latent_tree.training import (
    Fit,
    Task,
    choose,
    independence,
    refined,
    repeated,
    sizes_for,
)
from knothole.densities.mixture.search import choose_families, families_alone
from knothole.densities.mixture.training import Settings, Table
from knothole.tables.columns import Evidence, Kind

# Fewer rows than this cannot spare any to be held out; the prior then has this strength.
TOO_FEW_TO_HOLD_OUT = 20
STRENGTH_OF_FEW = 1.0
# No choice needs more held-out rows than this.
MOST_HELD_OUT = 20_000
# The ranking of edges needs no more rows than this.
ROWS_FOR_STRUCTURE = 20_000


class LatentTree(EmissionDensity):
    """A latent tree: each variable depends on a latent of its own, the latents form a tree.

    Parameters
    ----------
    states : int or "auto"
        States of each latent; "auto" doubles their number as long as held-out log p gains.
    families : mapping from a variable's name to a family, optional
        Families for some variables ("gaussian", "histogram", "integer", ...); the others' are
        chosen from the data.
    strength : float or "auto"
        Weight of the prior in rows, per state: centred on the columns' own distributions for the
        emissions, even for the latents. "auto" follows the held-out log p.
    max_iter : int
        Most rounds of mini-batches (half of them) and full passes of EM.
    tol : float
        Passes stop when the held-out log p gains less than this per row.
    n_init : int
        Starts, of which the best after one round is trained to the end.
    validation_fraction : float
        Part of the rows held out for all choices, 20,000 at most; 0 for none. The last pass is
        made on all rows.
    informative : bool
        Whether p is also over which variables are holes, for data that is not missing at random.
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
    emissions_ : tuple of Emission
        p(x_v | z_v), for each variable.
    strength_ : float
        Weight of the prior at the end.
    held_out_score_ : float
        Mean log p of the held-out rows before the last pass (of all rows, if none were held out).
    n_iter_ : int
        Rounds and passes.
    converged_ : bool

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> first = rng.integers(2, size=1000)
    >>> second = np.where(rng.random(1000) < 0.9, first, 1 - first)
    >>> X = np.column_stack([first, second]).astype(float)
    >>> density = LatentTree(states=4, random_state=0).fit(X)
    >>> drawn = density.complete([[1.0, np.nan]], draws=200)[0, :, 1]
    >>> bool(0.8 < drawn.mean() < 1)
    True
    """

    states_: int
    parent_: NDArray[np.int64]
    order_: NDArray[np.int64]
    prior_: Floats
    transition_: Floats
    strength_: float
    held_out_score_: float
    n_iter_: int
    converged_: bool

    def __init__(
        self,
        states: int | Literal["auto"] = "auto",
        *,
        families: Mapping[str, str] | None = None,
        strength: float | Literal["auto"] = "auto",
        max_iter: int = 60,
        tol: float = 1e-3,
        n_init: int = 1,
        validation_fraction: float = 0.1,
        informative: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.states = states
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
        rows = rng.permutation(np.flatnonzero(weight > 0))
        table = Table(self.variables_, evidence, weight, rows)
        task = self._task(table, self._families(table, seed=int(rng.integers(2**31))))
        sizes = sizes_for(len(task.train)) if self.states == "auto" else [int(self.states)]
        fit = choose(task, sizes, rng)
        if fit is None:
            fit = self._independent(task, table, n_states=sizes[0] if len(sizes) == 1 else 1)
        else:
            fit = refined(task, fit)
        self._keep(fit)
        if not fit.converged:
            warnings.warn(
                f"EM stopped after max_iter={self.max_iter} rounds while it was still gaining more "
                f"than tol={self.tol} per row; raise one of them.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _task(self, table: Table, families: Mapping[str, str]) -> Task:
        rows = table.order
        n_held = min(round(self.validation_fraction * len(rows)), MOST_HELD_OUT)
        strength = None if self.strength == "auto" else float(self.strength)
        if len(rows) < TOO_FEW_TO_HOLD_OUT or n_held == 0:
            train = held = rows
            strength = STRENGTH_OF_FEW if strength is None else strength
        else:
            held, train = rows[:n_held], rows[n_held:]

        def task_on(train: Ints, held: Ints, seen: Ints) -> Task:
            emissions = self._emissions(table, families, seen)
            return Task(
                packed=pack(emissions, table.evidence),
                weight=table.weight,
                train=train,
                held=held,
                tree=self._tree(table, seen[:ROWS_FOR_STRUCTURE]),
                emissions=emissions,
                strength=strength,
                max_iter=self.max_iter,
                tol=self.tol,
                n_init=self.n_init,
                report=self._report,
                anew=lambda train, held: task_on(train, held, seen=train),
            )

        return task_on(train, held, seen=rows)

    def _independent(self, task: Task, table: Table, n_states: int) -> Fit:
        """Independent variables, each with the family that fits it alone, from all rows."""
        rows = table.order
        emissions = self._emissions(table, families_alone(table) | dict(self.families or {}), rows)
        alone = replace(
            task, emissions=emissions, packed=pack(emissions, table.evidence), train=rows, held=rows
        )
        fit = independence(alone)
        return replace(fit, parameters=repeated(fit.parameters, n_states))

    def _emissions(
        self, table: Table, families: Mapping[str, str], rows: Ints
    ) -> tuple[Emission, ...]:
        """Marginals of some rows, with one state."""
        weight = np.zeros(len(table.weight))
        weight[rows] = table.weight[rows]
        return tuple(
            start_emission(
                variable, table.evidence.points[:, v], weight, 1, families.get(variable.name)
            )
            for v, variable in enumerate(self.variables_)
        )

    def _tree(self, table: Table, rows: Ints) -> Tree:
        categorical = [variable.kind is Kind.CATEGORICAL for variable in self.variables_]
        return chow_liu(table.evidence.points[rows], table.weight[rows], categorical)

    def _families(self, table: Table, seed: int) -> dict[str, str]:
        """Families that are named, and those of continuous variables that serve a mixture best."""
        named = dict(self.families or {})
        settings = Settings(
            families=named,
            max_iter=self.max_iter,
            tol=self.tol,
            n_init=1,
            seed=seed,
            may_mask=not self.informative,
            report=self._report,
        )
        return choose_families(table, settings) | named

    def _keep(self, fit: Fit) -> None:
        parameters = fit.parameters
        self.states_ = parameters.n_states
        self.parent_, self.order_ = parameters.tree.parent, parameters.tree.order
        self.prior_, self.transition_ = parameters.prior, parameters.transition
        self.emissions_ = parameters.emissions
        self.strength_ = fit.strength
        self.held_out_score_ = fit.score
        self.n_iter_, self.converged_ = fit.n_iter, fit.converged

    def _check_parameters(self) -> None:
        if self.states != "auto":
            check_whole("states", self.states)
        if self.strength != "auto":
            check_number("strength", self.strength)
        check_whole("max_iter", self.max_iter)
        check_whole("n_init", self.n_init)
        check_number("tol", self.tol)
        check_number("validation_fraction", self.validation_fraction, below=1)
        check_names("families", self.families or {}, self.variables_)

    def _report(self, line: str) -> None:
        if self.verbose:
            print(f"[LatentTree] {line}")

    # ---- storage -----------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """With the tree, its latents, and how training went."""
        header, arrays = super().state()
        header |= {
            "strength": self.strength_,
            "held_out_score": self.held_out_score_,
            "n_iter": self.n_iter_,
            "converged": self.converged_,
        }
        arrays |= {
            "parent": self.parent_,
            "order": self.order_,
            "prior": self.prior_,
            "transition": self.transition_,
        }
        return header, arrays

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """With the tree, its latents, and how training went."""
        super().restore(header, arrays)
        tree = Tree(arrays["parent"], arrays["order"])
        parameters = Parameters(tree, arrays["prior"], arrays["transition"], self.emissions_)
        parameters.check()
        self._keep(
            Fit(
                parameters,
                header["strength"],
                header["held_out_score"],
                header["n_iter"],
                header["converged"],
            )
        )

    # ---- questions ---------------------------------------------------------------------------

    @property
    def _parameters(self) -> Parameters:
        tree = Tree(self.parent_, self.order_)
        return Parameters(tree, self.prior_, self.transition_, self.emissions_)

    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,)."""
        within = tuple(within)
        if within:
            return super().log_evidence(evidence, within)
        out = log_likelihood(self._parameters, pack(self.emissions_, evidence))
        for row in np.flatnonzero(np.isnan(out)).tolist():
            terms = self.terms(evidence[row : row + 1])
            out[row] = self._log_combine(terms)[0]
        return out

    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows from their terms, (rows, states) for each variable."""
        parameters = self._parameters
        model, scratch = parameters.model(), parameters.scratch()
        out = np.empty(len(terms[0]))
        for start in range(0, len(out), kernels.TILE):
            tile = slice(start, min(start + kernels.TILE, len(out)))
            width = tile.stop - start
            scratch.scale[:width] = 0.0
            for v, term in enumerate(terms):
                peak = term[tile].max(axis=1)
                shift = np.where(np.isfinite(peak), peak, 0.0)
                scratch.beta[v, :, :width] = np.exp(term[tile] - shift[:, None]).T
                scratch.scale[:width] += peak
            kernels.upward(model, scratch, width, kernels.LOST, out[tile])
        doubtful = np.isnan(out)
        if doubtful.any():
            out[doubtful] = self._log_combine([term[doubtful] for term in terms])
        return out

    def _log_combine(self, terms: list[Floats]) -> Floats:
        """The slow twin of :meth:`combine`, in log space."""
        below = list(terms)
        with np.errstate(divide="ignore"):
            log_prior, log_transition = np.log(self.prior_), np.log(self.transition_)
        for v in self.order_[:0:-1]:
            message = logsumexp(below[v][:, None, :] + log_transition[v], axis=2)
            below[self.parent_[v]] = below[self.parent_[v]] + message
        return np.asarray(logsumexp(below[self.order_[0]] + log_prior, axis=1))

    def sample_points(self, n: int, rng: np.random.Generator) -> Floats:
        """Draws of all variables, (n, variables)."""
        nothing = Evidence(np.full((1, len(self.emissions_)), np.nan))
        return np.asarray(self.draw_points(nothing, rng.random((1, n, self.coordinates)))[0])

    @property
    def coordinates(self) -> int:
        """The state of each variable's latent, then its value."""
        return 2 * len(self.emissions_)

    def draw_points(self, evidence: Evidence, uniform: Floats) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        n_variables = len(self.emissions_)
        packed = pack(self.emissions_, evidence)
        states = posterior_states(self._parameters, packed, uniform[:, :, :n_variables])
        check_possible((states < 0).any(axis=(1, 2)) | np.isneginf(packed.base))
        return fill_holes(self.emissions_, evidence, states, uniform[:, :, n_variables:])

    def to_circuit(self) -> Circuit:
        """The same density as a circuit of sums, products and emissions."""
        self._check_fitted()
        parameters = self._parameters
        return tree_to_circuit(self, parameters.tree, self.prior_, self.transition_)
