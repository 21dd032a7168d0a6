"""Mixtures of Gaussians with full, tied or low-rank covariance, for correlated columns."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole._core import gaussian_em as core
from knothole.arrays import Floats
from knothole.checks import check_array, check_chances, check_choice, check_whole, require
from knothole.columns.columns import Evidence
from knothole.densities.base import Density, Within
from knothole.densities.em import Run
from knothole.densities.gaussian.draws import Drawing, Normals
from knothole.densities.gaussian.em import (
    GaussianComponents,
    Prior,
    ScoreRows,
    moments,
)
from knothole.densities.gaussian.learner import NOT_RECORDED as NOT_RECORDED_CODE
from knothole.densities.gaussian.learner import (
    RECORDED,
    GaussianLearner,
    Layout,
    sizes_for,
)
from knothole.densities.gaussian.normal_scores import NormalScores
from knothole.densities.normal import MOST_INTERVALS, box_mass
from knothole.densities.search import learn
from knothole.densities.univariate.base import FARTHEST, Univariate, log_of, log_sum_exp, part_of
from knothole.densities.univariate.discrete import Categorical
from knothole.densities.univariate.families import (
    check_distributions,
    distribution_arrays,
    distributions_from,
)
from knothole.errors import InvalidInput
from knothole.out_of_core.partitions import Partitions

# Rows whose conditional moments are in memory at once.
MOMENT_ROWS = 256


@dataclass(eq=False, repr=False)
class GaussianMixture(Density):
    """A mixture of Gaussians over numeric variables, with discrete ones beside them.

    Given the component, numeric variables are jointly normal and categorical variables are
    independent. A numeric column is either standardised or mapped to normal scores (by rank, a
    Gaussian copula), which fits skewed columns and columns whose values repeat; the details, and
    what log density means there, are in :mod:`knothole.densities.gaussian.normal_scores`.

    Parameters
    ----------
    n_components : int or "auto"
        Number of components. "auto": from 1,000 rows on as many as there are rows for their
        covariances (four for three parameters, at most 32 components); of fewer rows the best of
        1, 2, 4, ... by held-out log p.
    covariance : "full", "tied" or "low-rank"
        Of each component its own, one for all, or of each its own of the form F F' + diagonal.
    rank : int, optional
        Columns of F for "low-rank"; by default the square root of the number of variables.
    normal_scores : bool, "repeated" or "auto"
        Whether columns are mapped by rank. "repeated": columns whose values repeat and whole
        numbers are. "auto": the others too, if that has the better held-out log p.
    strength : float or "auto"
        Weight of the prior in rows, per component: normal-inverse-Wishart centred on the table's
        own covariance, Dirichlet for discrete variables. "auto" is 2.
    max_iter : int
        Most steps of EM.
    tol : float
        Training stops when a step gains less log likelihood than this per row, and those to come,
        as far as gains shrink, promise less than ten times as much.
    n_init : int
        Starts, of which the best is trained to the end. The first is a single component, of which
        parts are split; others are around rows at random.
    validation_fraction : float
        Part of the rows held out to stop training before it overfits; 0 for none. The last
        steps are made on all rows.
    random_state : int, RandomState or None
        Seed of starts, splits and draws.
    verbose : bool
        Whether to print progress.

    Attributes
    ----------
    weights_ : float64 (components,)
    means_ : float64 (components, numeric variables)
        In units of the scores, as the covariances are.
    covariances_ : float64 (components, numeric variables, numeric variables)
    distributions_ : tuple of Univariate
        One for each categorical variable, then for each nullable numeric one whether it is
        recorded.
    scores_ : NormalScores
        The maps of the numeric variables.
    strength_ : float
        Weight of the prior that was used.
    n_iter_ : int
        Steps of EM on the training part.
    converged_ : bool
    objective_ : float64 (passes,)
        Log likelihood of the training part (where values repeat, a lower bound of it) plus log
        prior, before each step.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(500, 1))
    >>> X = np.hstack([x, 2 * x + 0.1 * rng.normal(size=(500, 1))])
    >>> density = GaussianMixture(n_components=1, random_state=0).fit(X)
    >>> draws = density.complete([[1.0, np.nan]], draws=64)
    >>> bool(abs(draws[0, :, 1].mean() - 2) < 0.1)
    True
    """

    draws_hypotheses = True
    stored_arrays = ("weights", "means", "covariances")

    n_components: int | Literal["auto"] = "auto"
    _: KW_ONLY
    covariance: Literal["full", "tied", "low-rank"] = "full"
    rank: int | None = None
    normal_scores: bool | Literal["repeated", "auto"] = "auto"

    weights_: Floats = field(init=False)
    means_: Floats = field(init=False)
    covariances_: Floats = field(init=False)
    distributions_: tuple[Univariate, ...] = field(init=False)
    scores_: NormalScores = field(init=False)

    # ---- learning ----------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_whole("n_components", self.n_components, also=["auto"])
        check_choice("covariance", self.covariance, ("full", "tied", "low-rank"))
        check_whole("rank", self.rank, also=[None])
        check_choice("normal_scores", self.normal_scores, (True, False, "repeated", "auto"))

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        rows, training = self._prepared(evidence, weight)
        layout = self._layout
        rank = None
        if self.covariance == "low-rank":
            rank = self.rank or max(1, round(len(layout.numeric) ** 0.5))
        ways = layout.ways_to_read(rows, self.normal_scores)
        tied = self.covariance == "tied"
        learners = [GaussianLearner.of(rows, training, by_rank, tied, rank) for by_rank in ways]
        given = self.n_components
        sizes = sizes_for(rows, len(layout.numeric)) if given == "auto" else [int(given)]
        learner, run = learn(learners, sizes, self._given_strength)
        self._adopt(run)
        self.scores_ = learner.scores
        self.normal_scores_ = bool(learner.by_rank.all()) or "repeated"

    def _adopt(self, run: Run[GaussianComponents]) -> None:
        super()._adopt(run)
        self.weights_, self.means_ = run.parameters.weight, run.parameters.mean
        self.covariances_ = np.ascontiguousarray(run.parameters.covariance)
        self.distributions_ = run.parameters.discrete

    def encoded(self, evidence: Evidence, weight: Floats) -> ScoreRows:
        """Rows as EM takes them."""
        return self._layout.rows(evidence, weight, self.scores_, self.distributions_).by_pattern()

    def _prior(self, rows: Partitions) -> Prior:
        if self.covariance == "low-rank":
            raise InvalidInput(
                "covariance='low-rank' is learned from rows in memory only; use 'full' or 'tied', "
                "or fit a sample of the rows."
            )
        tied = self.covariance == "tied"
        return Prior.from_moments(rows.summed(moments), self.strength_, tied)

    # ---- questions ---------------------------------------------------------------------------

    @property
    def _parameters(self) -> GaussianComponents:
        return GaussianComponents(
            self.weights_, self.means_, self.covariances_, self.distributions_
        )

    @property
    def _layout(self) -> Layout:
        return Layout.of(self.variables_)

    def _log_joint(self, evidence: Evidence) -> Floats:
        weight = np.ones(len(evidence.points))
        rows = self._layout.rows(evidence, weight, self.scores_, self.distributions_)
        return self._parameters.log_joint(rows)

    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,).

        Intervals of one or two numeric variables are exact. There is no closed form for more at
        once: an error says so.
        """
        joint = self._log_joint(evidence)
        intervals = []
        for region in within:
            if region.codes is None:
                intervals.append(region)
            else:
                joint = joint + self._log_set(region)
        if intervals:
            parts = (evidence[i : i + MOMENT_ROWS] for i in range(0, len(joint), MOMENT_ROWS))
            masses = [self._interval_masses(self._moments(part), intervals) for part in parts]
            joint = joint + log_of(np.concatenate(masses)) if masses else joint
        return np.asarray(log_sum_exp(joint, axis=1))

    def region_masses(self, evidence: Evidence, regions: Sequence[Within]) -> Floats:
        """See :meth:`Density.region_masses`; conditional moments are computed once."""
        _, share = self.responsibilities(evidence)
        out = np.zeros((len(share), len(regions)))
        for start in range(0, len(share), MOMENT_ROWS):
            part = evidence[start : start + MOMENT_ROWS]
            mean, covariance = self._moments(part)
            for i, region in enumerate(regions):
                rows = np.flatnonzero(np.isnan(part.points[:, region.variable]))
                own = share[start + rows]
                if region.codes is None:
                    mass = self._interval_masses((mean[rows], covariance[rows]), [region])
                else:
                    mass = np.broadcast_to(np.exp(self._log_set(region)), own.shape)
                # Not numpy's sum, whose order depends on the number of rows.
                out[start + rows, i] = sum(a * b for a, b in zip(own.T, mass.T, strict=True))
        return out

    def _log_set(self, region: Within) -> Floats:
        """Log mass of a set of categories in each component."""
        place = self._layout.categorical.tolist().index(region.variable)
        allowed = np.zeros((1, len(self.variables_[region.variable].levels)), dtype=np.bool_)
        allowed[0, list(region.codes or ())] = True
        return log_of(self.distributions_[place].set_mass(allowed)[0])

    def _interval_masses(self, moments: tuple[Floats, Floats], regions: list[Within]) -> Floats:
        """Mass of all regions at once, in each component, (rows, k), from conditional moments.

        A nullable variable is recorded and in its interval, or not recorded, where that counts.
        """
        layout = self._layout
        ways: list[list[tuple[bool, Floats]]] = []
        for region in regions:
            if region.variable not in layout.flagged:
                ways.append([(True, np.ones(len(self.weights_)))])
                continue
            place = len(layout.categorical) + layout.flagged.tolist().index(region.variable)
            chance = np.exp(self.distributions_[place].natural().table)
            ways.append([(True, chance[RECORDED])])
            if region.not_recorded:
                ways[-1].append((False, chance[NOT_RECORDED_CODE]))
        total = np.zeros((len(moments[0]), len(self.weights_)))
        for way in itertools.product(*ways):
            inside = [region for region, (used, _) in zip(regions, way, strict=True) if used]
            chance = np.multiply.reduce([one for _, one in way])
            total += chance * self._joint_mass(moments, inside)
        return total

    def _joint_mass(self, moments: tuple[Floats, Floats], regions: list[Within]) -> Floats | float:
        """Mass of intervals of numeric variables, all recorded, (rows, k)."""
        layout = self._layout
        bounded = [r for r in regions if r.low > -np.inf or r.high < np.inf]
        if not bounded:
            return 1.0
        if len(bounded) > MOST_INTERVALS:
            names = [self.variables_[r.variable].name for r in bounded]
            raise InvalidInput(
                f"within: a {type(self).__name__} has no closed form for the mass of more than two "
                f"intervals of numeric variables at once; got {names}. Take the share of draws "
                f"from complete(X, draws) that fall into them."
            )
        place = [layout.numeric.tolist().index(r.variable) for r in bounded]
        low = [self.scores_.position(j, r.low) for j, r in zip(place, bounded, strict=True)]
        high = [self.scores_.position(j, r.high) for j, r in zip(place, bounded, strict=True)]
        mean, covariance = moments
        some: Any = place if len(place) > 1 else slice(place[0], place[0] + 1)  # no copy
        box = mean[..., some], covariance[..., some, :][..., some]
        return box_mass(*box, np.array(low), np.array(high))

    def _moments(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Conditional means and covariances of all scores, (rows, k, d) and (rows, k, d, d)."""
        z, _, _ = self.scores_.encode(evidence.points[:, self._layout.numeric])
        packed = self._parameters.packed()
        k, d = self.means_.shape
        mean, covariance = np.empty((len(z), k, d)), np.zeros((len(z), k, d, d))
        core.moments(z, packed, mean, covariance)
        return mean, covariance

    def conditional(self, evidence: Evidence) -> tuple[Floats, Floats, Floats]:
        """What p says of each row's missing values: a mixture of normals, exactly.

        Returns
        -------
        responsibilities : float64 (rows, components)
        means : float64 (rows, components, numeric variables)
            Of columns that are only standardised in their own units, of the others in normal
            scores; what is observed as it is.
        covariances : float64 (rows, components, numeric variables, numeric variables)
            Zero where a variable is observed.
        """
        _, share = self.responsibilities(evidence)
        mean, covariance = self._moments(evidence)
        location, scale = self.scores_.units()
        return share, location + scale * mean, covariance * scale[:, None] * scale

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(evidence), (rows,), and p(component | evidence), (rows, components).

        A row that no component can have has log p = -inf and the weights for responsibilities.
        """
        joint = self._log_joint(evidence)
        log_p = log_sum_exp(joint, axis=1, keepdims=True)
        possible = np.isfinite(log_p)
        share = np.exp(joint - np.where(possible, log_p, 0.0))
        return log_p[:, 0], np.where(possible, share, self.weights_)

    def threshold_scores(self, variable: int, thresholds: Floats) -> Floats:
        """The score z of each threshold of a numeric variable: P(X < threshold) = P(Z < z)."""
        place = self._layout.numeric.tolist().index(variable)
        low, high = self.scores_.limits[place]
        found = self.scores_.positions(place, thresholds)
        return np.where(thresholds <= low, -np.inf, np.where(thresholds > high, np.inf, found))

    def number_weights(self) -> NDArray[np.int64]:
        """1 of a numeric variable, 2 of one that may be "not recorded", else 0, (variables,).

        A row whose variables that are not finite add up to 1 lacks a single number, whose
        distribution the sampler can describe.
        """
        weight = np.zeros(len(self.variables_), dtype=np.int64)
        weight[self._layout.numeric] = 1
        weight[self._layout.flagged] = 2
        return weight

    def distributions_of_categories(self) -> dict[int, Univariate]:
        """The distribution of each categorical variable, by its number."""
        return dict(zip(self._layout.categorical.tolist(), self.distributions_, strict=False))

    @property
    def coordinate_variables(self) -> NDArray[np.int64]:
        """The component, then numeric variables, then discrete ones."""
        layout = self._layout
        return np.concatenate([[-1], layout.numeric, layout.categorical, layout.flagged])

    def draw(self, evidence: Evidence, uniform: Floats) -> Floats:
        """See :meth:`Density.draw`."""
        return self._drawing.draw(evidence, uniform)

    def describe_number(self, evidence: Evidence) -> Normals:
        """The distributions of the scores of the rows' only missing numbers."""
        return self._drawing.describe_number(evidence)

    @property
    def _drawing(self) -> Drawing:
        """Made once for the parameters that there are."""
        self._check_fitted()
        parameters = (
            self.weights_, self.means_, self.covariances_, self.distributions_, self.scores_
        )  # fmt: skip
        made = self.__dict__.get("_made")
        if made is not None and all(map(operator.is_, made[0], parameters)):
            drawing: Drawing = made[1]
            return drawing
        components, layout = self._parameters, self._layout
        own = len(self.columns_.variables)
        discrete = layout.discrete_tables(self.distributions_, own, len(self.weights_))
        sharpness = components.sharpness(self.scores_.repeats)
        drawing = Drawing(components.packed(), sharpness, self.scores_, layout.numeric, discrete)
        self.__dict__["_made"] = parameters, drawing
        return drawing

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made of the parameters."""
        return {name: value for name, value in vars(self).items() if name != "_made"}

    # ---- storage -----------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """With the maps and the discrete distributions."""
        header, arrays = super().state()
        arrays |= {f"scores.{name}": array for name, array in self.scores_.arrays().items()}
        return header, arrays | distribution_arrays(self.distributions_)

    def restore(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """With the maps and the discrete distributions."""
        super().restore(header, arrays)
        self.scores_ = NormalScores.from_arrays(part_of(arrays, "scores"))
        families = [Categorical.family] * self._layout.n_discrete
        self.distributions_ = distributions_from(families, arrays)

    def check(self) -> None:
        """With the components, the maps and the discrete distributions."""
        super().check()
        layout = self._layout
        k, d = len(self.weights_), len(layout.numeric)
        check_chances("weights", self.weights_, (k,))
        check_array("means", self.means_, (k, d))
        check_array("covariances", self.covariances_, (k, d, d))
        extent = max(np.abs(self.means_).max(initial=0), np.abs(self.covariances_).max(initial=0))
        require(extent < FARTHEST, "means and covariances must be of scores")
        turned = self.covariances_.transpose(0, 2, 1)
        require(np.allclose(self.covariances_, turned), "covariances must be symmetric")
        np.linalg.cholesky(self.covariances_)
        self.scores_.check(d)
        discrete = layout.discrete
        check_distributions(discrete, self.distributions_, [k] * len(discrete))
