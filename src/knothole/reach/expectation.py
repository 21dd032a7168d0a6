"""An ensemble and a density become one thing that answers rows with holes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from scipy import sparse

from knothole.arrays import Floats, Ints, Mask
from knothole.compiled.threads import over_chunks
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.reach.completions.engine import CompletionsEngine
from knothole.reach.engine import Engine, Moments, used_variables
from knothole.reach.registry import EngineMaker, exact_engine, sampler_of
from knothole.tables.columns import Columns
from knothole.tables.evidence import Evidence
from knothole.tables.holes import HoleRule, Holes
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import in_variables

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Expectation:
    """A tree model under a density: expectations given the observed part of rows.

    Made by :meth:`of`. :meth:`evidence` reads tables; all other methods take what it found.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.densities.mixture.density import Factorized
    >>> from knothole.trees.read import read
    >>> X = np.array([[0.0], [1.0]])
    >>> tree = read(DecisionTreeRegressor().fit(X, [0, 8]))
    >>> expectation = Expectation.of(tree, Factorized().fit(X))
    >>> evidence = expectation.evidence([[1.0], [np.nan]])
    >>> expectation.margin(evidence)[0].ravel().round(3).tolist()
    [8.0, 4.0]
    """

    original: Ensemble  # over columns
    ensemble: Ensemble  # over variables
    density: Density
    hole_rule: HoleRule
    tol: float | None
    seed: int
    exact_engine: EngineMaker | None  # None where holes are not integrated exactly
    source: Expectation | None = None  # one with other leaf values, whose tables serve this one too

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        density: Density,
        method: Literal["auto", "exact", "completions"] = "auto",
        tol: float | None = None,
        seed: int = 0,
        integrate: Mask | None = None,
    ) -> Expectation:
        """A model under a density.

        Parameters
        ----------
        ensemble : Ensemble
            What a reader made of the model.
        density : Density
            Fitted on the same columns, described as the model has them
            (:meth:`knothole.tables.columns.Columns.describe`); a column that does not fit is named.
        method : {"auto", "exact", "completions"}
            How holes are integrated. "auto" is exact where the density allows.
        tol : float, optional
            For completions: the standard error of the margin to reach, where 64 draws have a
            larger.
        seed : int
            For completions: where the draws start.
        integrate : bool (columns,), optional
            Columns in which ``holes="auto"`` integrates over NaN, where elsewhere it is the
            model's own value; by default those that are not nullable.
        """
        if method not in ("auto", "exact", "completions"):
            raise InvalidInput(f"method must be 'auto', 'exact' or 'completions'; got {method!r}.")
        exactly = None if method == "completions" else exact_engine(density)
        if exactly is None and method == "exact":
            raise InvalidInput(
                f"method='exact': {type(density).__name__} has no closed form for regions; use "
                f"method='completions', or a Mixture, LatentTree or Circuit."
            )
        rule = HoleRule.of(density.columns_, ensemble.sentinel, integrate)
        own = in_variables(ensemble, density.columns_)
        return cls(ensemble, own, density, rule, tol, seed, exactly)

    def with_values(self, value: Floats) -> Expectation:
        """The same trees with other leaf values (leaves, width), under the same density.

        What is tabulated of the trees and the density serves both.
        """
        return replace(
            self,
            original=self.original.with_values(value),
            ensemble=self.ensemble.with_values(value),
            source=self,
        )

    @property
    def columns(self) -> Columns:
        """The columns that rows have."""
        return self.density.columns_

    @property
    def integrate(self) -> Mask:
        """Columns in which ``holes="auto"`` integrates over every NaN, (columns,)."""
        return self.hole_rule.integrate

    # ---- engines: made when first used; should two threads make one each, they are alike -------

    @property
    def exact(self) -> bool:
        """Whether margins and reach are exact."""
        return self.exact_engine is not None

    @cached_property
    def engine(self) -> Engine:
        """What margins and reach come from."""
        if self.exact_engine is None:
            return self.completions
        if self.source is not None:
            return self.source.engine.with_values(self.ensemble)
        return self.exact_engine(self.ensemble, self.density)

    @cached_property
    def completions(self) -> CompletionsEngine:
        """What answers that are not linear in the leaves come from."""
        if self.source is not None:
            return self.source.completions.with_values(self.ensemble)
        return CompletionsEngine(self.ensemble, sampler_of(self.density, self.seed), self.tol)

    @cached_property
    def _used(self) -> Ints:
        return np.flatnonzero(used_variables(self.ensemble))

    # ---- what rows say --------------------------------------------------------------------------

    def evidence(self, table: Any, holes: Holes = "auto", target: Any = None) -> Evidence:
        """What the rows of a table say about the density's variables.

        Parameters
        ----------
        table : table
            With the density's columns.
        holes : "auto", "all" or bool (rows, columns)
            Which NaN to integrate over; see :mod:`knothole.tables.holes`.
        target : array (rows,), optional
            For a density that was fitted with one.
        """
        return self.evidence_of(self.columns.matrix(table), holes, target)

    def evidence_of(self, matrix: Floats, holes: Holes = "auto", target: Any = None) -> Evidence:
        """:meth:`evidence` of rows that ``columns.matrix`` has encoded."""
        own = self.columns.evidence(*self.hole_rule.read(matrix, holes))
        return self.density.extended(own, target)

    # ---- linear in the leaves ------------------------------------------------------------------

    def margin(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Expected margin (Prop. 1) and its standard error, (rows, outputs) each."""
        mean, error = self._answers(2, self.engine, evidence, self.engine.margin, threads)
        return mean, error

    def reach(self, evidence: Evidence, *, threads: int | None = None) -> sparse.csr_matrix:
        """The reach matrix, sparse (rows, leaves): p(region of leaf, x_o) / p(x_o)."""
        n_leaves = self.ensemble.n_leaves

        def work(part: Evidence, start: int) -> sparse.csr_matrix:
            parts = list(self.engine.entries(part, start))
            row = np.concatenate([part.row for part in parts])
            leaf = np.concatenate([part.leaf for part in parts])
            reach = np.concatenate([part.reach for part in parts])
            matrix = sparse.csr_matrix((reach, (row, leaf)), shape=(len(part.points), n_leaves))
            matrix.eliminate_zeros()
            return matrix

        found = self._by_chunk(self.engine, evidence, work, threads)
        return sparse.csr_matrix(
            sparse.vstack(found, format="csr") if found else (len(evidence.points), n_leaves)
        )

    # ---- beyond ---------------------------------------------------------------------------------

    def moments(
        self,
        evidence: Evidence,
        method: Literal["auto", "exact", "completions"] = "auto",
        *,
        threads: int | None = None,
    ) -> Moments:
        """Mean and variance of the margin given x_o (Lemmas 1 and 2).

        Exactly over all pairs of trees where the density allows and pairs are not too many
        ("auto": at most :data:`EXACT_TREES` trees), otherwise from completions.
        """
        if method == "exact" and not self.exact:
            raise InvalidInput("method='exact': this density has no exact second moments.")
        few = self.ensemble.n_trees <= EXACT_TREES
        exactly = method == "exact" or (method == "auto" and self.exact and few)
        engine = self.engine if exactly else self.completions

        def of_holes(part: Evidence, start: int) -> tuple[Floats, ...]:
            found = engine.moments(part, start)
            return found.mean, found.variance, found.error, found.variance_error

        return Moments(*self._answers(4, engine, evidence, of_holes, threads))

    def predict(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Expected prediction E[link(F)] and its standard error, (rows, outputs) each.

        For an identity link that is the expected margin; for others it comes from the
        completions' margins, because E[link(F)] is not link(E[F]).
        """
        link = self.ensemble.link
        if link.linear:
            mean, error = self.margin(evidence, threads=threads)
            return mean * link.scale, error * abs(link.scale)
        engine = self.completions

        def of_holes(part: Evidence, start: int) -> tuple[Floats, ...]:
            return engine.mean_of(link, part, start)

        predict = self.ensemble.predict
        mean, error = self._answers(2, engine, evidence, of_holes, threads, predict)
        return mean, error

    def std(self, evidence: Evidence, *, threads: int | None = None) -> Floats:
        """Standard deviation of the prediction given x_o, (rows, outputs).

        For an identity link from :meth:`moments`, for others from the completions' predictions.
        """
        link = self.ensemble.link
        if link.linear:
            variance = self.moments(evidence, threads=threads).variance
            return np.asarray(np.sqrt(variance) * abs(link.scale))
        engine = self.completions

        def of_holes(part: Evidence, start: int) -> tuple[Floats, ...]:
            return (link(engine.margins(part, start)).std(axis=1),)

        def nothing(points: Floats, _: int) -> Floats:
            return np.zeros((len(points), self.ensemble.n_outputs))

        return self._answers(1, engine, evidence, of_holes, threads, nothing)[0]

    def quantiles(
        self, evidence: Evidence, quantiles: Sequence[float], *, threads: int | None = None
    ) -> Floats:
        """Quantiles of the prediction given x_o, (rows, outputs, quantiles), from completions."""
        levels = np.asarray(quantiles, dtype=np.float64)
        if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise InvalidInput(f"quantiles must be numbers from 0 to 1; got {quantiles!r}.")
        engine = self.completions

        def work(part: Evidence, start: int) -> Floats:
            predictions = self.ensemble.link(engine.margins(part, start))
            return np.moveaxis(np.quantile(predictions, levels, axis=1), 0, 2)

        nothing = np.empty((0, self.ensemble.n_outputs, len(levels)))
        return np.concatenate([nothing, *self._by_chunk(engine, evidence, work, threads)])

    # ---- chunk by chunk -------------------------------------------------------------------------

    def _by_chunk(
        self,
        engine: Engine,
        evidence: Evidence,
        work: Callable[[Evidence, int], T],
        threads: int | None,
    ) -> list[T]:
        """What ``work`` makes of each chunk of rows, given its first row's number."""
        n_rows = len(evidence.points)
        return over_chunks(
            lambda start, stop: work(evidence[start:stop], start), n_rows, engine.chunk, threads
        )

    def _answers(
        self,
        n: int,
        engine: Engine,
        evidence: Evidence,
        of_holes: Callable[[Evidence, int], tuple[Floats, ...]],
        threads: int | None,
        of_complete: Callable[[Floats, int], Floats] | None = None,
    ) -> list[Floats]:
        """``n`` arrays (rows, outputs): from the engine for rows with a hole that matters.

        Other rows are answered by the trees alone: their margin, or what ``of_complete`` makes of
        them, in the first array, and 0 in the others.
        """
        native = self.ensemble.margin if of_complete is None else of_complete
        used = self._used

        def work(part: Evidence, start: int) -> Sequence[Floats]:
            points = part.points
            has_hole = np.isnan(points[:, used]).any(axis=1)
            if has_hole.all():
                return of_holes(part, start)
            own = points[~has_hole, : len(self.ensemble.columns)]
            out = [np.zeros((len(points), self.ensemble.n_outputs)) for _ in range(n)]
            out[0][~has_hole] = native(np.ascontiguousarray(own), 1)
            if has_hole.any():
                found = of_holes(part[np.flatnonzero(has_hole)], start)
                for whole, some in zip(out, found, strict=True):
                    whole[has_hole] = some
            return out

        nothing = [np.empty((0, self.ensemble.n_outputs))] * n
        parts = [nothing, *self._by_chunk(engine, evidence, work, threads)]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


# Forests up to this size have their second moments exactly by default: the work grows with the
# square of the number of trees.
EXACT_TREES = 16
