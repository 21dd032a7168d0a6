"""Expectation and maximisation for a circuit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, check_chances, check_number, require
from knothole.columns.columns import Columns, Evidence
from knothole.densities.base import LatentDensity
from knothole.densities.circuit.nodes import (
    Structure,
    draw_leaves,
    evaluate,
    flows,
    read_circuit,
    read_nodes,
    write_circuit,
)
from knothole.densities.em import Expected, train
from knothole.densities.latent_tree.chow_liu import Tree
from knothole.densities.univariate.base import Statistics, Univariate, log_of, maximised
from knothole.densities.univariate.families import start_distribution
from knothole.densities.univariate.packed import expected_levels
from knothole.threads import over_chunks, summed


def distribution_statistics(distribution: Univariate, x: Floats, share: Floats) -> Statistics:
    """A distribution's statistics from values and their shares of its states, (rows, states)."""
    encoded = distribution.encode(x)
    seen = encoded.code >= 0
    z, share = encoded.z[seen], share[seen]
    count = np.zeros((distribution.n_codes, distribution.n_states))
    np.add.at(count, encoded.code[seen], share)
    return Statistics(count, z @ share, z**2 @ share)


def expect(
    structure: Structure,
    weights: Floats,
    distributions: Sequence[Univariate],
    evidence: Evidence,
    terms: Sequence[Floats],
    weight: Floats,
) -> Expected:
    """Statistics of rows, given their terms."""
    log_weights = log_of(weights)
    values = evaluate(structure, log_weights, terms)
    flow, through = flows(structure, log_weights, values, weight)
    shares = [flow[nodes].T for nodes in structure.leaf_nodes]
    statistics = [
        distribution_statistics(distribution, evidence.points[:, v], shares[v])
        for v, distribution in enumerate(distributions)
    ]
    for v, rows, allowed in evidence.restricted():
        own = statistics[v]
        count = own.count + expected_levels(distributions[v], allowed, shares[v][rows])
        statistics[v] = Statistics(count, own.first, own.second)
    return Expected(float(weight @ values[-1]), (through,), tuple(statistics))


def maximise_weights(
    structure: Structure, weights: Floats, through: Floats, strength: float
) -> Floats:
    """Maximum a posteriori weights: in each sum, ``strength`` further rows spread evenly."""
    out = weights.copy()
    for own in structure.sums.values():
        counts = through[own] + strength / (own.stop - own.start)
        # A sum that no row passes through, and no prior: its weights stay.
        if counts.sum() > 0:
            out[own] = counts / counts.sum()
    return out


def log_prior_of_weights(structure: Structure, weights: Floats, strength: float) -> float:
    """Log Dirichlet density of the weights, up to a constant."""
    if strength == 0:
        return 0.0
    return strength * sum(float(np.log(weights[own]).mean()) for own in structure.sums.values())


# Numbers that a pass may hold for its edges at once: rows are taken in blocks accordingly.
NUMBERS = 2**21
# Rows that each distribution takes after at the start.
CENTRES = 3


@dataclass(eq=False, repr=False)
class Circuit(LatentDensity):
    """A circuit: a directed acyclic graph of weighted sums, products and distributions.

    It must be smooth (all children of a sum are over the same variables) and decomposable (no two
    children of a product share a variable), which is checked on construction; an error names the
    node. Distributions of one variable are kept together: ``distributions_`` has one
    :class:`~knothole.densities.univariate.base.Univariate` for each variable, whose state k is the
    k-th distribution node of that variable, in the order of the nodes.

    Parameters
    ----------
    nodes : list of mappings
        Every node after its children, the root last. A child is a position in the list.

        - ``{"leaf": name}``: a distribution of the variable with that name;
        - ``{"product": [child, ...]}``;
        - ``{"sum": [child, ...], "weights": [w, ...]}``; weights are even if not given.
    families : mapping from a variable's name to a family, optional
        Families for some variables; the others' are chosen from the data.
    strength : float
        Weight of the prior in rows, per distribution and per sum: centred on the columns' own
        distributions for the distributions, even for the weights.
    max_iter : int
        Most passes of EM.
    tol : float
        Passes stop when the log likelihood gains less than this per row.
    warm_start : bool
        Whether ``fit`` goes on from what there is (a circuit from JSON, or fitted before), with
        its columns, instead of starting anew.
    random_state : int, RandomState or None
        Seed of the start and of draws.
    verbose : bool
        Whether to print progress.

    Attributes
    ----------
    structure_ : Structure
        The nodes, checked and in layers.
    weights_ : float64 (edges,)
        Weights of all sums, one after the other.
    distributions_ : tuple of Univariate
    objective_ : float64 (passes,)
        Log likelihood plus log prior, before each step.
    n_iter_ : int
    converged_ : bool

    Notes
    -----
    :meth:`from_json` reads circuits that were learned elsewhere::

        {
          "format": "knothole circuit",
          "version": 1,
          "variables": [
            {"name": "rain", "kind": "categorical", "levels": ["no", "yes"]},
            {"name": "degrees", "kind": "continuous"}
          ],
          "nodes": [
            {"leaf": "rain", "probabilities": [0.9, 0.1]},
            {"leaf": "degrees", "mean": 25.0, "sd": 4.0},
            {"product": [0, 1]},
            {"leaf": "rain", "probabilities": [0.3, 0.7]},
            {"leaf": "degrees", "mean": 12.0, "sd": 3.0},
            {"product": [3, 4]},
            {"sum": [2, 5], "weights": [0.6, 0.4]}
          ]
        }

    Distributions of a categorical variable have ``probabilities``, one for each level; those of a
    continuous one ``mean`` and ``sd``. Instead, a variable can have ``"family"`` (one of
    ``knothole.densities.univariate.families.FAMILIES``), ``"arrays"`` (of all its leaves) and
    ``"nullable"``: that is what :meth:`to_json` writes, and nothing is lost. In JSON every variable
    is a column of its own; one-hot groups and targets keep their roles with
    :meth:`save`.

    Examples
    --------
    >>> nodes = [{"leaf": "x0"}, {"leaf": "x1"}, {"product": [0, 1]},
    ...          {"leaf": "x0"}, {"leaf": "x1"}, {"product": [3, 4]}, {"sum": [2, 5]}]
    >>> rng = np.random.default_rng(0)
    >>> X = rng.choice([-2.0, 2.0], size=(500, 1)) + 0.1 * rng.normal(size=(500, 2))
    >>> circuit = Circuit(nodes, random_state=0).fit(X)
    >>> drawn = circuit.complete([[2.0, np.nan]], draws=50)[0, :, 1]
    >>> bool(abs(np.median(drawn) - 2) < 0.1)
    True
    """

    stored_arrays = ("weights",)

    nodes: Sequence[Mapping[str, Any]]
    _: KW_ONLY
    strength: float = 1.0
    max_iter: int = 100
    warm_start: bool = False
    # There is one start, and nothing is held out.
    n_init: int = field(default=1, init=False)
    validation_fraction: float = field(default=0.0, init=False)

    structure_: Structure = field(init=False)
    weights_: Floats = field(init=False)

    def __post_init__(self) -> None:
        read_nodes(self.nodes)

    # ---- other ways to make one --------------------------------------------------------------

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A circuit with all its parameters, from text; see the notes of the class."""
        nodes, columns, distributions = read_circuit(text)
        circuit = cls(nodes)
        circuit._take_columns(Columns(columns))
        circuit.variables_ = circuit.columns_.variables
        circuit.target_ = False
        return circuit._assembled(distributions)

    @classmethod
    def of(
        cls,
        density: LatentDensity,
        nodes: Sequence[Mapping[str, Any]],
        distributions: tuple[Univariate, ...],
    ) -> Self:
        """A circuit over the variables of another density, with the weights of ``nodes``."""
        circuit = cls(nodes, random_state=density.random_state)
        circuit._take_columns(density.columns_)
        circuit.variables_ = density.variables_
        circuit.target_ = density.target_
        return circuit._assembled(distributions)

    def to_json(self) -> str:
        """The circuit as text, for :meth:`from_json`."""
        self._check_fitted()
        return write_circuit(self.structure_, self.weights_, self.variables_, self.distributions_)

    def _assembled(self, distributions: tuple[Univariate, ...]) -> Self:
        """With the weights of the nodes, these distributions, and the variables that are set."""
        self._bind()
        self.weights_, self.distributions_ = self.structure_.weights, distributions
        self.objective_, self.n_iter_, self.converged_ = np.empty(0), 0, True
        self.strength_ = float(self.strength)
        return self

    def _bind(self) -> None:
        """Read the nodes as a circuit over the present variables."""
        names = [variable.name for variable in self.variables_]
        self.structure_ = read_nodes(self.nodes).over(names)

    # ---- learning ----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, columns: Columns | None = None, **options: Any) -> Self:
        """Learn the weights and the distributions; parameters as of :meth:`LatentTree.fit`."""
        if columns is None and self.warm_start and hasattr(self, "columns_"):
            columns = self.columns_
        return super().fit(X, y, columns=columns, **options)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("strength", self.strength)

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        self._bind()
        if not (self.warm_start and hasattr(self, "distributions_")):
            self.weights_ = self.structure_.weights
            self.distributions_ = self._start(evidence, weight, self._rng())

        def step(at: tuple[Floats, tuple[Univariate, ...]]) -> tuple[float, Any]:
            self.weights_, self.distributions_ = at
            found = self.expect(evidence, weight)
            objective = found.log_likelihood + self._log_prior()
            self._report(f"objective {objective:.5f}")
            return objective, self._maximised(found)

        begin, rows = (self.weights_, self.distributions_), float(weight.sum())
        run = train(step, begin, self.strength, rows, self._training(self._rng()))
        self._adopt(run)
        self.weights_, self.distributions_ = run.parameters

    def _start(
        self, evidence: Evidence, weight: Floats, rng: np.random.Generator
    ) -> tuple[Univariate, ...]:
        """Distributions of a few random rows, each going down one way from the root."""
        overrides = self.families or {}
        sizes = self.distribution_states
        rows = rng.choice(np.flatnonzero(weight > 0), CENTRES * max(sizes))
        terms = [np.zeros((1, size)) for size in sizes]
        values = evaluate(self.structure_, log_of(self.weights_), terms)
        ways = np.zeros(len(rows), dtype=np.int64)
        uniform = rng.random((len(rows), self.state_coordinates))
        states = draw_leaves(self.structure_, self.weights_, values, ways, uniform)
        distributions = []
        for v, variable in enumerate(self.variables_):
            x = evidence.points[:, v]
            distribution = start_distribution(
                variable, x, weight, sizes[v], overrides.get(variable.name)
            )
            one_hot = np.eye(sizes[v])[states[:, v]]
            distributions.append(
                distribution.maximise(
                    distribution_statistics(distribution, x[rows], one_hot), float(CENTRES)
                )
            )
        return tuple(distributions)

    def expect(self, evidence: Evidence, weight: Floats) -> Expected:
        """Expected statistics of rows under the present parameters."""

        def work(start: int, stop: int) -> Expected:
            part, own = evidence[start:stop], weight[start:stop]
            return expect(
                self.structure_, self.weights_, self.distributions_, part, self.terms(part), own
            )

        return summed(work, len(weight), (self.drawn_at_once, len(weight)))

    def _maximised(self, found: Expected) -> tuple[Floats, tuple[Univariate, ...]]:
        weights = maximise_weights(self.structure_, self.weights_, found.latents[0], self.strength)
        return weights, maximised(self.distributions_, found.distributions, self.strength)

    def _log_prior(self) -> float:
        of_weights = log_prior_of_weights(self.structure_, self.weights_, self.strength)
        return of_weights + sum(one.log_prior(self.strength) for one in self.distributions_)

    # ---- storage -----------------------------------------------------------------------------

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """With the structure of the nodes."""
        super().restore(header, arrays)
        self._bind()

    @property
    def distribution_states(self) -> list[int]:
        """The distribution nodes of each variable."""
        return [len(nodes) for nodes in self.structure_.leaf_nodes]

    def check(self) -> None:
        """With the weights of each sum."""
        wanted = self.structure_.weights.shape
        require(self.weights_.shape == wanted, f"weights do not fit the nodes: {wanted} needed")
        check_array("weights", self.weights_, wanted)
        for own in self.structure_.sums.values():
            check_chances("weights of a sum", self.weights_[own], (None,))
        super().check()

    # ---- questions ---------------------------------------------------------------------------

    @property
    def drawn_at_once(self) -> int:
        """Rows that a pass takes at once."""
        return int(np.clip(NUMBERS // self.structure_.n_edges, 16, 1024))

    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows from their terms, (rows, states) for each variable."""
        log_weights = log_of(self.weights_)

        def work(start: int, stop: int) -> Floats:
            part = [term[start:stop] for term in terms]
            return np.asarray(evaluate(self.structure_, log_weights, part)[-1])

        return np.concatenate(over_chunks(work, len(terms[0]), self.drawn_at_once))

    @property
    def state_coordinates(self) -> int:
        """The child of each sum."""
        return len(self.structure_.sums)

    def draw_states(
        self, evidence: Evidence, uniform: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """States of distributions: which nodes a draw goes through."""
        n_rows, draws, n_sums = uniform.shape
        rows = np.repeat(np.arange(n_rows), draws)
        values = evaluate(self.structure_, log_of(self.weights_), self.terms(evidence))
        impossible = np.isneginf(values[-1])
        here = ~impossible[rows]
        uniform = uniform.reshape(-1, n_sums)[here]
        states = draw_leaves(self.structure_, self.weights_, values, rows[here], uniform)
        return states.reshape(-1, draws, len(self.distributions_)), impossible


def mixture_to_circuit(density: LatentDensity, weights: Floats) -> Circuit:
    """A mixture of products: a sum of products of distributions.

    ``density`` has a distribution with as many states as there are ``weights`` for each variable.
    """
    names = [variable.name for variable in density.variables_]
    nodes: list[dict[str, Any]] = []
    components = []
    for _ in weights:
        distributions = [_add(nodes, {"leaf": name}) for name in names]
        components.append(_product(nodes, distributions))
    _add(nodes, {"sum": components, "weights": weights.tolist()})
    return Circuit.of(density, nodes, density.distributions_)


def tree_to_circuit(
    density: LatentDensity, tree: Tree, prior: Floats, transition: Floats
) -> Circuit:
    """A latent tree.

    For each state of a variable's latent, a product of the variable's distribution and of a sum for
    each child, over the states of the child's latent.
    """
    names = [variable.name for variable in density.variables_]
    nodes: list[dict[str, Any]] = []
    below: list[list[list[int]]] = [[[] for _ in prior] for _ in names]
    for v in tree.order[::-1].tolist():
        states = [
            _product(nodes, [_add(nodes, {"leaf": names[v]}), *children]) for children in below[v]
        ]
        if tree.parent[v] < 0:
            _add(nodes, {"sum": states, "weights": prior.tolist()})
            continue
        for i, weights in enumerate(transition[v].tolist()):
            below[tree.parent[v]][i].append(_add(nodes, {"sum": states, "weights": weights}))
    return Circuit.of(density, nodes, density.distributions_)


def _add(nodes: list[dict[str, Any]], node: dict[str, Any]) -> int:
    nodes.append(node)
    return len(nodes) - 1


def _product(nodes: list[dict[str, Any]], children: Sequence[int]) -> int:
    """A product; of one child, the child itself."""
    return children[0] if len(children) == 1 else _add(nodes, {"product": list(children)})
