"""The base of all densities: what each can do, and the code that they share.

``fit`` takes tables with missing values and never imputes. ``score_samples`` is log p of the
observed part, with missing values marginalised, so a row without any value scores 0. ``complete``
draws missing values from p(x_m | x_o); ``log_mass`` confines some variables to regions. A density
is over *variables* (:class:`~knothole.columns.columns.Variable`): those of the columns and, if
there is one, a target as the last.
"""

from __future__ import annotations

import os
import pickle
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.checks import check_array, check_number, check_type, check_whole, require
from knothole.columns.columns import (
    Columns,
    Evidence,
    Kind,
    Variable,
    column_from,
    columns_from,
    describe_column,
    describe_columns,
)
from knothole.columns.evidence import NOT_RECORDED, with_nan
from knothole.columns.read import read_table, row_weights
from knothole.densities import storage
from knothole.densities.cache import learn_once
from knothole.densities.em import Parameters, Run, Training, WeightedRows, expected, train
from knothole.densities.estimator import Estimator
from knothole.densities.univariate.base import Univariate, draw_allowed, log_of
from knothole.densities.univariate.families import (
    check_distributions,
    distribution_arrays,
    distributions_from,
)
from knothole.errors import ImpossibleRow, InvalidInput, NotFitted
from knothole.out_of_core.partitions import (
    Partition,
    Partitions,
    Sample,
    partitions_of,
    sample,
    weights_of,
)
from knothole.progress import tell
from knothole.sobol import WORD, Points, row_keys
from knothole.threads import over_chunks

D = TypeVar("D", bound="Density")


def check_names(parameter: str, names: Iterable[str], variables: Iterable[Variable]) -> None:
    """Refuse names that are not names of variables."""
    known = [variable.name for variable in variables]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"{parameter}: no variable {unknown[0]!r}; there are {known}.")


def of_same_size(density: D, fitted: Density) -> D:
    """A new density like ``density``, with the size and prior found by ``fitted`` if left open."""
    from sklearn.base import clone

    fresh: D = clone(density)
    for name, size in (
        ("n_components", "weights_"),
        ("n_states", "states_"),
        ("strength", "strength_"),
        ("normal_scores", "normal_scores_"),
    ):
        # A density that was loaded from a file has no attribute normal_scores_.
        if fresh.get_params().get(name) == "auto" and hasattr(fitted, size):
            found = getattr(fitted, size)
            fresh.set_params(**{name: found if np.isscalar(found) else len(found)})
    return fresh


# The most rows whose (rows, variables, states) terms are in memory at once.
BLOCK = 1024
# Rescaled uniform numbers are kept away from 0 and 1, where quantiles are infinite.
LEAST_LEFT = 2.0**-33
# The most uniform numbers in memory at once.
UNIFORM = 1 << 22


@dataclass(frozen=True)
class Within:
    """A region of one variable: ``[low, high)``, or a set of codes of a categorical variable.

    ``not_recorded`` includes that state; for a categorical variable it is one of the codes.
    """

    variable: int
    low: float = -np.inf
    high: float = np.inf
    codes: tuple[int, ...] | None = None
    not_recorded: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class Density(Estimator):
    """Base of all densities.

    A subclass implements ``_fit``, ``log_evidence``, ``coordinate_variables`` and ``draw``,
    all in terms of variables; tables and targets are handled here.

    Attributes
    ----------
    columns_ : Columns
        Description of the training table.
    variables_ : tuple of Variable
        What p is over: the variables of the columns and, last, the target.
    target_ : bool
        Whether the last variable is a target.
    """

    #: Whether :meth:`draw` accepts evidence with hypotheses (see :func:`draw`).
    draws_hypotheses: ClassVar[bool] = False
    #: Attributes (without the trailing underscore) that are arrays and stored in files.
    stored_arrays: ClassVar[tuple[str, ...]] = ()

    strength: float | Literal["auto"] = "auto"
    max_iter: int = 200
    tol: float = 1e-3
    n_init: int = 1
    validation_fraction: float = 0.1
    random_state: Any = None
    verbose: bool = False

    columns_: Columns = field(init=False)
    variables_: tuple[Variable, ...] = field(init=False)
    target_: bool = field(init=False)
    objective_: Floats = field(init=False)
    n_iter_: int = field(init=False)
    converged_: bool = field(init=False)
    strength_: float = field(init=False)

    # ---- to be implemented -------------------------------------------------------------------

    @abstractmethod
    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        """Learn from evidence; ``self.variables_`` is set."""

    @abstractmethod
    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,)."""

    @property
    @abstractmethod
    def coordinate_variables(self) -> NDArray[np.int64]:
        """The variable that each uniform number of a draw is for; -1 for latent states."""

    @abstractmethod
    def draw(self, evidence: Evidence, uniform: Floats) -> Floats:
        """Draws of missing values from their conditional, (rows, draws, variables).

        ``uniform`` (rows or 1, draws, coordinates) has the numbers that are turned into draws; a
        single set is used for all rows. The draws of a variable are adjacent in memory, as the
        numbers of a coordinate should be. Entries of observed variables are meaningless.
        """

    def region_masses(self, evidence: Evidence, regions: Sequence[Within]) -> Floats:
        """p(region | evidence) of each region by itself, (rows, regions).

        Of regions of missing variables: for others, and for impossible rows, it may be any number.
        """
        log_p = self.log_evidence(evidence)
        out = np.empty((len(log_p), len(regions)))
        with np.errstate(invalid="ignore"):
            for i, region in enumerate(regions):
                out[:, i] = np.exp(self.log_evidence(evidence, [region]) - log_p)
        return out

    def sample_points(self, n: int, rng: np.random.Generator) -> Floats:
        """Draws of all variables, (n, variables)."""
        nothing = Evidence(np.full((1, len(self.variables_)), np.nan))
        uniform = rng.random((1, n, len(self.coordinate_variables)))
        return np.asarray(self.draw(nothing, uniform)[0])

    def complete_points(self, evidence: Evidence, draws: int, seed: int) -> Floats:
        """Points with every missing value drawn from its conditional, (rows, draws, variables).

        A row's draws depend only on its evidence and the seed.
        """
        return drawn_rows(self, evidence, draws, seed)

    @property
    def drawn_at_once(self) -> int:
        """Number of rows whose states are drawn at once."""
        return BLOCK

    # ---- the public face ---------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        target: Any = None,
        columns: Columns | None = None,
        missing_mask: NDArray[np.bool_] | None = None,
    ) -> Self:
        """Learn p from a table with missing values.

        Parameters
        ----------
        X : table
            Anything :class:`~knothole.columns.columns.Columns` takes. Also a Dask DataFrame or
            Array, or the path of CSV or Parquet files (a directory, a pattern), which is read some
            rows at a time: the size and the prior are chosen on 200,000 rows, drawn evenly from
            all; EM then goes on with all rows, where they are.
        y : ignored
            For scikit-learn's sake.
        sample_weight : array (rows,), optional
            Weights of the rows. Of Dask where ``X`` is, the name of a column where it is a path.
        target : array (rows,), optional
            An additional variable to learn beside X; marginalised where it is not given.
        columns : Columns, optional
            Description of the columns; inferred from ``X`` by default.
        missing_mask : bool array (rows, columns), optional
            True where a NaN is an unknown value; a NaN elsewhere is "not recorded", in a column
            described as nullable. By default every NaN of a column that is not nullable.
        """
        parts = partitions_of(X, None, sample_weight, columns)
        if parts is not None:
            refuse_beside_parts(target=target, missing_mask=missing_mask)
            return fit_parts(self, parts, columns)
        X = read_table(X) if columns is None else columns.read(X)
        described = Columns.infer(X) if columns is None else columns
        return self.fit_matrix(
            described.matrix(X),
            described,
            sample_weight=sample_weight,
            target=target,
            missing_mask=missing_mask,
        )

    def fit_matrix(
        self,
        matrix: Floats,
        columns: Columns,
        *,
        sample_weight: Any = None,
        target: Any = None,
        missing_mask: NDArray[np.bool_] | None = None,
    ) -> Self:
        """:meth:`fit` on a table already encoded by ``columns.matrix``."""
        if len(matrix) == 0:
            raise InvalidInput("X has no rows: a density needs at least one.")
        self._take_columns(columns)
        evidence = self.columns_.evidence(matrix, missing_mask)
        variables = self.columns_.variables
        _check_observed(evidence, variables)
        self.target_ = target is not None
        targets = (describe_target(target),) if target is not None else ()
        self.variables_ = variables + targets
        weight = row_weights(sample_weight, len(matrix))
        self._check_parameters()
        learn_once(self, self._fit, self.extended(evidence, target), weight)
        self._warn_of_early_stop()
        return self

    def score_samples(self, X: Any, target: Any = None) -> Floats:
        """Log density of the observed part of every row (with its target, if given)."""
        return self.log_evidence(self.evidence(X, target=target))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log density of the rows."""
        return float(self.score_samples(X).mean())

    def log_mass(self, X: Any, within: Mapping[str, Any]) -> Floats:
        """Log p(observed part of X, and each named variable in its region).

        Parameters
        ----------
        X : table
            Rows; variables named in ``within`` must be missing there.
        within : mapping
            By variable name: ``(low, high)`` for values in ``[low, high)``, or, for a categorical
            variable, a collection of levels.
        """
        regions = [self._region(name, region) for name, region in within.items()]
        evidence = self.evidence(X)
        for region in regions:
            if not np.isnan(evidence.points[:, region.variable]).all():
                raise InvalidInput(
                    f"within: {self.variables_[region.variable].name!r} is observed in some rows; "
                    f"only missing values can be confined to a region."
                )
        return self.log_evidence(evidence, regions)

    def sample(self, n: int = 1) -> Floats:
        """Rows drawn from p, as a matrix of the columns (categories as codes)."""
        self._check_fitted()
        points = self.sample_points(n, self._rng())
        return self.columns_.decode(points[:, : len(self.columns_.variables)])

    def complete(self, X: Any, draws: int = 1) -> Floats:
        """Draws from p(x_m | x_o): (rows, draws, columns); observed entries are unchanged.

        Draws depend only on a row's values and on ``random_state``: equal rows have equal draws,
        wherever they are in the table.
        """
        seed = int(self._rng().integers(2**63))
        points = self.complete_points(self.evidence(X), draws, seed)
        points = points[:, :, : len(self.columns_.variables)]
        flat = self.columns_.decode(points.reshape(-1, points.shape[2]))
        return flat.reshape(points.shape[0], draws, -1)

    # ---- out of core -------------------------------------------------------------------------

    def encoded(self, evidence: Evidence, weight: Floats) -> Any:
        """Rows and their weights in the form for EM."""
        raise InvalidInput(
            f"a {type(self).__name__} learns from tables in memory only; use Mixture, "
            f"GaussianMixture or LatentTree, or fit a sample of the rows."
        )

    @property
    def _parameters(self) -> Parameters:
        """The parameters in the form for EM."""
        raise NotImplementedError

    def _prior(self, rows: Partitions) -> Any:
        """The prior of a step, given all chunks of :meth:`encoded` rows."""
        return self.strength_

    def _adopt(self, run: Run[Any]) -> None:
        """Set the fitted attributes from a result of training."""
        self.strength_, self.converged_ = float(run.strength), bool(run.converged)
        self.objective_, self.n_iter_ = run.objective, len(run.objective)
        if self.n_iter_:
            self._report(f"{self.n_iter_} steps of EM, objective {run.objective[-1]:.6g}")

    # ---- storage -----------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted density to one file, without pickle."""
        storage.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a density of this class (or a subclass) that :meth:`save` wrote."""
        density = storage.load(path)
        if not isinstance(density, cls):
            raise InvalidInput(
                f"{os.fspath(path)!r} holds a {type(density).__name__}, not a {cls.__name__}; "
                f"load it with {type(density).__name__}.load."
            )
        return density

    # ---- shared plumbing ---------------------------------------------------------------------

    def evidence(
        self, X: Any, missing_mask: NDArray[np.bool_] | None = None, target: Any = None
    ) -> Evidence:
        """Evidence of a table about all variables of this density."""
        self._check_fitted()
        own = self.columns_.evidence(self.columns_.matrix(X), missing_mask)
        return self.extended(own, target)

    def extended(self, own: Evidence, target: Any) -> Evidence:
        """Add the target, if there is one, to evidence about the columns' variables."""
        if not self.target_:
            if target is not None:
                raise InvalidInput("target: this density was fitted without one.")
            return own
        rows, variable = len(own.points), self.variables_[-1]
        values = np.full(rows, np.nan) if target is None else encode_target(variable, target)
        return replace(own, points=np.hstack([own.points, values[:, None]]))

    def _region(self, name: str, region: Any) -> Within:
        check_names("within", [name], self.variables_)
        index = [variable.name for variable in self.variables_].index(name)
        variable = self.variables_[index]
        if variable.kind is not Kind.CATEGORICAL:
            low, high = region
            return Within(index, float(low), float(high))
        unknown = [level for level in region if level not in variable.levels]
        if unknown:
            raise InvalidInput(f"within: {name!r} has no level {unknown[0]!r}.")
        return Within(index, codes=tuple(variable.levels.index(level) for level in region))

    def _check_fitted(self) -> None:
        if not hasattr(self, "variables_"):
            raise NotFitted(f"this {type(self).__name__} is not fitted yet; call fit(X) first.")

    def _take_columns(self, columns: Columns) -> None:
        """Set the columns, and scikit-learn's attributes for them."""
        self.columns_, self.n_features_in_ = columns, len(columns)
        if columns.named:
            self.feature_names_in_ = np.array(columns.names, dtype=object)

    def _check_parameters(self) -> None:
        check_number("strength", self.strength, also=["auto"])
        check_whole("max_iter", self.max_iter)
        check_number("tol", self.tol)
        check_whole("n_init", self.n_init)
        check_number("validation_fraction", self.validation_fraction, below=1)
        check_names("families", getattr(self, "families", None) or {}, self.variables_)

    def _training(self, rng: np.random.Generator) -> Training:
        """How to train, with a seed drawn from the generator."""
        return Training(
            max_iter=self.max_iter,
            tol=self.tol,
            n_init=self.n_init,
            fraction=self.validation_fraction,
            may_mask=True,
            seed=int(rng.integers(2**31)),
            report=self._report,
        )

    def _report(self, line: str) -> None:
        tell(f"[{type(self).__name__}] {line}", self.verbose)

    def _prepared(self, evidence: Evidence, weight: Floats) -> tuple[WeightedRows, Training]:
        """The rows with positive weight, in random order, and how to train on them."""
        rng = self._rng()
        order = rng.permutation(np.flatnonzero(weight > 0))
        return WeightedRows(self.variables_, evidence, weight, order), self._training(rng)

    @property
    def _given_strength(self) -> float | None:
        """The strength of the prior; None if it is to be chosen."""
        return None if self.strength == "auto" else float(self.strength)

    def _warn_of_early_stop(self) -> None:
        from sklearn.exceptions import ConvergenceWarning

        if not self.converged_:
            warnings.warn(
                f"EM stopped after max_iter={self.max_iter} steps while it was still gaining more "
                f"than tol={self.tol} per row; raise one of them.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _rng(self) -> np.random.Generator:
        """A generator seeded by ``random_state``."""
        from sklearn.utils import check_random_state

        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return np.random.default_rng(seed)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Everything learned: a dictionary for JSON, and arrays.

        A subclass extends ``super().state()``.
        """
        self._check_fitted()
        extra = self.variables_[len(self.columns_.variables) :]
        header = {
            "columns": describe_columns(self.columns_),
            "extra": [describe_column(variable) for variable in extra],
            "target": self.target_,
            "converged": self.converged_,
            "strength": self.strength_,
        }
        names = ("objective", *self.stored_arrays)
        return header, {name: getattr(self, f"{name}_") for name in names}

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Set what :meth:`state` returned. A subclass calls ``super().restore`` first."""
        self._take_columns(columns_from(header["columns"]))
        extra = tuple(
            Variable(column.name, column.kind, column.levels)
            for column in map(column_from, header["extra"])
        )
        self.variables_ = self.columns_.variables + extra
        for name in ("target", "converged", "strength"):
            setattr(self, f"{name}_", header[name])
        for name in ("objective", *self.stored_arrays):
            setattr(self, f"{name}_", arrays[name])
        self.n_iter_ = len(self.objective_)

    def check(self) -> None:
        """Refuse the parts of a file that do not make a density; called after :meth:`restore`.

        A subclass calls ``super().check()``. Kernels rely on all of these checks.
        """
        self._check_parameters()
        check_type("verbose", self.verbose, bool)
        seed = self.random_state
        require(
            seed is None or (type(seed) is int and 0 <= seed < 2**32), f"random_state: {seed!r}"
        )
        check_type("target", self.target_, bool)
        own = len(self.columns_.variables)
        require(len(self.variables_) == own + self.target_, "extra must be a target, if anything")
        require(own > 0, "a density must have a variable")
        check_type("converged", self.converged_, bool)
        check_type("strength", self.strength_, float, int)
        check_array("objective", self.objective_, (None,))


@dataclass(eq=False, repr=False, kw_only=True)
class LatentDensity(Density):
    """A density with a univariate distribution for each variable, given a latent state.

    Attributes
    ----------
    distributions_ : tuple of Univariate
        One for each variable, in the order of ``variables_``.
    """

    families: Mapping[str, str] | None = None

    distributions_: tuple[Univariate, ...] = field(init=False)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Also the families and arrays of the distributions."""
        header, arrays = super().state()
        header["families"] = [one.family for one in self.distributions_]
        return header, arrays | distribution_arrays(self.distributions_)

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Also the distributions."""
        super().restore(header, arrays)
        self.distributions_ = distributions_from(header["families"], arrays)

    @property
    @abstractmethod
    def distribution_states(self) -> list[int]:
        """The number of states that each variable's distribution must have."""

    def check(self) -> None:
        """Also the distributions."""
        super().check()
        check_distributions(self.variables_, self.distributions_, self.distribution_states)

    @abstractmethod
    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows, from terms for each variable.

        ``terms[v]`` is log p(what is known of variable v | its latent's state), (rows, states).
        """

    @property
    @abstractmethod
    def state_coordinates(self) -> int:
        """Number of uniform numbers needed for the latent states of a draw."""

    @abstractmethod
    def draw_states(
        self, evidence: Evidence, uniform: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The states of all variables' distributions, (rows, draws, variables), given each row.

        ``uniform`` (rows, draws, state_coordinates) has the numbers that are turned into states.
        Also returns which rows (rows,) are impossible, so that nothing can be said about their
        missing values.
        """

    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,)."""
        within = tuple(within)
        rows = len(evidence.points)
        blocks = (slice(start, start + BLOCK) for start in range(0, rows, BLOCK))
        parts = [self.combine(self.terms(evidence[block], within)) for block in blocks]
        return np.concatenate(parts) if parts else np.empty(0)

    def masses_given_states(
        self, states: Mapping[int, Floats], regions: Sequence[Within]
    ) -> Floats:
        """p(region | evidence), from p(state of its variable | evidence) (rows, states)."""
        columns = [
            # Not a matrix product, whose last bits depend on the number of rows.
            sum(part * one for part, one in zip(states[v].T, mass.tolist(), strict=True))
            for v, mass in ((each.variable, np.exp(self.log_region(each))) for each in regions)
        ]
        return np.stack(columns, axis=1)

    def terms(self, evidence: Evidence, within: Iterable[Within] = ()) -> list[Floats]:
        """Log likelihood of what is known of each variable, for each state of its latent."""
        points = evidence.points
        terms = [
            distribution.log_density(points[:, v])
            for v, distribution in enumerate(self.distributions_)
        ]
        for v, rows, allowed in evidence.restricted():
            terms[v][rows] = log_of(self.distributions_[v].set_mass(allowed))
        for v, rows, odds in evidence.missing_with_odds():
            terms[v][rows] = self.distributions_[v].log_missing(odds)
        for region in within:
            terms[region.variable] = terms[region.variable] + self.log_region(region)
        return terms

    def log_region(self, region: Within) -> Floats:
        """Log mass of a region in every state, (states,)."""
        distribution = self.distributions_[region.variable]
        if region.codes is None:
            flag = np.array([region.not_recorded])
            mass = distribution.mass(np.array([region.low]), np.array([region.high]), flag)
        else:
            allowed = np.zeros((1, len(self.variables_[region.variable].levels)), dtype=np.bool_)
            allowed[0, list(region.codes)] = True
            mass = distribution.set_mass(allowed)
        return log_of(mass[0])

    @property
    def coordinate_variables(self) -> NDArray[np.int64]:
        """The coordinates of states, then one for each variable."""
        variables = np.arange(len(self.distributions_))
        return np.concatenate([np.full(self.state_coordinates, -1), variables])

    def complete_points(self, evidence: Evidence, draws: int, seed: int) -> Floats:
        """See :meth:`Density.complete_points`; rows of probability 0 are refused."""
        _refuse_impossible(np.isneginf(self.log_evidence(evidence)))
        return super().complete_points(evidence, draws, seed)

    def draw(self, evidence: Evidence, uniform: Floats) -> Floats:
        """See :meth:`Density.draw`.

        In impossible rows, values that no state allows count as missing; if the others still
        contradict each other, all of the row's values do. A warning is issued.
        """
        points, n = evidence.points, self.state_coordinates
        uniform = np.broadcast_to(uniform, (len(points), *uniform.shape[1:]))
        states, impossible = self.draw_states(evidence, uniform[:, :, :n])
        if impossible.any():
            warn_impossible(np.where(impossible, -np.inf, 0.0))
            out = np.empty((len(points), points.shape[1], uniform.shape[1])).transpose(0, 2, 1)
            for rows, part in self._forgetting(evidence, impossible):
                out[rows] = self.draw(part, uniform[rows])
            return out
        missing = [np.flatnonzero(np.isnan(column)) for column in points.T]
        out = self.draw_given(missing, states, uniform[:, :, n:])
        for v, rows, allowed in evidence.restricted():
            table, sets = self.distributions_[v].form.table, np.repeat(allowed, len(out[0]), axis=0)
            state, own = states[rows, :, v].reshape(-1), uniform[rows, :, n + v].reshape(-1)
            out[rows, :, v] = draw_allowed(table, state, sets, own).reshape(len(rows), -1)
        for v, rows, odds in evidence.missing_with_odds():
            state, own = states[rows, :, v], uniform[rows, :, n + v]
            out[rows, :, v] = self._draw_with_odds(v, odds[:, None], state, own)
        return out

    def _draw_with_odds(
        self, v: int, odds: Floats, state: NDArray[np.int64], uniform: Floats
    ) -> Floats:
        """Draws of a nullable variable, (rows, draws), whose missing values have odds.

        Given the odds, nothing was recorded with some probability; otherwise a draw ignores the
        odds. A value that is known to have been recorded is drawn from the distribution given that.
        """
        distribution, variable = self.distributions_[v], self.variables_[v]
        more = np.maximum(odds - 1, 0) * distribution.not_recorded()[state]
        share = more / (1 + more)
        left = np.clip((uniform - share) / (1 - share), LEAST_LEFT, 1 - LEAST_LEFT)
        drawn = distribution.invert(state.ravel(), left.ravel()).reshape(state.shape)
        recorded = np.flatnonzero(odds < 1)
        for value in np.unique(odds[recorded]):
            some = recorded[odds[recorded, 0] == value]
            given = distribution.given_missing(float(value))
            own = given.invert(state[some].ravel(), uniform[some].ravel())
            drawn[some] = own.reshape(len(some), -1)
        point = len(variable.levels) - 1 if variable.levels else NOT_RECORDED
        return np.where(uniform < share, point, drawn)

    def draw_given(
        self, missing: Sequence[NDArray[np.intp]], states: NDArray[np.int64], uniform: Floats
    ) -> Floats:
        """Draws of each variable's missing rows, given the states of its distribution.

        ``states``, ``uniform`` and the result are (rows, draws, variables).
        """
        out = np.empty((len(states), len(missing), states.shape[1]))
        for v, rows in enumerate(missing):
            if len(rows):
                state, own = states[rows, :, v].reshape(-1), uniform[rows, :, v].reshape(-1)
                out[rows, v] = self.distributions_[v].invert(state, own).reshape(len(rows), -1)
        return out.transpose(0, 2, 1)

    def _forgetting(
        self, evidence: Evidence, impossible: Mask
    ) -> Iterator[tuple[NDArray[np.intp], Evidence]]:
        """Row numbers, and evidence with so much left out that no row is impossible."""
        points = evidence.points.copy()
        for v, terms in enumerate(self.terms(evidence)):
            points[np.isneginf(terms).all(axis=1) & impossible, v] = np.nan
        known = replace(evidence, points=points)
        lost = np.isneginf(self.log_evidence(known))
        nothing = Evidence(np.full((int(lost.sum()), points.shape[1]), np.nan))
        rows = np.flatnonzero(~lost)
        for own, part in ((rows, known[rows]), (np.flatnonzero(lost), nothing)):
            if len(own):
                yield own, part


def drawn_rows(density: Any, evidence: Evidence, draws: int, seed: int) -> Floats:
    """Rows with their missing values drawn, (rows, draws, variables), each row's points its own."""
    coordinates = len(density.coordinate_variables) + (evidence.hypotheses is not None)
    points = Points(seed, coordinates)
    out = np.empty((len(evidence.points), draws, evidence.points.shape[1]))
    at_once = getattr(density, "drawn_at_once", BLOCK)
    parts = list(evidence.parts(max(1, min(at_once, UNIFORM // (WORD * coordinates)))))

    def work(start: int, stop: int) -> None:
        for rows, part in parts[start:stop]:
            keys, known = row_keys(part.points, part.allowed), part.points[:, None]
            for word, first in enumerate(range(0, draws, WORD)):
                uniform = points.uniform(range(word, word + 1), keys)[:, : draws - first]
                drawn = draw(density, part, uniform)
                out[rows, first : first + WORD] = np.where(np.isnan(known), drawn, known)

    over_chunks(work, len(parts), 1)
    return out


def draw(density: Any, evidence: Evidence, uniform: Floats) -> Floats:
    """:meth:`Density.draw`, also for evidence with hypotheses.

    The last uniform number of a draw, which the density does not use, chooses a hypothesis.
    """
    if evidence.hypotheses is None or density.draws_hypotheses:
        return np.asarray(density.draw(evidence, uniform))
    row, _, cases = evidence.cases()
    chance, draws = evidence.hypotheses.chance, uniform.shape[1]
    first, n_cases = np.searchsorted(row, np.arange(len(chance))), np.count_nonzero(chance, axis=1)
    out = np.empty((len(chance), evidence.points.shape[1], draws)).transpose(0, 2, 1)
    alone, several = np.flatnonzero(n_cases == 1), np.flatnonzero(n_cases > 1)
    numbers = uniform if len(uniform) == 1 else uniform[alone]
    # Variables that are not recorded under the hypothesis.
    asked = np.flatnonzero(evidence.hypotheses.unknown.any(axis=0))
    out[alone] = _with_known(density, cases[first[alone]], numbers, asked)
    if not len(several):
        return out
    uniform = uniform if len(uniform) == 1 else uniform[several]
    passed = uniform[:, :, -1:] >= np.cumsum(chance[several], axis=1)[:, None]
    number = np.minimum(passed.sum(axis=2), n_cases[several, None] - 1)
    # Draws case by case; cases with similar numbers of draws are drawn together.
    case = (first[several, None] + number).ravel()
    order = np.argsort(case, kind="stable")
    count = np.bincount(case, minlength=len(row))
    start, most = np.cumsum(count) - count, np.maximum(count - 1, 0)
    for size in np.unique(_size_of(count[count > 0])).tolist():
        some = np.flatnonzero((_size_of(count) == size) & (count > 0))
        place = order[start[some, None] + np.minimum(np.arange(size), most[some, None])]
        numbers = uniform[0 if len(uniform) == 1 else place // draws, place % draws]
        drawn = _with_known(density, cases[some], numbers, asked)
        out[several[place // draws], place % draws] = drawn
    return out


def _with_known(
    density: Any, evidence: Evidence, uniform: Floats, variables: NDArray[np.intp]
) -> Floats:
    """Draws of missing values; for some variables, observed values are filled in too."""
    drawn = np.asarray(density.draw(evidence, uniform))
    for v in variables.tolist():
        rows = np.flatnonzero(~np.isnan(evidence.points[:, v]))
        drawn[rows, :, v] = evidence.points[rows, v][:, None]
    return drawn


def _size_of(count: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next power of two from a number of draws, at least 8."""
    return np.maximum(8, 2 ** np.ceil(np.log2(np.maximum(count, 1))).astype(np.int64))


def warn_impossible(log_p: Floats) -> None:
    """Warn if observed values are impossible under the density."""
    n = int(np.isneginf(log_p).sum())
    if n:
        warnings.warn(
            f"{n} row(s) have values that the density holds impossible; their missing values are "
            f"answered as if those values were unknown. Fit the density on data that has such "
            f"values.",
            ImpossibleRow,
            stacklevel=2,
        )


def _refuse_impossible(impossible: NDArray[np.bool_]) -> None:
    """Refuse to draw missing values of impossible rows."""
    if impossible.any():
        raise InvalidInput(
            f"X: row {int(np.argmax(impossible))} has probability 0 under this density, so its "
            f"missing values have no distribution."
        )


def describe_target(target: Any) -> Variable:
    """A target as a variable: categorical if its values are labels, otherwise continuous."""
    values = np.asarray(target)
    if values.dtype.kind in "fiu":
        return Variable("target", Kind.CONTINUOUS, (), ())
    levels: tuple[Hashable, ...] = tuple(np.unique(values[values == values]).tolist())
    return Variable("target", Kind.CATEGORICAL, levels, ())


def encode_target(variable: Variable, target: Any) -> Floats:
    """A target as numbers, or as codes of its labels."""
    values = np.asarray(target)
    if variable.kind is not Kind.CATEGORICAL:
        return np.asarray(values, dtype=np.float64)
    codes = {level: float(code) for code, level in enumerate(variable.levels)}
    unknown = [value for value in values.tolist() if value == value and value not in codes]
    if unknown:
        raise InvalidInput(f"target: {unknown[0]!r} is not one of {list(codes)}.")
    return np.array([codes.get(value, np.nan) for value in values.tolist()])


def _check_observed(evidence: Evidence, variables: tuple[Variable, ...]) -> None:
    """Refuse variables that were never observed or hardly vary."""
    partly = {v for v, _, _ in evidence.restricted()}
    for v, variable in enumerate(variables):
        values = evidence.points[:, v]
        if v in partly:
            continue
        if not np.isnan(values).all():
            finite = values[np.isfinite(values)]
            if len(finite) and 0 < np.ptp(finite) < np.finfo(np.float64).tiny:
                raise InvalidInput(
                    f"column {variable.name!r} has values that differ by {np.ptp(finite)} at most, "
                    f"less than float64 can compute with. Multiply it, or leave it out."
                )
            continue
        raise InvalidInput(
            f"column {variable.name!r} has no observed value in X, so nothing can be learned "
            f"about it. Leave it out, or, where NaN is a value of its own there, declare it "
            f"nullable (Columns.with_nullable)."
        )


# Rows that are encoded to estimate their size.
WEIGHED = 1000


def refuse_beside_parts(**given: Any) -> None:
    """Refuse options that are only possible for tables in memory."""
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{name} must be None for a table in parts; got {type(value).__name__}. Leave it "
                f"out, or pass a sample of the rows in memory."
            )


def fit_parts(density: D, parts: Partitions, columns: Columns | None) -> D:
    """Fit a density to all rows of a table in parts."""
    drawn = sample(parts, int(density._rng().integers(2**31)))
    drawn.tell(bool(density.verbose))
    described = Columns.infer(drawn.shown) if columns is None else columns
    density.fit_matrix(described.matrix(drawn.table), described, sample_weight=drawn.weight)
    return density if drawn.whole else go_on(density, drawn)


def go_on(density: D, drawn: Sample, sentinel: Floats | None = None) -> D:
    """Continue EM on all rows of a table in partitions; ``sentinel`` is the model's."""
    from threadpoolctl import threadpool_limits

    parts = drawn.parts
    missing_mask = Evidence(np.full((WEIGHED, len(density.columns_.variables)), np.nan))
    some = density.encoded(density.extended(missing_mask, None), np.ones(WEIGHED))
    size = drawn.total * len(pickle.dumps(some)) / WEIGHED
    rows = parts.made(encode, density, sentinel, size=size)
    training, prior = density._training(density._rng()), density._prior(rows)

    def step(parameters: Any) -> tuple[float, Any]:
        objective, after = parameters.stepped(rows.summed(expected, parameters), prior)
        return objective, after

    with threadpool_limits(1, "blas"):  # our own threads run around it
        run = train(step, density._parameters, density.strength_, drawn.total_weight, training)
    density._adopt(run)
    density._warn_of_early_stop()
    return density


def encode(part: Partition, density: Density, sentinel: Floats | None) -> Any:
    """The rows of a partition in the form for EM; None if there are none."""
    table = part[1]
    if not len(table):
        return None
    columns = density.columns_
    matrix = columns.matrix(table)
    if sentinel is not None:
        matrix = with_nan(matrix, sentinel, columns)
    return density.encoded(density.extended(columns.evidence(matrix), None), weights_of(part))


class UserDensity:
    """Makes an object that fills in matrices of columns usable for Monte Carlo expectations.

    ``density.complete(X, draws)`` is called with a float64 matrix (rows, columns), with codes of
    categories and NaN for missing values, and returns (rows, draws, columns) with every missing
    value filled in; in nullable columns NaN means "not recorded".
    """

    def __init__(self, density: Any, columns: Columns) -> None:
        self.density = density
        self.columns_ = columns
        self.variables_ = columns.variables

    def __repr__(self) -> str:
        return repr(self.density)

    def extended(self, own: Evidence, target: Any) -> Evidence:
        """The evidence itself: there is no target."""
        if target is not None:
            raise InvalidInput("target: a density of your own has none.")
        return own

    @property
    def coordinate_variables(self) -> NDArray[np.int64]:
        """One unused coordinate: the object makes its own random numbers."""
        return np.array([-1])

    def draw(self, evidence: Evidence, uniform: Floats) -> Floats:
        """One draw of the missing values for each uniform number, (rows, draws, variables)."""
        matrix, draws = self._matrix(evidence), uniform.shape[1]
        drawn = np.asarray(self.density.complete(matrix, draws), dtype=np.float64)
        shape = (len(matrix), draws, len(self.columns_))
        if drawn.shape != shape:
            raise InvalidInput(
                f"density: {type(self.density).__name__}.complete must return {shape}, (rows, "
                f"draws, columns); got {drawn.shape}."
            )
        points = self.columns_.evidence(drawn.reshape(-1, shape[2])).points
        points = points.reshape(len(matrix), draws, -1)
        left = np.isnan(points).any(axis=(0, 1))
        if left.any():
            name = self.variables_[int(np.argmax(left))].name
            raise InvalidInput(
                f"density: {type(self.density).__name__}.complete left missing values in "
                f"{name!r}; every draw must be complete."
            )
        return points

    def _matrix(self, evidence: Evidence) -> Floats:
        """Rows of columns; in a partly observed one-hot group, excluded levels are 0."""
        matrix = self.columns_.decode(evidence.points)
        for v, rows, allowed in evidence.restricted():
            dummies = np.array(self.variables_[v].columns)
            matrix[np.ix_(rows, dummies)] = np.where(allowed[:, : len(dummies)], np.nan, 0.0)
        return matrix
