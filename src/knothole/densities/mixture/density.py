"""Mixtures of products, and the product alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from knothole._core import mixture as kernels
from knothole.arrays import Floats
from knothole.checks import check_chances, check_whole
from knothole.columns.columns import Evidence, Kind
from knothole.densities.base import LatentDensity, Within
from knothole.densities.circuit.density import Circuit, mixture_to_circuit
from knothole.densities.em import (
    FIRST_ROWS,
    SHORT,
    STRENGTH,
    EncodedRows,
    Learner,
    Run,
    Training,
    WeightedRows,
    train,
)
from knothole.densities.held_out import FEW_ROWS, FOLDS
from knothole.densities.mixture.em import ProductMixture, assign, comparable, start
from knothole.densities.search import can_hold_out, learn, split
from knothole.densities.univariate.base import Univariate, log_of, log_sum_exp
from knothole.densities.univariate.families import prefers_histogram, with_continuous
from knothole.densities.univariate.packed import pack

# The least complete rows (or equivalent pairs of values) per component, on average.
ROWS_PER_COMPONENT = 5
MAX_COMPONENTS = 32
# Families are compared with a component for so many rows, at most so many components, on this
# part of the rows, if there are enough; another than Gaussians must gain this much per column.
COMPARED_ROWS = 100
COMPARED_WITH = 32
COMPARED_ON = 0.25
TOO_FEW_TO_COMPARE = 300
COMPARED_GAIN = 0.01
# Gain per row at which independent variables stop, and their most steps.
TOL_OF_ONE = 1e-10
MAX_ITER_OF_ONE = 500


@dataclass(frozen=True, eq=False)
class ProductLearner(Learner):
    """Learns mixtures of products, with a univariate distribution for each variable.

    Attributes
    ----------
    named : mapping
        Families that the user chose, by variable.
    chosen : mapping or None
        Families of other variables; None: those that fit each variable on its own.
    distributions : tuple of Univariate
        The marginals of the rows, with one state, on which priors are centred.
    comparable : float64 (rows, variables)
        The first rows with variables on a common scale, to find distant starting points.
    """

    named: Mapping[str, str]
    chosen: Mapping[str, str] | None
    distributions: tuple[Univariate, ...]
    comparable: Floats

    @classmethod
    def of(
        cls,
        rows: WeightedRows,
        training: Training,
        named: Mapping[str, str],
        chosen: Mapping[str, str] | None,
        **more: Any,
    ) -> Self:
        """A learner for these rows."""
        families = continuous_families(rows) if chosen is None else chosen
        distributions = rows.marginals({**families, **named})
        encoded = EncodedRows.of(rows, distributions)
        first = comparable(rows[:FIRST_ROWS].points(), rows.variables)
        return cls(rows, encoded, training, named, chosen, distributions, first, **more)

    def on(self, rows: WeightedRows) -> Self:
        """A learner for other rows; columns are read as these rows alone suggest."""
        return self.of(rows, self.training, self.named, self.chosen)

    def alone(self) -> Self:
        """The learner for independent variables, each with the family that fits it on its own."""
        if self.chosen is None:
            return self
        distributions = self.rows.marginals({**continuous_families(self.rows), **self.named})
        encoded = EncodedRows.of(self.rows, distributions)
        return replace(self, encoded=encoded, chosen=None, distributions=distributions)

    def encode(self, rows: WeightedRows) -> EncodedRows:
        """Rows encoded by the distributions."""
        return EncodedRows.of(rows, self.distributions)

    def start(self, size: int, prior: float, number: int) -> Any:
        """Components around rows that are far apart."""
        rng = np.random.default_rng([self.training.seed, size, number])
        category = [v.kind is Kind.CATEGORICAL for v in self.rows.variables]
        value, weight = self.comparable[: len(self.rows)], self.encoded.weight
        nearest = assign(value, np.array(category, dtype=np.bool_), weight, size, rng)
        return start(self.encoded, nearest, self.distributions, size, prior)

    def fit(self, size: int, strength: float, held: Any = None) -> Run[Any]:
        """The best of several starts; a single component has only one maximum.

        Finding it takes more than one step only if sets of categories are known.
        """
        if size > 1:
            return super().fit(size, strength, held)
        rows = float(self.encoded.weight.sum())
        tight = replace(self.training, tol=TOL_OF_ONE, max_iter=MAX_ITER_OF_ONE)
        marginals = ProductMixture(np.ones(1), self.distributions)
        run = train(
            lambda mixture: mixture.stepped(mixture.expect(self.encoded), strength),
            marginals, strength, rows, tight,
        )  # fmt: skip
        gain = run.objective[-1] - run.objective[-2:][0]
        return replace(run, converged=bool(gain < self.training.tol * rows))


def continuous_families(rows: WeightedRows, family: str | None = None) -> dict[str, str]:
    """The same family for all continuous variables, combined with point masses where needed.

    By default the family that fits each variable on its own.
    """
    families = {}
    for variable, x in zip(rows.variables, rows[:FIRST_ROWS].points().T, strict=True):
        if variable.kind is Kind.CONTINUOUS:
            values = family or ("histogram" if prefers_histogram(x) else "gaussian")
            families[variable.name] = with_continuous(values, variable, x)
    return families


def sizes_for(rows: WeightedRows) -> list[int]:
    """Sizes to choose from: 1, 2, 4, ... if rows are few; otherwise 1 or as many as possible.

    Components are learned from pairs of variables, so a row counts by the fraction of its pairs
    that it observes.
    """
    points = rows.evidence.points
    known = points.shape[1] - np.isnan(points).sum(axis=1)[rows.order]
    pairs = max(1, points.shape[1] * (points.shape[1] - 1))
    worth = float((known * (known - 1)).sum()) / pairs
    sizes = [1]
    while 2 * sizes[-1] <= min(MAX_COMPONENTS, worth / ROWS_PER_COMPONENT):
        sizes.append(2 * sizes[-1])
    sizes = rows.affordable(sizes)
    return sizes if len(rows) < FEW_ROWS or len(sizes) < 2 else [1, sizes[-1]]


def learn_latents(
    kind: type[ProductLearner],
    rows: WeightedRows,
    training: Training,
    sizes: list[int],
    density: LatentDensity,
) -> Run[Any]:
    """The result of training a learner of this kind, with one of these sizes."""
    named = density.families or {}
    chosen: Mapping[str, str] | None = None if sizes[-1] == 1 else {}
    if sizes[-1] > 1 and can_hold_out(training, len(rows)):
        chosen = choose_families(rows, training, named)
    learner = kind.of(rows, training, named, chosen)
    return learn([learner], sizes, density._given_strength)[1]


def choose_families(
    rows: WeightedRows, training: Training, named: Mapping[str, str]
) -> dict[str, str]:
    """Families of the continuous variables, by held-out log p.

    A Gaussian can follow correlated columns closely, a histogram the shape of a single column;
    which matters more depends on all columns together. So a small mixture is trained with each, and
    with the families that fit each column on its own. Densities that are compared all learn from
    the same rows, so the last choices are cached.
    """
    rows = rows[:FIRST_ROWS]
    asked = _digest(rows, training, named)
    chosen = _last_choices.get(asked)
    if chosen is None:
        chosen = _compared(rows, training, named)
        for oldest in list(_last_choices)[: -FOLDS or None]:
            _last_choices.pop(oldest, None)
        _last_choices[asked] = chosen
    return dict(chosen)


# Choices for each fold, and for all rows.
_last_choices: dict[bytes, dict[str, str]] = {}


def _digest(rows: WeightedRows, training: Training, named: Mapping[str, str]) -> bytes:
    """A hash of everything that the choice depends on."""
    found = rows.evidence[rows.order]
    how = training.tol, training.fraction, training.may_mask, training.seed
    variables = [
        (v.name, v.kind.name, len(v.levels), v.columns, v.nullable) for v in rows.variables
    ]
    said = hashlib.sha256(repr((variables, how, sorted(named.items()))).encode())
    for array in (found.points, rows.own_weight(), found.allowed):
        said.update(b"" if array is None else array.tobytes())
    return said.digest()


def _compared(rows: WeightedRows, training: Training, named: Mapping[str, str]) -> dict[str, str]:
    options = [continuous_families(rows, family) for family in ("gaussian", "histogram", None)]
    options = [{n: family for n, family in option.items() if n not in named} for option in options]
    distinct = [option for i, option in enumerate(options) if option not in options[:i]]
    if len(distinct) == 1 or len(rows) < TOO_FEW_TO_COMPARE:
        return distinct[0]
    size = max(2, min(COMPARED_WITH, len(rows) // COMPARED_ROWS))
    size = rows.affordable([2, size])[-1]
    quick = replace(training, n_init=1, max_iter=SHORT)
    scores = []
    for option in distinct:
        learner = ProductLearner.of(rows, quick, named, option)
        some, held = split(learner, COMPARED_ON)
        scores.append(some.fit(size, STRENGTH, some.encode(held)).held_out)
        training.report(f"{sorted(set(option.values()))}: held-out log p {scores[-1]:.4f}")
    # More components, as in the final mixture, help Gaussians more: others must clearly be better.
    for number in range(1, len(scores)):
        scores[number] -= COMPARED_GAIN * len(distinct[0])
    return distinct[int(np.argmax(scores))]


@dataclass(eq=False, repr=False)
class Mixture(LatentDensity):
    """A mixture of products: given its component, a row's variables are independent.

    Parameters
    ----------
    n_components : int or "auto"
        Number of components; "auto" is 32 from 1,000 rows on, or 1 where held-out rows do not
        say that variables depend on each other; of fewer rows the best of 1, 2, 4, ... by held-out
        log p.
    families : mapping from a variable's name to a family, optional
        Families for some variables ("gaussian", "histogram", "integer", ...); the others' are
        chosen from the data.
    strength : float or "auto"
        Weight of the prior in rows, per component: Dirichlet and normal-inverse-gamma priors
        centred on the columns' own distributions. "auto" is 1, or 20 times
        as much, where that suits fewer than 1,000 rows better.
    max_iter : int
        Most steps of EM.
    tol : float
        Training stops when a step gains less log likelihood than this per row, and those to come,
        as far as gains shrink, promise less than ten times as much.
    n_init : int
        Starts, of which the best is trained to the end.
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
    distributions_ : tuple of Univariate
        One for each variable.
    n_iter_ : int
        Steps of EM on the whole training part.
    converged_ : bool
    objective_ : float64 (passes,)
        Log likelihood of the training part plus log prior, before each step.
    strength_ : float
        The strength of the prior that was used.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> centre = rng.choice([-2.0, 2.0], size=(500, 1))
    >>> X = centre + 0.1 * rng.normal(size=(500, 2))
    >>> density = Mixture(n_components=2, random_state=0).fit(X)
    >>> missing = np.nan
    >>> bool(abs(density.complete([[2.0, missing]], draws=50)[0, :, 1].mean() - 2) < 0.1)
    True
    """

    stored_arrays = ("weights",)

    n_components: int | Literal["auto"] = "auto"
    _: KW_ONLY
    n_init: int = 3

    weights_: Floats = field(init=False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_whole("n_components", self.n_components, also=["auto"])

    def _fit(self, evidence: Evidence, weight: Floats) -> None:
        rows, training = self._prepared(evidence, weight)
        sizes = sizes_for(rows) if self.n_components == "auto" else [int(self.n_components)]
        self._adopt(learn_latents(ProductLearner, rows, training, sizes, self))

    def _adopt(self, run: Run[ProductMixture]) -> None:
        super()._adopt(run)
        self.weights_, self.distributions_ = run.parameters.weight, run.parameters.distributions

    def encoded(self, evidence: Evidence, weight: Floats) -> EncodedRows:
        """Rows as EM takes them."""
        return EncodedRows(pack(self.distributions_, evidence), weight)

    @property
    def _parameters(self) -> ProductMixture:
        return ProductMixture(self.weights_, self.distributions_)

    @property
    def distribution_states(self) -> list[int]:
        """The number of components, for each variable."""
        return [len(self.weights_)] * len(self.variables_)

    def check(self) -> None:
        """Also checks the weights."""
        check_chances("weights", self.weights_, (None,))
        super().check()

    def responsibilities(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Log p(evidence), (rows,), and p(component | evidence), (rows, components).

        A row that no component can have has log p = -inf and the weights for responsibilities.
        """
        packed = pack(self.distributions_, evidence, passing=True)
        return self._parameters.responsibilities(packed)

    def region_masses(self, evidence: Evidence, regions: Sequence[Within]) -> Floats:
        """See :meth:`Density.region_masses`; the state of every variable is the component."""
        _, share = self.responsibilities(evidence)
        return self.masses_given_states(dict.fromkeys(range(len(self.variables_)), share), regions)

    def log_evidence(self, evidence: Evidence, within: Iterable[Within] = ()) -> Floats:
        """Log p(evidence, and the variables in ``within`` in their regions), (rows,)."""
        regions = sum((self.log_region(region) for region in within), np.zeros(len(self.weights_)))
        return self._parameters.score(pack(self.distributions_, evidence), regions)

    def combine(self, terms: list[Floats]) -> Floats:
        """Log p of rows from their terms: the slow twin of the compiled sums."""
        return np.asarray(log_sum_exp(np.add.reduce(terms) + log_of(self.weights_), axis=1))

    @property
    def state_coordinates(self) -> int:
        """One, for the component."""
        return 1

    def draw_states(
        self, evidence: Evidence, uniform: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The component of every draw, for each variable."""
        log_p, share = self.responsibilities(evidence)
        component = np.empty(uniform.shape[:2], dtype=np.int64)
        kernels.pick(share, np.ascontiguousarray(uniform[:, :, 0]), component)
        states = np.broadcast_to(
            component[:, :, None], (*component.shape, len(self.distributions_))
        )
        return states, np.isneginf(log_p)

    def to_circuit(self) -> Circuit:
        """The same density as a circuit of sums, products and distributions."""
        self._check_fitted()
        return mixture_to_circuit(self, self.weights_)


class Factorized(Mixture):
    """All variables independent: a mixture of one component.

    Parameters
    ----------
    families : mapping from a variable's name to a family, optional
        Families for some variables; the others' are chosen from the data.
    random_state : int, RandomState or None
        Seed of draws.

    Examples
    --------
    >>> density = Factorized().fit([[0.0, "red"], [1.0, "blue"], [None, "red"]])
    >>> float(density.score_samples([[None, None]])[0])
    0.0
    """

    def __init__(
        self,
        *,
        families: Mapping[str, str] | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(1, families=families, random_state=random_state)
