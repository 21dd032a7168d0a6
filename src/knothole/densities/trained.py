"""What every density has as something that is trained: parameters, how training went, storage."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from knothole.arrays import Floats
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
from knothole.densities.em import Run, Training
from knothole.densities.rows import WeightedRows
from knothole.errors import InvalidInput, NotFitted
from knothole.progress import tell

D = TypeVar("D", bound="Trained")


@dataclass(eq=False, repr=False, kw_only=True)
class Trained(BaseEstimator):
    """Parameters that all densities share, and what a file keeps of one.

    A subclass declares what it has besides: further parameters, which its ``_check_parameters``
    checks, and the attributes that a file keeps.

    Attributes
    ----------
    objective_ : float64 (passes,)
        The objective before each step of EM.
    n_iter_ : int
        Steps of EM.
    converged_ : bool
        Whether training stopped before it ran out of steps.
    strength_ : float
        Weight of the prior, in rows.
    """

    #: Attributes (less the underscore at their end) that a file keeps: plain values, and arrays.
    stored_values: ClassVar[tuple[str, ...]] = ("converged",)
    stored_arrays: ClassVar[tuple[str, ...]] = ()

    strength: float | Literal["auto"] = "auto"
    max_iter: int = 200
    tol: float = 1e-3
    n_init: int = 1
    validation_fraction: float = 0.1
    informative: bool = False
    random_state: Any = None
    verbose: bool = False

    columns_: Columns = field(init=False)
    variables_: tuple[Variable, ...] = field(init=False)
    indicated_: NDArray[np.int64] = field(init=False)
    target_: bool = field(init=False)
    objective_: Floats = field(init=False)
    n_iter_: int = field(init=False)
    converged_: bool = field(init=False)
    strength_: float = field(init=False)

    def _check_fitted(self) -> None:
        if not hasattr(self, "variables_"):
            raise NotFitted(f"this {type(self).__name__} is not fitted yet; call fit(X) first.")

    def beginning_with(self, fitted: Any) -> Self:
        """Let the next training start from a density that knows some of its rows, where it can."""
        self._begun = fitted
        return self

    def _beginning(self) -> Self | None:
        """That density, once, if it has the same variables."""
        begun = self.__dict__.pop("_begun", None)
        alike = type(begun) is type(self) and begun.variables_ == self.variables_
        return begun if alike else None

    def _take_columns(self, columns: Columns) -> None:
        """Remember the columns, for scikit-learn as well."""
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
        """How to train, with a seed of its own."""
        return Training(
            max_iter=self.max_iter,
            tol=self.tol,
            n_init=self.n_init,
            fraction=self.validation_fraction,
            may_mask=not self.informative,
            seed=int(rng.integers(2**31)),
            report=self._report,
        )

    def _report(self, line: str) -> None:
        tell(f"[{type(self).__name__}] {line}", self.verbose)

    def _prepared(self, evidence: Evidence, weight: Floats) -> tuple[WeightedRows, Training]:
        """The rows that have weight, in random order, and how to train on them."""
        rng = self._rng()
        order = rng.permutation(np.flatnonzero(weight > 0))
        return WeightedRows(self.variables_, evidence, weight, order), self._training(rng)

    @property
    def _given_strength(self) -> float | None:
        """Of the prior; None where it is to be chosen."""
        return None if self.strength == "auto" else float(self.strength)

    def _keep(self, run: Run[Any]) -> None:
        """Remember how training went."""
        self.strength_, self.converged_ = float(run.strength), bool(run.converged)
        self.n_iter_ = len(run.objective)

    def _warn_of_early_stop(self) -> None:
        if not self.converged_:
            warnings.warn(
                f"EM stopped after max_iter={self.max_iter} steps while it was still gaining more "
                f"than tol={self.tol} per row; raise one of them.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _rng(self) -> np.random.Generator:
        """A generator that ``random_state`` determines."""
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return np.random.default_rng(seed)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Everything that was learned: a dictionary for JSON, and arrays.

        A subclass adds what it has to ``super().state()``.
        """
        self._check_fitted()
        extra = self.variables_[len(self.columns_.variables) :]
        header = {
            "columns": describe_columns(self.columns_),
            "extra": [describe_column(variable) for variable in extra],
            "target": self.target_,
        }
        header |= {name: getattr(self, f"{name}_") for name in self.stored_values}
        arrays = {name: getattr(self, f"{name}_") for name in self.stored_arrays}
        return header, {"indicated": self.indicated_, **arrays}

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take on what :meth:`state` gave. A subclass calls ``super().restore`` first."""
        self._take_columns(columns_from(header["columns"]))
        extra = tuple(
            Variable(column.name, column.kind, column.levels)
            for column in map(column_from, header["extra"])
        )
        self.variables_ = self.columns_.variables + extra
        self.target_ = header["target"]
        self.indicated_ = arrays["indicated"]
        for name in self.stored_values:
            setattr(self, f"{name}_", header[name])
        for name in self.stored_arrays:
            setattr(self, f"{name}_", arrays[name])
        if "objective" in self.stored_arrays:
            self.n_iter_ = len(self.objective_)

    def check(self) -> None:
        """Refuse what a file holds where its parts do not make a density; after :meth:`restore`.

        A subclass adds what it has to ``super().check()``. Kernels rely on all of it.
        """
        self._check_parameters()
        for name in ("informative", "verbose"):
            check_type(name, getattr(self, name), bool)
        seed = self.random_state
        require(
            seed is None or (type(seed) is int and 0 <= seed < 2**32), f"random_state: {seed!r}"
        )
        check_type("target", self.target_, bool)
        check_array("indicated", self.indicated_, (None,), "i")
        own = len(self.columns_.variables)
        within = (self.indicated_ >= 0).all() and (self.indicated_ < own).all()
        rising = (np.diff(self.indicated_) > 0).all()
        require(within and rising, "indicated must be variables of the columns, each once")
        extra, indicators = self.variables_[own:], len(self.indicated_)
        require(len(extra) == indicators + self.target_, "extra must be indicators and a target")
        yes_or_no = all(
            v.kind is Kind.CATEGORICAL and len(v.levels) == 2 for v in extra[:indicators]
        )
        require(yes_or_no, "an indicator must have two levels")
        require(own > 0, "a density must have a variable")
        for name in self.stored_values:
            types = {"converged": (bool,), "n_iter": (int,)}.get(name, (float, int))
            check_type(name, getattr(self, f"{name}_"), *types)
        if "objective" in self.stored_arrays:
            check_array("objective", self.objective_, (None,))


def check_names(parameter: str, names: Iterable[str], variables: Iterable[Variable]) -> None:
    """Refuse names that are no variable's."""
    known = [variable.name for variable in variables]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"{parameter}: no variable {unknown[0]!r}; there are {known}.")


def of_same_size(density: D, fitted: Trained) -> D:
    """A new density like the first, with the size and prior another has found where left open."""
    fresh: D = clone(density)
    for name, size in (
        ("components", "weights_"),
        ("states", "states_"),
        ("strength", "strength_"),
        ("normal_scores", "normal_scores_"),
    ):
        if fresh.get_params().get(name) == "auto":
            found = getattr(fitted, size)
            fresh.set_params(**{name: found if np.isscalar(found) else len(found)})
    return fresh
