"""An ensemble and a density become one thing that answers rows with holes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from knothole.arrays import Floats
from knothole.compiled.threads import made_once, over_blocks
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.reach.completions.engine import CompletionsEngine
from knothole.reach.engine import Engine, Moments
from knothole.reach.registry import exact_engine, sampler_of
from knothole.tables.evidence import Evidence
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import in_variables, with_nan

Holes = Literal["auto", "all"] | NDArray[np.bool_]


class Expectation:
    """A tree model under a density: expectations given the observed part of rows.

    Made by :meth:`of`. All methods take tables over the density's columns (or what
    :meth:`evidence` made of them), and ``holes``: "auto" integrates over every NaN but those of
    nullable columns, which are the model's own value there; "all" over every NaN; a boolean mask
    says it by entry.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        density: Density,
        method: str,
        tol: float | None,
        seed: int,
        integrate: NDArray[np.bool_] | None = None,
    ) -> None:
        self.original = ensemble
        self.density = density
        self.columns = density.columns_
        self._nullable = np.array([column.nullable for column in self.columns], dtype=np.bool_)
        self.integrate = ~self._nullable if integrate is None else integrate | ~self._nullable
        self.ensemble = in_variables(ensemble, self.columns)
        self.tol = tol
        self.seed = seed
        self._source: Expectation | None = None  # whose tables serve this one too
        self._exact_engine = None if method == "completions" else exact_engine(density)
        if self._exact_engine is None and method == "exact":
            raise InvalidInput(
                f"method='exact': {type(density).__name__} has no closed form for regions; use "
                f"method='completions', or a Mixture, LatentTree or Circuit."
            )
        used = np.zeros(len(self.ensemble.columns), dtype=np.bool_)
        used[self.ensemble.feature[self.ensemble.feature >= 0]] = True
        self._used = np.flatnonzero(used)

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        density: Density,
        method: Literal["auto", "exact", "completions"] = "auto",
        tol: float | None = None,
        seed: int = 0,
        integrate: NDArray[np.bool_] | None = None,
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
        return cls(ensemble, density, method, tol, seed, integrate)

    def with_values(self, value: Floats) -> Expectation:
        """The same trees with other leaf values (leaves, width), under the same density.

        What is tabulated of the trees and the density serves both.
        """
        other = copy(self)
        other.original = self.original.with_values(value)
        other.ensemble = self.ensemble.with_values(value)
        other._source = self
        for engine in {"engine", "completions"} & other.__dict__.keys():
            del other.__dict__[engine]
        return other

    # ---- engines: each is made when it is first used -------------------------------------------

    @property
    def exact(self) -> bool:
        """Whether margins and reach are exact."""
        return self._exact_engine is not None

    @made_once
    def engine(self) -> Engine:
        """What margins and reach come from."""
        if self._exact_engine is None:
            return self.completions
        if self._source is not None:
            return self._source.engine.with_values(self.ensemble)
        return self._exact_engine(self.ensemble, self.density)

    @made_once
    def completions(self) -> CompletionsEngine:
        """What answers that are not linear in the leaves come from."""
        if self._source is not None:
            return self._source.completions.with_values(self.ensemble)
        return CompletionsEngine(self.ensemble, sampler_of(self.density, self.seed), self.tol)

    # ---- linear in the leaves ------------------------------------------------------------------

    def margin(
        self, X: Any, holes: Holes = "auto", *, target: Any = None, threads: int | None = None
    ) -> tuple[Floats, Floats]:
        """Expected margin (Prop. 1) and its standard error, (rows, outputs) each."""
        evidence = self.evidence(X, holes, target)

        def work(start: int, stop: int) -> tuple[Floats, ...]:
            part = evidence[start:stop]
            return self._with_complete(part, lambda some: self.engine.margin(some, start))

        blocks = over_blocks(work, len(evidence.points), self.engine.block, threads)
        mean, error = self._stacked(blocks, 2)
        return mean, error

    def reach(
        self, X: Any, holes: Holes = "auto", *, target: Any = None, threads: int | None = None
    ) -> sparse.csr_matrix:
        """The reach matrix, sparse (rows, leaves): p(region of leaf, x_o) / p(x_o)."""
        evidence = self.evidence(X, holes, target)
        n_leaves = self.ensemble.n_leaves

        def work(start: int, stop: int) -> sparse.csr_matrix:
            parts = list(self.engine.entries(evidence[start:stop], start))
            row = np.concatenate([part.row for part in parts])
            leaf = np.concatenate([part.leaf for part in parts])
            reach = np.concatenate([part.reach for part in parts])
            matrix = sparse.csr_matrix((reach, (row, leaf)), shape=(stop - start, n_leaves))
            matrix.eliminate_zeros()
            return matrix

        blocks = over_blocks(work, len(evidence.points), self.engine.block, threads)
        if not blocks:
            return sparse.csr_matrix((0, n_leaves))
        return sparse.csr_matrix(sparse.vstack(blocks, format="csr"))

    # ---- beyond ---------------------------------------------------------------------------------

    def moments(
        self,
        X: Any,
        holes: Holes = "auto",
        *,
        method: Literal["auto", "exact", "completions"] = "auto",
        target: Any = None,
        threads: int | None = None,
    ) -> Moments:
        """Mean and variance of the margin given x_o (Lemmas 1 and 2).

        Exactly over all pairs of trees where the density allows and pairs are not too many
        ("auto": at most :data:`EXACT_TREES` trees), otherwise from completions.
        """
        evidence = self.evidence(X, holes, target)
        exact = self.exact and (method == "exact" or self.ensemble.n_trees <= EXACT_TREES)
        if method == "exact" and not self.exact:
            raise InvalidInput("method='exact': this density has no exact second moments.")
        engine = self.engine if exact and method != "completions" else self.completions

        def work(start: int, stop: int) -> tuple[Floats, ...]:
            def incomplete(some: Evidence) -> tuple[Floats, ...]:
                found = engine.moments(some, start)
                return found.mean, found.variance, found.error, found.variance_error

            return self._with_complete(evidence[start:stop], incomplete, 4)

        parts = over_blocks(work, len(evidence.points), engine.block, threads)
        return Moments(*self._stacked(parts, 4))

    def predict(
        self, X: Any, holes: Holes = "auto", *, target: Any = None, threads: int | None = None
    ) -> tuple[Floats, Floats]:
        """Expected prediction E[link(F)] and its standard error, (rows, outputs) each.

        For an identity link that is the expected margin; for others it comes from the
        completions' margins, because E[link(F)] is not link(E[F]).
        """
        link = self.ensemble.link
        if link.linear:
            mean, error = self.margin(X, holes, target=target, threads=threads)
            return mean * link.scale, error * abs(link.scale)
        evidence = self.evidence(X, holes, target)
        engine = self.completions

        def work(start: int, stop: int) -> tuple[Floats, ...]:
            def incomplete(some: Evidence) -> tuple[Floats, ...]:
                return engine.mean_of(link, some, start)

            part = evidence[start:stop]
            return self._with_complete(part, incomplete, complete=self.ensemble.predict)

        blocks = over_blocks(work, len(evidence.points), engine.block, threads)
        mean, error = self._stacked(blocks, 2)
        return mean, error

    def std(
        self, X: Any, holes: Holes = "auto", *, target: Any = None, threads: int | None = None
    ) -> Floats:
        """Standard deviation of the prediction given x_o, (rows, outputs).

        For an identity link from :meth:`moments`, for others from the completions' predictions.
        """
        link = self.ensemble.link
        if link.linear:
            variance = self.moments(X, holes, target=target, threads=threads).variance
            return np.asarray(np.sqrt(variance) * abs(link.scale))
        evidence = self.evidence(X, holes, target)
        engine = self.completions

        def work(start: int, stop: int) -> tuple[Floats, ...]:
            def incomplete(some: Evidence) -> tuple[Floats, ...]:
                return (link(engine.margins(some, start)).std(axis=1),)

            def complete(points: Floats, _: int) -> Floats:
                return np.zeros((len(points), self.ensemble.n_outputs))

            return self._with_complete(evidence[start:stop], incomplete, 1, complete)

        blocks = over_blocks(work, len(evidence.points), engine.block, threads)
        return self._stacked(blocks, 1)[0]

    def quantiles(
        self,
        X: Any,
        quantiles: Sequence[float],
        holes: Holes = "auto",
        *,
        target: Any = None,
        threads: int | None = None,
    ) -> Floats:
        """Quantiles of the prediction given x_o, (rows, outputs, quantiles), from completions."""
        levels = np.asarray(quantiles, dtype=np.float64)
        if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise InvalidInput(f"quantiles must be numbers from 0 to 1; got {quantiles!r}.")
        evidence = self.evidence(X, holes, target)
        engine = self.completions

        def work(start: int, stop: int) -> Floats:
            predictions = self.ensemble.link(engine.margins(evidence[start:stop], start))
            return np.moveaxis(np.quantile(predictions, levels, axis=1), 0, 2)

        parts = over_blocks(work, len(evidence.points), engine.block, threads)
        shape = (0, self.ensemble.n_outputs, len(levels))
        return np.concatenate(parts) if parts else np.empty(shape)

    # ---- shared -------------------------------------------------------------------------------

    def evidence(self, X: Any, holes: Holes = "auto", target: Any = None) -> Evidence:
        """What rows say about the density's variables, under a reading of their NaN."""
        if isinstance(X, Evidence):
            return X
        return self.evidence_of(self.columns.matrix(X), holes, target)

    def evidence_of(self, matrix: Floats, holes: Holes = "auto", target: Any = None) -> Evidence:
        """The evidence of rows that ``columns.matrix`` has encoded."""
        values = with_nan(self.original, self.columns, matrix)
        mask = self._holes(matrix, values, holes)
        return self.density.extended(self.columns.evidence(values, mask), target)

    def _holes(self, matrix: Floats, values: Floats, holes: Holes) -> NDArray[np.bool_] | None:
        """Entries to integrate over; None for the columns' own reading.

        A value that the model takes for NaN (``values``) is a hole where the model never met one.
        """
        if not isinstance(holes, str):
            return _checked_mask(holes, matrix)
        if holes not in ("auto", "all"):
            raise InvalidInput(f"holes must be 'auto', 'all' or a mask; got {holes!r}.")
        if holes == "auto" and np.array_equal(self.integrate, ~self._nullable):
            return None
        if holes == "all":
            return np.isnan(matrix) | (np.isnan(values) & ~self._nullable)
        missing = np.isnan(values)
        mask = missing & self.integrate
        for block in self.columns.blocks:
            members = list(block.columns)
            if not self.integrate[members].any():  # in part NaN: the others are holes
                part = missing[:, members]
                mask[:, members] = part & ~part.all(axis=1, keepdims=True)
        return mask

    def _with_complete(
        self,
        evidence: Evidence,
        incomplete: Callable[[Evidence], tuple[Floats, ...]],
        parts: int = 2,
        complete: Callable[[Floats, int], Floats] | None = None,
    ) -> tuple[Floats, ...]:
        """Answer rows without a hole that matters by the trees alone, the others by the engine."""
        points = evidence.points
        has_hole = np.isnan(points[:, self._used]).any(axis=1)
        if has_hole.all():
            return incomplete(evidence)
        own = points[:, : len(self.ensemble.columns)]
        out = [np.zeros((len(points), self.ensemble.n_outputs)) for _ in range(parts)]
        native = self.ensemble.margin if complete is None else complete
        out[0][~has_hole] = native(np.ascontiguousarray(own[~has_hole]), 1)
        if has_hole.any():
            for whole, part in zip(
                out, incomplete(evidence[np.flatnonzero(has_hole)]), strict=True
            ):
                whole[has_hole] = part
        return tuple(out)

    def _stacked(self, blocks: list[tuple[Floats, ...]], parts: int) -> list[Floats]:
        """Results of blocks, one below the other."""
        nothing = np.empty((0, self.ensemble.n_outputs))
        return [np.concatenate([nothing, *(block[i] for block in blocks)]) for i in range(parts)]


def _checked_mask(holes: Any, matrix: Floats) -> NDArray[np.bool_]:
    mask = np.asarray(holes)
    if mask.shape != matrix.shape or mask.dtype != np.bool_:
        raise InvalidInput(
            f"holes must be 'auto', 'all' or booleans of shape {matrix.shape}; got {mask.dtype} of "
            f"shape {mask.shape}."
        )
    if not np.isnan(matrix[mask]).all():
        raise InvalidInput("holes: an entry that is not NaN was marked as a hole.")
    return mask


# Forests up to this size have their second moments exactly by default: the work grows with the
# square of the number of trees.
EXACT_TREES = 16
