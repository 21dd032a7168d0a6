"""Any smooth and decomposable circuit of sums, products and emissions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from knothole.arrays import Floats
from knothole.compiled.threads import over_blocks
from knothole.densities.base import EmissionDensity
from knothole.densities.checks import check_names, check_number, check_whole
from knothole.densities.circuit.em import (
    Expected,
    emission_statistics,
    expect,
    log_prior_of_weights,
    maximise_weights,
)
from knothole.densities.circuit.json_form import read_circuit, write_circuit
from knothole.densities.circuit.nodes import Structure, draw_emissions, evaluate, read_nodes
from knothole.densities.draw import check_possible, fill_holes
from knothole.densities.emissions import start_emission
from knothole.densities.emissions.base import Emission
from knothole.densities.emissions.table import log_of
from knothole.tables.columns import Columns, Evidence

# Numbers that a pass may hold for its edges at once: rows are taken in blocks accordingly.
NUMBERS = 2**21
# Rows that each emission takes after at the start.
CENTRES = 3


class Circuit(EmissionDensity):
    """A circuit: a directed acyclic graph of weighted sums, products and emissions.

    It must be smooth (all children of a sum are over the same variables) and decomposable (no two
    children of a product share a variable), which is checked on construction; an error names the
    node. Emissions of one variable are kept together: ``emissions_`` has one
    :class:`~knothole.densities.emissions.base.Emission` for each variable, whose state k is the
    k-th emission node of that variable, in the order of the nodes.

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
        Weight of the prior in rows, per emission and per sum: centred on the columns' own
        distributions for the emissions, even for the weights.
    max_iter : int
        Most passes of EM.
    tol : float
        Passes stop when the log likelihood gains less than this per row.
    warm_start : bool
        Whether ``fit`` goes on from what there is (a circuit from JSON, or fitted before), with
        its columns, instead of starting anew.
    informative : bool
        Whether p is also over which variables are holes.
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
    emissions_ : tuple of Emission
    objective_ : float64 (n_iter_,)
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

    Emissions of a categorical variable have ``probabilities``, one for each level; those of a
    continuous one ``mean`` and ``sd``. Instead, a variable can have ``"family"`` (one of
    ``knothole.densities.emissions.FAMILIES``), ``"arrays"`` (of all its emissions) and
    ``"nullable"``: that is what :meth:`to_json` writes, and nothing is lost. In JSON every variable
    is a column of its own; one-hot blocks, indicators and targets keep their roles with
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

    structure_: Structure
    weights_: Floats
    objective_: Floats
    n_iter_: int
    converged_: bool

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        *,
        families: Mapping[str, str] | None = None,
        strength: float = 1.0,
        max_iter: int = 100,
        tol: float = 1e-3,
        warm_start: bool = False,
        informative: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.nodes = nodes
        self.families = families
        self.strength = strength
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.informative = informative
        self.random_state = random_state
        self.verbose = verbose
        read_nodes(nodes)

    # ---- other ways to make one --------------------------------------------------------------

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A circuit with all its parameters, from text; see the notes of the class."""
        document = read_circuit(text)
        circuit = cls(document.nodes)
        circuit.columns_ = Columns(document.columns)
        circuit.variables_ = circuit.columns_.variables
        circuit.indicated_, circuit.target_ = np.arange(0), False
        return circuit._assembled(document.emissions)

    @classmethod
    def of(
        cls,
        density: EmissionDensity,
        nodes: Sequence[Mapping[str, Any]],
        emissions: tuple[Emission, ...],
    ) -> Self:
        """A circuit over the variables of another density, with the weights of ``nodes``."""
        circuit = cls(nodes, informative=density.informative, random_state=density.random_state)
        circuit.columns_, circuit.variables_ = density.columns_, density.variables_
        circuit.indicated_, circuit.target_ = density.indicated_, density.target_
        return circuit._assembled(emissions)

    def to_json(self) -> str:
        """The circuit as text, for :meth:`from_json`."""
        self._check_fitted()
        return write_circuit(self.structure_, self.weights_, self.variables_, self.emissions_)

    def _assembled(self, emissions: tuple[Emission, ...]) -> Self:
        """With the weights of the nodes, these emissions, and the variables that are set."""
        self._bind()
        self.n_features_in_ = len(self.columns_)
        if self.columns_.named:
            self.feature_names_in_ = np.array(self.columns_.names, dtype=object)
        self.weights_, self.emissions_ = self.structure_.weights, emissions
        self.objective_, self.n_iter_, self.converged_ = np.empty(0), 0, True
        return self

    def _bind(self) -> None:
        """Read the nodes as a circuit over the present variables."""
        names = [variable.name for variable in self.variables_]
        self.structure_ = read_nodes(self.nodes).over(names)

    # ---- learning ----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, columns: Columns | None = None, **options: Any) -> Self:
        """Learn the weights and the emissions; parameters as of :meth:`Density.fit`."""
        if columns is None and self.warm_start and hasattr(self, "columns_"):
            columns = self.columns_
        return super().fit(X, y, columns=columns, **options)

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        self._check_parameters()
        self._bind()
        if not (self.warm_start and hasattr(self, "emissions_")):
            self.weights_ = self.structure_.weights
            self.emissions_ = self._start(evidence, weight, self._rng())
        trace: list[float] = []
        self.converged_ = False
        while len(trace) < self.max_iter and not self.converged_:
            expected = self.expect(evidence, weight)
            trace.append(expected.log_likelihood + self._log_prior())
            gain = trace[-1] - trace[-2] if len(trace) > 1 else np.inf
            self.converged_ = bool(gain < self.tol * weight.sum())
            if self.verbose:
                print(f"[Circuit] {len(trace)}: objective {trace[-1]:.5f}")
            if not self.converged_:
                self._maximise(expected)
        self.objective_, self.n_iter_ = np.array(trace), len(trace)
        if not self.converged_:
            warnings.warn(
                f"EM stopped after max_iter={self.max_iter} passes while it was still gaining more "
                f"than tol={self.tol} per row; raise one of them.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _check_parameters(self) -> None:
        check_number("strength", self.strength)
        check_whole("max_iter", self.max_iter)
        check_number("tol", self.tol)
        check_names("families", self.families or {}, self.variables_)

    def _start(
        self, evidence: Evidence, weight: Floats, rng: np.random.Generator
    ) -> tuple[Emission, ...]:
        """Emissions that take after a few random rows, a row going down one way from the root."""
        overrides = self.families or {}
        sizes = [len(nodes) for nodes in self.structure_.emission_nodes]
        rows = rng.choice(np.flatnonzero(weight > 0), CENTRES * max(sizes))
        terms = [np.zeros((1, size)) for size in sizes]
        uniform = rng.random((len(rows), len(self.structure_.first_edge)))
        states = self._states(terms, np.zeros(len(rows), dtype=np.int64), uniform)
        emissions = []
        for v, variable in enumerate(self.variables_):
            x = evidence.points[:, v]
            emission = start_emission(variable, x, weight, sizes[v], overrides.get(variable.name))
            one_hot = np.eye(sizes[v])[states[:, v]]
            emissions.append(
                emission.maximise(emission_statistics(emission, x[rows], one_hot), float(CENTRES))
            )
        return tuple(emissions)

    def expect(self, evidence: Evidence, weight: Floats) -> Expected:
        """Expected statistics of rows under the present parameters."""

        def work(start: int, stop: int) -> Expected:
            part, own = evidence[start:stop], weight[start:stop]
            return expect(
                self.structure_, self.weights_, self.emissions_, part, self.terms(part), own
            )

        parts: list[Expected] = over_blocks(work, len(weight), self._block)
        return reduce(Expected.__add__, parts)

    def _maximise(self, expected: Expected) -> None:
        self.weights_ = maximise_weights(
            self.structure_, self.weights_, expected.through, self.strength
        )
        pairs = zip(self.emissions_, expected.emissions, strict=True)
        self.emissions_ = tuple(emission.maximise(own, self.strength) for emission, own in pairs)

    def _log_prior(self) -> float:
        of_weights = log_prior_of_weights(self.structure_, self.weights_, self.strength)
        return of_weights + sum(emission.log_prior(self.strength) for emission in self.emissions_)

    # ---- storage -----------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """With the weights, and how training went."""
        header, arrays = super().state()
        header["converged"] = self.converged_
        arrays |= {"weights": self.weights_, "objective": self.objective_}
        return header, arrays

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """With the weights, and how training went."""
        super().restore(header, arrays)
        self._assembled(self.emissions_)
        sizes = [len(nodes) for nodes in self.structure_.emission_nodes]
        if arrays["weights"].shape != self.weights_.shape:
            raise ValueError("weights do not fit the nodes.")
        if [emission.n_states for emission in self.emissions_] != sizes:
            raise ValueError("emissions do not fit the nodes.")
        self.weights_ = arrays["weights"]
        self.objective_, self.converged_ = arrays["objective"], header["converged"]
        self.n_iter_ = len(self.objective_)

    # ---- questions ---------------------------------------------------------------------------

    @property
    def _block(self) -> int:
        """Rows of a block."""
        return int(np.clip(NUMBERS // self.structure_.n_edges, 16, 1024))

    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows from their terms, (rows, states) for each variable."""
        log_weights = log_of(self.weights_)

        def work(start: int, stop: int) -> Floats:
            part = [term[start:stop] for term in terms]
            return np.asarray(evaluate(self.structure_, log_weights, part)[-1])

        return np.concatenate(over_blocks(work, len(terms[0]), self._block))

    def sample_points(self, n: int, rng: np.random.Generator) -> Floats:
        """Draws of all variables, (n, variables)."""
        nothing = Evidence(np.full((1, len(self.emissions_)), np.nan))
        return np.asarray(self.draw_points(nothing, rng.random((1, n, self.coordinates)))[0])

    @property
    def coordinates(self) -> int:
        """The child of each sum, then each variable's value."""
        return len(self.structure_.first_edge) + len(self.emissions_)

    def draw_points(self, evidence: Evidence, uniform: Floats) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        n_rows, draws, _ = uniform.shape
        n_sums = len(self.structure_.first_edge)
        rows = np.repeat(np.arange(n_rows), draws)
        states = self._states(
            self.terms(evidence), rows, uniform[:, :, :n_sums].reshape(-1, n_sums)
        )
        shaped = states.reshape(n_rows, draws, -1)
        return fill_holes(self.emissions_, evidence, shaped, uniform[:, :, n_sums:])

    def _states(
        self, terms: Sequence[Floats], rows: NDArray[np.int64], uniform: Floats
    ) -> NDArray[np.int64]:
        """States of emissions given the terms of each of ``rows``, (draws, variables)."""
        values = evaluate(self.structure_, log_of(self.weights_), terms)
        check_possible(np.isneginf(values[-1]))
        return draw_emissions(self.structure_, self.weights_, values, rows, uniform)
