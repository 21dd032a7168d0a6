"""Any smooth and decomposable circuit of sums, products and emissions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, check_chances, check_number, require
from knothole.columns.columns import Columns, Evidence
from knothole.compiled.threads import over_chunks, summed
from knothole.densities.base import EmissionDensity
from knothole.densities.circuit.em import (
    CircuitStatistics,
    emission_statistics,
    expect,
    log_prior_of_weights,
    maximise_weights,
)
from knothole.densities.circuit.json_form import read_circuit, write_circuit
from knothole.densities.circuit.nodes import Structure, draw_emissions, evaluate, read_nodes
from knothole.densities.em import train
from knothole.densities.univariate import start_emission
from knothole.densities.univariate.base import Emission, maximised
from knothole.densities.univariate.table import log_of

# Numbers that a pass may hold for its edges at once: rows are taken in blocks accordingly.
NUMBERS = 2**21
# Rows that each emission takes after at the start.
CENTRES = 3


@dataclass(eq=False, repr=False)
class Circuit(EmissionDensity):
    """A circuit: a directed acyclic graph of weighted sums, products and emissions.

    It must be smooth (all children of a sum are over the same variables) and decomposable (no two
    children of a product share a variable), which is checked on construction; an error names the
    node. Emissions of one variable are kept together: ``emissions_`` has one
    :class:`~knothole.densities.univariate.base.Emission` for each variable, whose state k is the
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

    Emissions of a categorical variable have ``probabilities``, one for each level; those of a
    continuous one ``mean`` and ``sd``. Instead, a variable can have ``"family"`` (one of
    ``knothole.densities.univariate.FAMILIES``), ``"arrays"`` (of all its emissions) and
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

    stored_arrays = ("weights", "objective")

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
        document = read_circuit(text)
        circuit = cls(document.nodes)
        circuit._take_columns(Columns(document.columns))
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
        circuit._take_columns(density.columns_)
        circuit.variables_ = density.variables_
        circuit.indicated_, circuit.target_ = density.indicated_, density.target_
        return circuit._assembled(emissions)

    def to_json(self) -> str:
        """The circuit as text, for :meth:`from_json`."""
        self._check_fitted()
        return write_circuit(self.structure_, self.weights_, self.variables_, self.emissions_)

    def _assembled(self, emissions: tuple[Emission, ...]) -> Self:
        """With the weights of the nodes, these emissions, and the variables that are set."""
        self._bind()
        self.weights_, self.emissions_ = self.structure_.weights, emissions
        self.objective_, self.n_iter_, self.converged_ = np.empty(0), 0, True
        return self

    def _bind(self) -> None:
        """Read the nodes as a circuit over the present variables."""
        names = [variable.name for variable in self.variables_]
        self.structure_ = read_nodes(self.nodes).over(names)

    # ---- learning ----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, columns: Columns | None = None, **options: Any) -> Self:
        """Learn the weights and the emissions; parameters as of :meth:`LatentTree.fit`."""
        if columns is None and self.warm_start and hasattr(self, "columns_"):
            columns = self.columns_
        return super().fit(X, y, columns=columns, **options)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("strength", self.strength)

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        self._bind()
        if not (self.warm_start and hasattr(self, "emissions_")):
            self.weights_ = self.structure_.weights
            self.emissions_ = self._start(evidence, weight, self._rng())

        def step(at: tuple[Floats, tuple[Emission, ...]]) -> tuple[float, Any]:
            self.weights_, self.emissions_ = at
            found = self.expect(evidence, weight)
            objective = found.log_likelihood + self._log_prior()
            self._report(f"objective {objective:.5f}")
            return objective, self._maximised(found)

        begin, rows = (self.weights_, self.emissions_), float(weight.sum())
        run = train(step, begin, self.strength, rows, self._training(self._rng()))
        self._keep(run)
        self.weights_, self.emissions_ = run.parameters
        self.objective_ = run.objective

    def _start(
        self, evidence: Evidence, weight: Floats, rng: np.random.Generator
    ) -> tuple[Emission, ...]:
        """Emissions that take after a few random rows, a row going down one way from the root."""
        overrides = self.families or {}
        sizes = self.emission_states
        rows = rng.choice(np.flatnonzero(weight > 0), CENTRES * max(sizes))
        terms = [np.zeros((1, size)) for size in sizes]
        values = evaluate(self.structure_, log_of(self.weights_), terms)
        ways = np.zeros(len(rows), dtype=np.int64)
        uniform = rng.random((len(rows), self.state_coordinates))
        states = draw_emissions(self.structure_, self.weights_, values, ways, uniform)
        emissions = []
        for v, variable in enumerate(self.variables_):
            x = evidence.points[:, v]
            emission = start_emission(variable, x, weight, sizes[v], overrides.get(variable.name))
            one_hot = np.eye(sizes[v])[states[:, v]]
            emissions.append(
                emission.maximise(emission_statistics(emission, x[rows], one_hot), float(CENTRES))
            )
        return tuple(emissions)

    def expect(self, evidence: Evidence, weight: Floats) -> CircuitStatistics:
        """Expected statistics of rows under the present parameters."""

        def work(start: int, stop: int) -> CircuitStatistics:
            part, own = evidence[start:stop], weight[start:stop]
            return expect(
                self.structure_, self.weights_, self.emissions_, part, self.terms(part), own
            )

        return summed(work, len(weight), (self.drawn_at_once, len(weight)))

    def _maximised(self, found: CircuitStatistics) -> tuple[Floats, tuple[Emission, ...]]:
        weights = maximise_weights(self.structure_, self.weights_, found.through, self.strength)
        return weights, maximised(self.emissions_, found.emissions, self.strength)

    def _log_prior(self) -> float:
        of_weights = log_prior_of_weights(self.structure_, self.weights_, self.strength)
        return of_weights + sum(emission.log_prior(self.strength) for emission in self.emissions_)

    # ---- storage -----------------------------------------------------------------------------

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """With the structure of the nodes."""
        super().restore(header, arrays)
        self._bind()

    @property
    def emission_states(self) -> list[int]:
        """The emission nodes of each variable."""
        return [len(nodes) for nodes in self.structure_.emission_nodes]

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
        """States of emissions: which nodes a draw goes through."""
        n_rows, draws, n_sums = uniform.shape
        rows = np.repeat(np.arange(n_rows), draws)
        values = evaluate(self.structure_, log_of(self.weights_), self.terms(evidence))
        impossible = np.isneginf(values[-1])
        here = ~impossible[rows]
        uniform = uniform.reshape(-1, n_sums)[here]
        states = draw_emissions(self.structure_, self.weights_, values, rows[here], uniform)
        return states.reshape(-1, draws, len(self.emissions_)), impossible
