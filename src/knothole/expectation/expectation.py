"""A tree model under a density: expected predictions for rows with missing values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints, Mask
from knothole.cached import cached_property
from knothole.checks import check_choice
from knothole.columns.columns import Columns
from knothole.columns.evidence import Evidence, mark_missing
from knothole.densities.base import Density
from knothole.densities.circuit.density import Circuit
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.errors import InvalidInput
from knothole.expectation.circuit import CircuitEngine
from knothole.expectation.engine import Engine, Moments
from knothole.expectation.exact.latent_tree import LatentTreeEngine
from knothole.expectation.exact.mixture import MixtureEngine
from knothole.expectation.gaussian import GaussianEngine
from knothole.expectation.monte_carlo.engine import MixtureMonteCarlo, MonteCarloEngine
from knothole.expectation.monte_carlo.rare import Rare
from knothole.expectation.monte_carlo.statistics import (
    MeanOf,
    change_of_quantiles,
    change_of_std,
    quantiles_of,
    standard_error,
    std_of,
)
from knothole.expectation.tolerance import (
    SHARE,
    SPREAD_OF_PROBABILITIES,
    Spread,
    Tolerance,
    check_tol,
    tolerance_of,
    warn_missed,
)
from knothole.missingness.inference import INFER, Reading, lost_probability, not_recorded_points
from knothole.sobol import GROUPS
from knothole.threads import even_size, over_chunks
from knothole.trees.curves import reached, sample_quantiles, weighted_quantiles
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import in_variables
from knothole.trees.links import Link

if TYPE_CHECKING:
    from scipy import sparse

T = TypeVar("T")

#: From the hypotheses of rows and their answers to answers of the rows.
Combine = Callable[["Cases", Sequence[Floats]], Sequence[Floats]]
EngineMaker = Callable[[Ensemble, Any], Engine]

#: Exact engines by class of density, also used for derived classes; each is made from an ensemble
#: over variables and a density. For a class of your own, add an entry.
ENGINES: dict[type, EngineMaker] = {
    Circuit: CircuitEngine,
    LatentTree: LatentTreeEngine,
    Mixture: MixtureEngine,
}
#: Monte Carlo engines for classes of density that have a special one.
DRAWING_ENGINES: dict[type, type[MonteCarloEngine]] = {
    GaussianMixture: GaussianEngine,
    Mixture: MixtureMonteCarlo,
}


@dataclass(frozen=True, eq=False)
class Expectation:
    """A tree model under a density: expectations given the observed part of rows.

    Made by :meth:`of`. :meth:`evidence` reads tables; all other methods take its result.

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
    reading: Reading  # of missing values
    tol: float | None
    seed: int
    exact_engine: EngineMaker | None  # None where expectations are by Monte Carlo
    given_spread: Spread | None = None  # None: estimated from rows drawn from the density
    source: Expectation | None = None  # same trees and density, whose tables are reused
    compared: bool = False  # whether answers are compared with each other, and errors are not told

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        density: Density,
        method: Literal["auto", "exact", "monte-carlo"] = "auto",
        tol: float | None = SHARE,
        seed: int = 0,
        reading: Reading = INFER,
        spread: Spread | None = None,
    ) -> Expectation:
        """Combine a model and a density.

        Parameters
        ----------
        ensemble : Ensemble
            The model, as read.
        density : Density
            Fitted on the same columns, described as the model has them
            (:meth:`knothole.columns.columns.Columns.describe`); a column that does not fit is
            named.
        method : {"auto", "exact", "monte-carlo"}
            How missing values are integrated. "auto" is exact where the density allows.
        tol : float, optional
            For Monte Carlo: the standard error to be met, as a fraction of the spread of the
            model's outputs; None to use the first draws.
        seed : int
            For Monte Carlo: determines the draws.
        reading : Reading
            What missing values of nullable variables mean.
        spread : Spread, optional
            Of the model's outputs on training rows; by default over rows drawn from the density.
        """
        check_choice("method", method, ("auto", "exact", "monte-carlo"))
        exactly = None if method == "monte-carlo" else by_class(ENGINES, density)
        if exactly is None and method == "exact":
            raise InvalidInput(
                f"method='exact': {type(density).__name__} has no closed form for regions; use "
                f"method='monte-carlo', or a Mixture, LatentTree or Circuit."
            )
        own = in_variables(ensemble, density.columns_)
        return cls(ensemble, own, density, reading, check_tol(tol), seed, exactly, spread)

    def under(self, density: Density) -> Expectation:
        """The same model under another density of the same columns."""
        return Expectation.of(
            self.original, density, tol=self.tol, seed=self.seed, reading=self.reading,
            spread=self.given_spread,
        )  # fmt: skip

    def with_values(self, value: Floats) -> Expectation:
        """The same trees with other leaf values (leaves, width), under the same density.

        All tables of the trees and the density are shared, and the unit of tolerances stays the
        same, so that new leaves are as exact as the old ones.
        """
        return replace(
            self,
            original=self.original.with_values(value),
            ensemble=self.ensemble.with_values(value),
            source=self,
        )

    def read_as(self, reading: Reading) -> Expectation:
        """The same with another reading of missing values; tables and draws are shared."""
        return replace(self, reading=reading, source=self)

    @property
    def columns(self) -> Columns:
        """The columns that rows have."""
        return self.density.columns_

    # ---- engines: made when first used; should two threads make one each, they are alike -------

    @property
    def exact(self) -> bool:
        """Whether margins and leaf probabilities are exact."""
        return self.exact_engine is not None

    @cached_property
    def engine(self) -> Engine:
        """The engine for margins and leaf probabilities."""
        if self.exact_engine is None:
            return self.monte_carlo
        if self.source is not None:
            return self.source.engine.with_values(self.ensemble)
        return self.exact_engine(self.ensemble, self.density)

    @cached_property
    def monte_carlo(self) -> MonteCarloEngine:
        """The engine for answers that are not linear in the leaves."""
        if self.source is not None:
            engine = self.source.monte_carlo.with_values(self.ensemble)
        else:
            kind = by_class(DRAWING_ENGINES, self.density) or MonteCarloEngine
            engine = kind(self.ensemble, self.density, self.seed)
        engine.tolerance = self._tolerance(self._spread_by(engine).margin)
        return engine

    @cached_property
    def rough(self) -> Expectation:
        """The same with only the first draws, whose errors nobody asks for: for comparisons."""
        return replace(self, tol=None, source=self, compared=True)

    @cached_property
    def spread(self) -> Spread:
        """The spread of the model's outputs, the unit of tolerances."""
        return self.given_spread or self._spread_by(self.monte_carlo)

    def _spread_by(self, engine: MonteCarloEngine) -> Spread:
        if self.source is not None:
            return self.source.spread
        return self.given_spread or _spread_under(engine)

    def _tolerance(self, unit: Floats) -> Tolerance:
        return tolerance_of(unit, self.tol)._replace(rare=not self.compared)

    @cached_property
    def used(self) -> Ints:
        """Variables that the trees split on; missing values in other variables do not matter."""
        return np.flatnonzero(self.ensemble.used)

    # ---- what rows say --------------------------------------------------------------------------

    def evidence(self, table: Any, lost: Mask | None = None, target: Any = None) -> Evidence:
        """Evidence of the rows of a table.

        Parameters
        ----------
        table : table
            With the density's columns.
        lost : bool (rows, columns), optional
            Marks missing values that are known to be lost.
        target : array (rows,), optional
            For a density that was fitted with one.
        """
        return self.evidence_of(self.columns.matrix(table), lost, target)

    def evidence_of(
        self,
        matrix: Floats,
        lost: Mask | None = None,
        target: Any = None,
        absent: Sequence[int] = (),
        not_recorded: Mask | None = None,
    ) -> Evidence:
        """:meth:`evidence` of rows that ``columns.matrix`` has encoded.

        Columns may be ``absent``, and missing values known to be ``not_recorded``.
        """
        columns, reading = self.columns, self.reading
        native = reading.policy == "native"
        values, missing = mark_missing(
            matrix, self.original.sentinel, columns, native, lost, absent
        )
        if missing is not None and not_recorded is not None:
            missing &= ~not_recorded
        evidence = self.density.extended(columns.evidence(values, missing), target)
        if not columns.nullable.any():
            return evidence
        return reading.read(self.density, evidence, columns.variables, lost, absent)

    def lost_probability(self, evidence: Evidence) -> Floats:
        """The probability that each missing value was recorded and then lost, (rows, variables).

        NaN for observed values, and for nullable variables under a density of the user's own.
        """
        nullable = np.array([v.nullable for v in self.columns.variables])
        density: Any = self.density
        if isinstance(density, Density):
            out = lost_probability(density, evidence, nullable)
        else:
            missing = np.isnan(evidence.points[:, : len(nullable)])
            out = np.where(missing & ~nullable, 1.0, np.nan)
        for v, rows, _ in evidence.restricted():
            if v < len(nullable):
                out[rows, v] = 1.0  # partly observed, so it was recorded
        if self.reading.policy == "native":
            point = not_recorded_points(self.columns.variables)
            out[nullable & (evidence.points[:, : len(nullable)] == point)] = 0.0
        return out

    # ---- linear in the leaves ------------------------------------------------------------------

    def margin(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Expected margin (Prop. 1) and its standard error, (rows, outputs) each."""
        chunk = self.engine.chunk if self.exact else self.monte_carlo.chunk_of_means
        mean, error = self._answers(
            2, chunk, evidence, self.engine.margin, threads, combine=mean_of_cases
        )
        if not self.exact:
            warn_missed(error, self._tolerance(self.spread.margin), "margin")
        return mean, error

    def leaf_probabilities(
        self, evidence: Evidence, *, threads: int | None = None
    ) -> sparse.csr_matrix:
        """p(region of leaf, x_o) / p(x_o), sparse (rows, leaves)."""
        from scipy import sparse

        chunks = self._by_chunk(self.engine.chunk, evidence, self._leaf_probabilities, threads)
        if not chunks:
            return sparse.csr_matrix((len(evidence.points), self.ensemble.n_leaves))
        matrix = sparse.csr_matrix(sparse.vstack(chunks, format="csr"))
        matrix.sort_indices()
        return matrix

    def leaf_probabilities_by_tree(
        self, evidence: Evidence, *, threads: int | None = None
    ) -> Iterator[tuple[int, sparse.csr_matrix]]:
        """Each tree and its part of the matrix, (rows, leaves of the tree), in no order."""
        from scipy import sparse

        def work(part: Evidence) -> sparse.csr_matrix:
            return self._leaf_probabilities(part, by_tree=True)

        chunks = self._by_chunk(self.engine.chunk, evidence, work, threads)
        for tree, (first, last) in enumerate(pairwise(self.ensemble.leaf_start.tolist())):
            count, leaf, probability = [np.zeros(1, np.int64)], [], []
            for chunk in chunks:
                n_rows = chunk.shape[0] // self.ensemble.n_trees
                bounds = chunk.indptr[tree * n_rows : (tree + 1) * n_rows + 1]
                count.append(np.diff(bounds))
                leaf.append(chunk.indices[bounds[0] : bounds[-1]] - first)
                probability.append(chunk.data[bounds[0] : bounds[-1]])
            start = np.concatenate(count).cumsum()
            arrays = np.concatenate(probability), np.concatenate(leaf), start
            yield tree, sparse.csr_matrix(arrays, shape=(len(start) - 1, last - first))

    def _leaf_probabilities(self, part: Evidence, by_tree: bool = False) -> sparse.csr_matrix:
        from scipy import sparse

        if not self.exact or part.hypotheses is None:
            return self.engine.leaf_probabilities(part, by_tree)
        row, chance, cases = part.cases()
        matrix = self.engine.leaf_probabilities(cases, by_tree)
        n_rows, n_trees = len(part.points), self.ensemble.n_trees if by_tree else 1
        tree = np.repeat(np.arange(n_trees), len(row))
        place = tree * n_rows + np.tile(row, n_trees), np.arange(n_trees * len(row))
        shape = n_trees * n_rows, n_trees * len(row)
        share = sparse.csr_matrix((np.tile(chance, n_trees), place), shape=shape)
        return sparse.csr_matrix(share @ matrix)

    # ---- beyond ---------------------------------------------------------------------------------

    def moments(
        self,
        evidence: Evidence,
        method: Literal["auto", "exact", "monte-carlo"] = "auto",
        *,
        threads: int | None = None,
    ) -> Moments:
        """Mean and variance of the margin given x_o (Lemmas 1 and 2).

        Exact, over all pairs of trees, if the density allows it and there are few pairs ("auto":
        at most :data:`EXACT_TREES` trees); otherwise from draws.
        """
        if method == "exact" and not self.exact:
            raise InvalidInput("method='exact': this density has no exact second moments.")
        few = self.ensemble.n_trees <= EXACT_TREES
        exactly = method == "exact" or (method == "auto" and self.exact and few)
        engine = self.engine if exactly else self.monte_carlo

        def of_incomplete(part: Evidence) -> tuple[Floats, ...]:
            found = engine.moments(part)
            return found.mean, found.std, found.error, found.std_error

        found = Moments(
            *self._answers(
                4, engine.chunk, evidence, of_incomplete, threads,
                combine=moments_of_cases if exactly else None,
            )
        )  # fmt: skip
        if not engine.exact:
            warn_missed(found.std_error, self._tolerance(self.spread.margin), "spread")
        return found

    def predict(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Expected prediction E[link(F)] and its standard error, (rows, outputs) each.

        For an identity link it is the expected margin. If a prediction depends on a single tree, it
        is the expectation of that tree with its leaves put through the link. For other models it
        comes from the draws' margins, because E[link(F)] is not link(E[F]). Where the expected
        margin is known exactly, the error of the draws' mean margin corrects it. (Not for softmax:
        classes corrected one by one would no longer add up to 1. Nor for a blend, whose predictions
        do not have margins of their own.)
        """
        link = self.ensemble.link
        if link.linear:
            mean, error = self.margin(evidence, threads=threads)
            return mean * link.scale, error * abs(link.scale)
        if self.exact_predictions:
            return self._linked.margin(evidence, threads=threads)

        def of_incomplete(part: Evidence, tolerance: Tolerance) -> tuple[Floats, ...]:
            return self.monte_carlo.mean(part, self._mean(part), tolerance)

        chunk, native = self.monte_carlo.chunk_of_means, self.ensemble.predict
        return self._drawn("prediction", chunk, evidence, of_incomplete, threads, native)

    def _mean(self, part: Evidence) -> MeanOf:
        """How means of predictions are computed from draws."""
        link = self.ensemble.link
        if not self.corrects:
            return MeanOf(link)
        return MeanOf(link, lambda rows: self.margin(part[rows], threads=1)[0])

    @property
    def exact_predictions(self) -> bool:
        """Whether predictions are exact: a linear link, or a single tree put through the link."""
        ensemble = self.ensemble
        one_tree = ensemble.n_trees == 1 and ensemble.value.shape[1] == ensemble.n_outputs
        return self.exact and (ensemble.link.linear or one_tree)

    @property
    def corrects(self) -> bool:
        """Whether drawn predictions are corrected by the exact expected margin."""
        return self.exact and self.ensemble.link.name not in ("softmax", "blend")

    @cached_property
    def _linked(self) -> Expectation:
        """The single tree, with predictions as leaf values."""
        ensemble = self.original
        margin = ensemble.value * ensemble.tree_weight[0] + ensemble.base
        plain = replace(ensemble, link=Link("identity"), base=np.zeros(ensemble.n_responses))
        value = np.ascontiguousarray(ensemble.link(margin))
        plain = replace(plain, tree_weight=np.ones(1), value=value)
        return Expectation.of(plain, self.density, reading=self.reading)

    def std(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Standard deviation of the prediction given x_o, and its error, (rows, outputs) each.

        For an identity link from :meth:`moments`, otherwise from the draws' predictions.
        """
        link = self.ensemble.link
        if link.linear:
            found = self.moments(evidence, threads=threads)
            return found.std * abs(link.scale), found.std_error * abs(link.scale)

        def nothing(points: Floats, _: int) -> Floats:
            return np.zeros((len(points), self.ensemble.n_responses))

        def of_incomplete(part: Evidence, tolerance: Tolerance) -> tuple[Floats, ...]:
            return self.monte_carlo.of_draws(
                part, std_of(link), change_of_std(link), tolerance, Rare.error_of_std, link
            )

        chunk = self.monte_carlo.chunk
        return self._drawn("spread", chunk, evidence, of_incomplete, threads, nothing)

    def quantiles(
        self, evidence: Evidence, quantiles: Sequence[float], *, threads: int | None = None
    ) -> tuple[Floats, Floats]:
        """Quantiles of the prediction given x_o, and their errors, (rows, outputs, quantiles) each.

        They reflect the missing values only, and come from draws. The tolerance applies to their
        levels, as to probabilities: where predictions jump, a quantile is on either side of the
        jump.
        """
        levels = np.asarray(quantiles, dtype=np.float64)
        if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise InvalidInput(f"quantiles must be numbers from 0 to 1; got {quantiles!r}.")
        n, link = self.ensemble.n_responses, self.ensemble.link
        tolerance = self._tolerance(np.array([SPREAD_OF_PROBABILITIES]))

        def of_incomplete(part: Evidence) -> tuple[Floats, ...]:
            return self.monte_carlo.of_draws(
                part,
                quantiles_of(link, levels),
                change_of_quantiles(2 * n * len(levels)),
                tolerance,
            )

        def native(points: Floats, threads: int) -> Floats:
            own = np.repeat(self.ensemble.predict(points, threads), len(levels), axis=1)
            return np.hstack([own, np.zeros_like(own)])

        chunk = self.monte_carlo.chunk
        both, of_levels = self._answers(2, chunk, evidence, of_incomplete, threads, native)
        warn_missed(of_levels, tolerance, "quantile")
        found, error = (part.reshape(-1, n, len(levels)) for part in np.hsplit(both, 2))
        return found, error

    def quantiles_of_samples(
        self, evidence: Evidence, levels: Floats, *, threads: int | None = None
    ) -> tuple[Floats, Floats]:
        """Quantiles of y from the leaves' samples, and errors, (rows, outputs, levels) each.

        Without levels: means, (rows, outputs, 1). Samples are weighted by the probability of their
        leaf. The error of a drawn quantile is from the spread of the groups, or from the error of
        its level, whichever is larger: groups may agree on one step of the samples.
        """
        from scipy import sparse

        curves = self.original.curves

        def answer(probabilities: sparse.csr_matrix) -> Floats:
            return sample_quantiles(curves, probabilities, levels)

        def by_level(
            together: sparse.csr_matrix, groups: sparse.csr_matrix, found: Floats
        ) -> Floats:
            error = np.empty_like(found)
            for output, samples in enumerate(curves.values()):
                apart = (groups @ samples.jumps).toarray().reshape(len(found), GROUPS, -1)
                apart /= apart.sum(axis=2, keepdims=True)
                below = [
                    (apart * ((samples.grid < value) + 0.5 * (samples.grid == value))).sum(axis=2)
                    for value in found[:, output, :, None, None].swapaxes(0, 1)
                ]
                off = standard_error(np.stack(below, axis=2))
                weights = sparse.csr_matrix(together @ samples.jumps)
                ends = [
                    weighted_quantiles(weights, samples.grid, np.clip(levels + side, 0.0, 1.0))
                    for side in (-off, off)
                ]
                error[:, output] = np.abs(np.stack(ends) - found[:, output]).max(axis=0)
            return error

        least = by_level if len(levels) else None
        return self.of_curves(evidence, answer, least_error=least, threads=threads)

    def of_curves(
        self,
        evidence: Evidence,
        answer: Callable[[sparse.csr_matrix], Floats],
        *,
        least_error: Callable[[sparse.csr_matrix, sparse.csr_matrix, Floats], Floats] | None = None,
        threads: int | None = None,
    ) -> tuple[Floats, Floats]:
        """Expected curves of leaves, or functions of them, with standard errors.

        Parameters
        ----------
        evidence : Evidence
        answer : callable
            From leaf probabilities (rows, leaves) to answers (rows, ...), row by row.
        least_error : callable, optional
            From the leaf probabilities of all draws and of groups of draws, and the answers, to
            lower bounds of the errors.
        threads : int, optional
        """
        from scipy import sparse

        ensemble = self.ensemble

        def of_incomplete(part: Evidence) -> tuple[Floats, ...]:
            if self.exact:
                found = answer(self._leaf_probabilities(part))
                return found, np.zeros_like(found)
            groups = self.monte_carlo.leaf_probabilities_by_group(part)
            n = len(part.points)
            place = np.repeat(np.arange(n), GROUPS), np.arange(n * GROUPS)
            mean = sparse.csr_matrix((np.full(n * GROUPS, 1 / GROUPS), place))
            together = sparse.csr_matrix(mean @ groups)
            found, apart = answer(together), answer(groups)
            error = standard_error(apart.reshape(n, GROUPS, *found.shape[1:]))
            if least_error is not None:
                error = np.maximum(error, least_error(together, groups, found))
            # Where rows are exact, groups differ by rounding errors only.
            return found, np.where(error > ROUNDING * np.abs(found), error, 0.0)

        def native(points: Floats, threads: int) -> Floats:
            return answer(reached(ensemble.leaves(points, threads), ensemble.n_leaves))

        value, error = self._answers(2, self.engine.chunk, evidence, of_incomplete, threads, native)
        return value, error

    def is_exact(self, margins: bool) -> bool:
        """Whether expected margins, or predictions, are exact."""
        return self.exact if margins else self.exact_predictions

    def by_group(
        self, evidence: Evidence, margins: bool, words: range, *, threads: int | None = None
    ) -> Floats:
        """Expected margins or predictions by independent groups of draws, for these words.

        :meth:`predict` gives every row as many draws as its tolerance needs. Here all rows have the
        same draws, so that common errors cancel in differences such as v(S and j) - v(S); the
        spread of the groups' differences gives the remaining error. There is one group where
        answers are exact.

        Returns
        -------
        float64 (rows, groups, outputs)
        """
        if self.is_exact(margins):
            answers = self.margin if margins else self.predict
            return answers(evidence, threads=threads)[0][:, None]
        ensemble, engine, link = self.ensemble, self.monte_carlo, self.ensemble.link

        def of_incomplete(part: Evidence) -> tuple[Floats, ...]:
            if margins or link.linear:
                scale = 1.0 if margins else link.scale
                return (engine.group_margins(part, words) * scale,)
            mean = self._mean(part)
            summary = mean.summary(engine.margins(part, words))
            return (mean.group_means(summary, np.arange(len(summary))),)

        def native(points: Floats, threads: int) -> Floats:
            answers = (ensemble.margin if margins else ensemble.predict)(points, threads)
            return np.repeat(answers[:, None], GROUPS, axis=1)

        (found,) = self._answers(1, engine.chunk, evidence, of_incomplete, threads, native)
        return found

    def _drawn(
        self,
        what: str,
        chunk: int,
        evidence: Evidence,
        of_incomplete: Callable[[Evidence, Tolerance], tuple[Floats, ...]],
        threads: int | None,
        of_complete: Callable[[Floats, int], Floats],
    ) -> tuple[Floats, Floats]:
        """An answer from draws for rows with missing values, and its standard error."""
        tolerance = self._tolerance(self.spread.prediction)

        def work(part: Evidence) -> tuple[Floats, ...]:
            return of_incomplete(part, tolerance)

        found, error = self._answers(2, chunk, evidence, work, threads, of_complete)
        warn_missed(error, tolerance, what)
        return found, error

    # ---- chunk by chunk -------------------------------------------------------------------------

    def _by_chunk(
        self,
        chunk: int,
        evidence: Evidence,
        work: Callable[[Evidence], T],
        threads: int | None,
    ) -> list[T]:
        """The results of ``work`` for each chunk of rows."""
        n_rows = len(evidence.points)
        size = even_size(n_rows, chunk, threads)
        return over_chunks(lambda start, stop: work(evidence[start:stop]), n_rows, size, threads)

    def _answers(
        self,
        n: int,
        chunk: int,
        evidence: Evidence,
        of_incomplete: Callable[[Evidence], tuple[Floats, ...]],
        threads: int | None,
        of_complete: Callable[[Floats, int], Floats] | None = None,
        combine: Combine | None = None,
    ) -> list[Floats]:
        """``n`` arrays (rows, ...) from the engine, for rows with a missing value that matters.

        For other rows, the first array has the trees' own margin or the result of ``of_complete``,
        and the others 0. An exact engine answers every hypothesis of a row, and ``combine`` makes
        one answer of them.
        """
        native = self.ensemble.margin if of_complete is None else of_complete
        used = self.used

        def work(part: Evidence) -> Sequence[Floats]:
            if combine is not None and self.exact and part.hypotheses is not None:
                row, chance, cases = part.cases()
                return combine(Cases(row, chance, len(part.points)), work(cases))
            points = part.points
            incomplete = np.isnan(points)[:, used].any(axis=1)
            if incomplete.all() and part.allowed is None and part.odds is None:
                return of_incomplete(part)
            # Missing values first: while a first run compiles what they need, another process does
            # the rest.
            missing_mask = np.flatnonzero(incomplete)
            answered = [
                (missing_mask[rows], of_incomplete(some))
                for rows, some in part[missing_mask].parts()
            ]
            own = points[~incomplete, : len(self.ensemble.columns)]
            first = np.asarray(native(np.ascontiguousarray(own), 1))
            out = [np.zeros((len(points), *first.shape[1:])) for _ in range(n)]
            out[0][~incomplete] = first
            for rows, found in answered:
                for whole, some in zip(out, found, strict=True):
                    whole[rows] = some
            return out

        parts = self._by_chunk(chunk, evidence, work, threads)
        if not parts:
            parts = [[native(np.empty((0, len(self.ensemble.columns))), 1)] * n]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


class Cases(NamedTuple):
    """The hypotheses of rows, those of a row one after the other."""

    row: NDArray[np.intp]
    chance: Floats
    n_rows: int

    def mean(self, values: Floats) -> Floats:
        """Means over the hypotheses of each row, (rows, ...), given a value for each hypothesis."""
        out = np.zeros((self.n_rows, *values.shape[1:]))
        np.add.at(out, self.row, (self.chance * values.T).T)
        return out


def mean_of_cases(cases: Cases, answers: Sequence[Floats]) -> list[Floats]:
    """Answers and errors of rows from those of their hypotheses."""
    return [cases.mean(each) for each in answers]


def moments_of_cases(cases: Cases, answers: Sequence[Floats]) -> list[Floats]:
    """Means and standard deviations of rows with their errors, from those of hypotheses."""
    of_mean, of_std, error, std_error = answers
    mean = cases.mean(of_mean)
    apart = of_mean - mean[cases.row]
    std = np.sqrt(cases.mean(of_std**2 + apart**2))
    return [mean, std, cases.mean(error), cases.mean(std_error)]


def by_class(entries: Mapping[type, T], density: Any) -> T | None:
    """The entry for a density's class, or for its nearest base class.

    Examples
    --------
    >>> from knothole.densities.mixture.density import Factorized
    >>> by_class(ENGINES, Factorized()).__name__, by_class(ENGINES, GaussianMixture())
    ('MixtureEngine', None)
    """
    return next((entries[kind] for kind in type(density).__mro__ if kind in entries), None)


# The most trees whose second moments are exact by default: the work grows with the square of
# their number.
EXACT_TREES = 16
# Answers whose relative difference is smaller are equal up to rounding.
ROUNDING = 1e-13
# Words of draws that estimate the spread of a model's outputs without training rows.
WORDS_FOR_SPREAD = 8


def _spread_under(engine: MonteCarloEngine) -> Spread:
    """The spread of outputs over rows drawn from the density."""
    nothing = Evidence(np.full((1, engine.n_variables), np.nan))
    margins = engine.margins(nothing, range(WORDS_FOR_SPREAD))
    return Spread.of(engine.ensemble, margins.reshape(-1, engine.ensemble.n_outputs))
