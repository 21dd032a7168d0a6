"""scikit-learn meta-estimators: fit a tree model, a density, and if asked new leaves, in one go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    RegressorMixin,
    is_classifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from knothole.checks import check_choice
from knothole.columns.columns import Columns, Kind, OneHotGroups, one_hot_groups
from knothole.columns.read import HandleUnknown, as_table
from knothole.densities.base import Density
from knothole.densities.cache import cached_densities
from knothole.errors import InvalidInput, UnseenCategory
from knothole.growing import Lesson, learn, ways_of
from knothole.inspection.acquisition import Acquisition
from knothole.inspection.shapley import Explanation, Groups
from knothole.leaves.induction import DRAWS
from knothole.leaves.options import RefitOptions
from knothole.missingness.inference import NanPolicy
from knothole.progress import Verbose
from knothole.robust import Robust
from knothole.trees.libraries import unfitted, weight_name
from knothole.trees.pipelines.composed import is_composed
from knothole.wrapping import wrap

if TYPE_CHECKING:
    import pandas as pd

    from knothole.serve import Serving

# In the docstrings of both meta-estimators.
SHARED = """Parameters
    ----------
    estimator : object
        A model of XGBoost, LightGBM, CatBoost or scikit-learn; or one that is fitted, in
        ``sklearn.frozen.FrozenEstimator`` or with ``prefit=True``.
    density : str, Density, sequence of densities, or any object with ``complete``
        See :func:`knothole.wrap`.
    refit_leaves : None, True, "auto", dict or RefitOptions
        Whether to refit leaf values for rows with missing values; a dictionary holds
        arguments of :meth:`Robust.refit_leaves`. "auto": where that predicts rows held out better
        (with ``learn="auto"`` this is tried for own trees only).
    learn : {"own", "expected", "auto"}
        "own" trains the estimator on the table as it is. "expected" grows its trees under the
        expected loss: it is trained on weighted draws of the incomplete rows, drawn from
        p(x_m | x_o, y) (:func:`knothole.expand`). Every missing value is integrated over then, but
        in columns in which it says something of y it is "not recorded" (with
        ``nan_policy="lost"`` nowhere). "auto" is what predicts rows held out better (than own
        trees with refitted leaves: by more than its standard error). Without missing values all are
        the same.
    n_draws : int
        Draws of each incomplete row, for "expected"; fewer where they would take up more
        than 2 GiB. Forests and bags of scikit-learn hold one draw of the table at a time,
        however many draws: each of their trees has one of its own.
    redraw : float or "auto"
        Part of what is observed in incomplete rows that is drawn anew as well. The rows
        are still draws from p, but tell less of the noise in y: good where that is large and p
        is near the truth. "auto": 0, and for ``learn="auto"`` also 0.3, if that is better.
    correction : {"auto", True, False}
        See :func:`knothole.wrap`; with ``refit_leaves`` or ``learn`` there is no correction.
    prefit : bool
        Whether ``estimator`` is fitted already and used as it is.
    memory : None, path or joblib.Memory
        Where densities are cached, as in scikit-learn's Pipeline: a density that has learned from
        the same table, weights and settings before is read from there. A search over parameters of
        ``estimator`` then learns each density once for each fold. What depends on the model (the
        choice between densities, the correction, leaves) is never cached.
    handle_unknown : {"auto", "error", "missing"}
        What a category is that training did not have, unless a method is told otherwise. In
        cross-validation a rare category may be missing from the folds a model is trained on.
        "auto": "missing" where ``estimator`` is a pipeline whose encoders all take unknown
        categories (such as ``OneHotEncoder(handle_unknown="ignore")``), otherwise "error".
    columns, one_hot, nan_policy, random_state, verbose
        See :func:`knothole.wrap`. With ``refit_leaves`` the policy is "lost".

    Attributes
    ----------
    estimator_ : object
        The fitted model.
    robust_ : Robust
        What answers, with all that is known of it: ``ensemble_``, ``columns_``,
        ``nan_policy_``, ``refit_``, ``conformal_``, ``correction_``. Its methods are here too.
    density_ : Density
        What missing values are integrated under.
    selection_ : DataFrame or None
        How the candidates for it did.
    trial_ : DataFrame or None
        The ways to learn that were compared, their mean losses of rows held out, and the standard
        errors of what these are more than the least."""


class _ExpectedEstimator(MetaEstimatorMixin, BaseEstimator):
    """What the regressor and the classifier share."""

    robust_: Robust
    estimator_: Any
    trial_: pd.DataFrame | None

    def __init__(
        self,
        estimator: Any,
        *,
        density: Any = "auto",
        refit_leaves: Any = None,
        learn: Literal["own", "expected", "auto"] = "own",
        n_draws: int = DRAWS,
        redraw: float | Literal["auto"] = "auto",
        correction: Any = "auto",
        prefit: bool = False,
        memory: Any = None,
        columns: Columns | None = None,
        one_hot: OneHotGroups | None = None,
        nan_policy: NanPolicy = "infer",
        handle_unknown: HandleUnknown | Literal["auto"] = "auto",
        random_state: Any = 0,
        verbose: Verbose = "auto",
    ) -> None:
        self.estimator, self.prefit, self.handle_unknown = estimator, prefit, handle_unknown
        self.density, self.refit_leaves, self.correction = density, refit_leaves, correction
        self.learn, self.n_draws, self.redraw, self.memory = learn, n_draws, redraw, memory
        self.columns, self.one_hot, self.nan_policy = columns, one_hot, nan_policy
        self.random_state, self.verbose = random_state, verbose

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__doc__ = (cls.__doc__ or "").replace("{shared}", SHARED)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit the model on the table as it is, then the density; then refit the leaves, if asked.

        Parameters
        ----------
        X : table
            Missing values are allowed where the model itself can be trained on them.
        y : array (rows,)
        sample_weight : array (rows,), optional
            For the model, the density and the leaves.
        **fit_params
            For the model's own ``fit``.
        """
        check_choice("handle_unknown", self.handle_unknown, ("auto", "error", "missing"))
        table, targets = self._checked(X, y)
        if sample_weight is not None:
            fit_params["sample_weight"] = sample_weight
        self._dummies_ = [] if is_composed(self.estimator) else _dummies(table)
        self.trial_ = None
        with cached_densities(self.memory):
            if self.learn != "own" or self.refit_leaves == "auto":
                return self._induced(table, targets, fit_params)
            return self._wrapped(table, targets, fit_params)

    @overload
    def predict(self, X: Any, return_std: Literal[False] = ..., **options: Any) -> NDArray[Any]: ...
    @overload
    def predict(
        self, X: Any, return_std: Literal[True], **options: Any
    ) -> tuple[NDArray[Any], ...]: ...

    def predict(self, X: Any, return_std: bool = False, **options: Any) -> Any:
        """Expected prediction given what is observed, and if asked its standard deviation.

        Options are those of :meth:`Robust.predict`: ``return_error``, ``quantiles``, ``lost``,
        ``handle_unknown``, ``absent``, ``n_jobs``. Answers are arrays, as those of scikit-learn's
        own estimators; ``robust_.predict(X)`` has them as tables like ``X``.
        """
        return _arrays(self._ask("predict", X, return_std=return_std, **options))

    def margin(self, X: Any, **options: Any) -> Any:
        """Expected margin; see :meth:`Robust.margin`."""
        return self._ask("margin", X, **options)

    def leaf_probabilities(self, X: Any, **options: Any) -> sparse.csr_matrix:
        """Probability that each row reaches each leaf; see :meth:`Robust.leaf_probabilities`."""
        found: sparse.csr_matrix = self._ask("leaf_probabilities", X, **options)
        return found

    def conformalize(self, X: Any, y: Any, **options: Any) -> Self:
        """A copy that knows how far y lies from its predictions: :meth:`Robust.conformalize`."""
        conformalized = copy(self)
        conformalized.robust_ = self._ask("conformalize", X, y, **options)
        return conformalized

    def predict_interval(self, X: Any, confidence_level: float = 0.9, **options: Any) -> Any:
        """Intervals for y, after :meth:`conformalize`; see :meth:`Robust.predict_interval`."""
        return self._ask("predict_interval", X, confidence_level, **options)

    def lost_probability(self, X: Any, **options: Any) -> Any:
        """The probability that missing values were lost; see :meth:`Robust.lost_probability`."""
        return self._ask("lost_probability", X, **options)

    def explain(self, X: Any, groups: Groups | None = None, **options: Any) -> Explanation:
        """Conditional Shapley values; see :meth:`Robust.explain`."""
        found: Explanation = self._ask("explain", X, groups, **options)
        return found

    def acquire(
        self, X: Any, cost: Mapping[str, float] | None = None, **options: Any
    ) -> Acquisition:
        """What knowing each missing value is expected to gain; see :meth:`Robust.acquire`."""
        found: Acquisition = self._ask("acquire", X, cost, **options)
        return found

    def impute(self, X: Any, n_draws: int | None = None, **options: Any) -> Any:
        """Rows with every missing value drawn from the density; see :meth:`Robust.impute`."""
        return self._ask("impute", X, n_draws, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``robust_`` to one file, for :func:`knothole.load`."""
        check_is_fitted(self)
        self.robust_.save(path)

    def to_native(self) -> Any:
        """The fitted model with the leaves of ``robust_``, of its library's own class."""
        check_is_fitted(self)
        return self.robust_.to_native()

    def whatif(self, **options: Any) -> Serving:
        """Serve a page on which the model is asked; see :meth:`Robust.whatif`."""
        check_is_fitted(self)
        return self.robust_.whatif(**options)

    @property
    def density_(self) -> Density:
        """What missing values are integrated under."""
        return self.robust_.density_

    @property
    def selection_(self) -> pd.DataFrame | None:
        """How the candidates for the density did; None where it was given."""
        found: pd.DataFrame | None = self.robust_.selection_
        return found

    def _wrapped(self, table: Any, targets: Any, fit_params: dict[str, Any]) -> Self:
        """Wrap the estimator, trained on the table as it is, and refit its leaves, if asked."""
        sample_weight = fit_params.get("sample_weight")
        self.estimator_ = self._fitted(table, targets, fit_params)
        options = self._refit_options()
        self.robust_ = wrap(
            _unwrapped(self.estimator_),
            table,
            targets,
            self.density,
            self.columns,
            one_hot=self.one_hot,
            nan_policy=self.nan_policy if options is None else "lost",
            sample_weight=sample_weight,
            correction=self.correction if options is None else False,
            random_state=self.random_state,
            verbose=self.verbose,
        )
        if options is not None:
            self.robust_ = self.robust_.refit_leaves(
                table, targets, options, sample_weight=sample_weight
            )
        return self

    def _fitted(self, X: Any, y: Any, fit_params: dict[str, Any]) -> Any:
        if self.prefit:
            check_is_fitted(self.estimator)
            return self.estimator
        params = self._routed(fit_params)
        if "sample_weight" in params:
            params[weight_name(self.estimator)] = params.pop("sample_weight")
        return unfitted(self.estimator).fit(X, y, **params)

    def _routed(self, fit_params: dict[str, Any]) -> dict[str, Any]:
        """What of the parameters goes to the model."""
        if fit_params and get_config()["enable_metadata_routing"]:
            return dict(process_routing(self, "fit", **fit_params).estimator.fit)
        return fit_params

    def _induced(self, X: Any, y: Any, fit_params: dict[str, Any]) -> Self:
        """Trees that are grown under the expected loss, or the choice of a way to learn."""
        if self.prefit or isinstance(self.estimator, FrozenEstimator):
            raise InvalidInput(
                f"learn={self.learn!r}, refit_leaves={self.refit_leaves!r}: they train the "
                f"estimator, but it is fitted already; pass it unfitted, or use learn='own' "
                f"without refit_leaves='auto'."
            )
        ways, params = ways_of(self), self._routed(fit_params)
        weight = params.pop("sample_weight", None)
        options = RefitOptions(verbose=self.verbose)
        if self.refit_leaves != "auto":
            options = self._refit_options() or options
        lesson = Lesson(self, options, X, np.asarray(y), weight, params)
        self.robust_, self.estimator_, self.trial_ = learn(lesson, ways)
        return self

    def _refit_options(self) -> RefitOptions | None:
        """How to refit the leaves, None for not at all."""
        if self.refit_leaves is None or self.refit_leaves is False:
            return None
        options = self.refit_leaves
        if options is True or isinstance(options, dict):
            options = RefitOptions().changed(**({} if options is True else options))
        if not isinstance(options, RefitOptions):
            raise InvalidInput(
                f"refit_leaves must be None, True, or a dictionary of arguments of "
                f"Robust.refit_leaves such as {{'ridge': 1.0}}, or RefitOptions; got "
                f"{self.refit_leaves!r}."
            )
        return options.changed(verbose=self.verbose) if options.verbose == "auto" else options

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Training rows and targets: tables with columns as they are, all others as arrays."""
        if is_classifier(self) != is_classifier(_unwrapped(self.estimator)):
            other = "ExpectedRegressor" if is_classifier(self) else "ExpectedClassifier"
            raise InvalidInput(
                f"estimator: {type(_unwrapped(self.estimator)).__name__} does not suit "
                f"{type(self).__name__}; use {other}."
            )
        numeric = not is_classifier(self)
        if not hasattr(X, "columns"):
            return validate_data(  # type: ignore[no-any-return]
                self, X, y, ensure_all_finite="allow-nan", multi_output=True, y_numeric=numeric
            )
        validate_data(self, X, y, skip_check_array=True)
        targets = check_array(
            y, ensure_2d=False, dtype="numeric" if numeric else None, input_name="y"
        )
        check_consistent_length(X, targets)
        return X, targets

    def _ask(self, method: str, X: Any, *arguments: Any, **options: Any) -> Any:
        """The answer of a method of ``robust_``."""
        X, options = self._known(X, options)
        try:
            return getattr(self.robust_, method)(X, *arguments, **options)
        except UnseenCategory as error:
            raise UnseenCategory(
                error.problem,
                f"Correct it, or make the estimator with {type(self).__name__}(..., "
                f"handle_unknown='missing') to treat it as missing.",
            ) from None

    def _known(self, X: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Rows to predict, with the columns of training (but for those that may be absent).

        And the options, with ``handle_unknown`` as the constructor has it if it is not among them.
        """
        check_is_fitted(self)
        options = {"handle_unknown": self._handle_unknown(), **options}
        if isinstance(X, list) and X and isinstance(X[0], Mapping):
            X = as_table(X)
        if not hasattr(X, "columns"):
            X = validate_data(self, X, ensure_all_finite="allow-nan", reset=False)
        elif options.get("absent", "error") == "error":
            validate_data(self, X, skip_check_array=True, reset=False)
        return self._without_lost_rows(X, options), options

    def _handle_unknown(self) -> HandleUnknown:
        """What an unseen category is: as the constructor says, or as the encoders inside do."""
        if self.handle_unknown != "auto":
            return self.handle_unknown
        estimator = _unwrapped(self.estimator)
        if not is_composed(estimator):
            return "error"
        parameters = estimator.get_params(deep=True)
        ways = [way for name, way in parameters.items() if name.endswith("__handle_unknown")]
        return "missing" if ways and "error" not in ways else "error"

    def _without_lost_rows(self, X: Any, options: Mapping[str, Any]) -> Any:
        """Refuse rows in which an encoder before this has made zeros of a missing value.

        Of dummies that never were all 0 in training, such a row says nothing; with
        ``handle_unknown`` as "missing" they are missing again.
        """
        if not self._dummies_:
            return X
        matrix = np.array(self.robust_.columns_.matrix(X, absent=options.get("absent", "error")))
        found = False
        for dummies in map(list, self._dummies_):
            lost = (matrix[:, dummies] == 0).all(axis=1)
            if lost.any() and options.get("handle_unknown") != "missing":
                raise InvalidInput(
                    f"row {int(np.argmax(lost))} of X has zeros in columns {dummies[0]} to "
                    f"{dummies[-1]}, of which one was 1 in every training row: an encoder has made "
                    f"them of a missing value, or of an unknown category. Put the encoder inside, "
                    f"{type(self).__name__}(make_pipeline(encoder, model)), so that missing "
                    f"values are seen; or give it handle_unknown='missing'."
                )
            matrix[np.ix_(lost, dummies)] = np.nan
            found = found or bool(lost.any())
        return matrix if found else X

    def get_metadata_routing(self) -> MetadataRouter:
        """What ``fit`` passes on to the model."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=mapping)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "robust_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = False
        tags.target_tags = inner.target_tags
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        return tags


class ExpectedRegressor(RegressorMixin, _ExpectedEstimator):
    """A tree regressor that answers rows with missing values by its expected prediction.

    {shared}

    Examples
    --------
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 2))
    >>> y = X.sum(axis=1)
    >>> tree = DecisionTreeRegressor(max_depth=4)
    >>> expected = kh.ExpectedRegressor(tree, density=kh.Mixture(8, random_state=0)).fit(X, y)
    >>> X[::2, 0] = np.nan
    >>> expected.score(X, y) > 0.9
    True
    """


class ExpectedClassifier(ClassifierMixin, _ExpectedEstimator):
    """A tree classifier that answers rows with missing values by its expected probabilities.

    {shared}
    classes_ : array
        The labels, in the order of the columns of ``predict_proba``.

    Examples
    --------
    >>> import knothole as kh
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = RandomForestClassifier(n_estimators=5, random_state=0)
    >>> expected = kh.ExpectedClassifier(forest, density=kh.Mixture(4, random_state=0)).fit(X, y)
    >>> X[:, 2] = np.nan
    >>> expected.score(X, y) > 0.9
    True
    """

    @property
    def classes_(self) -> Any:
        """Labels; a list of them for several targets."""
        check_is_fitted(self)
        return self.robust_.classes_

    def predict_proba(self, X: Any, **options: Any) -> Any:
        """Expected probabilities of the classes, (rows, classes).

        Options are those of :meth:`Robust.predict_proba`: ``return_std``, ``return_error``,
        ``lost``, ``handle_unknown``, ``absent``, ``n_jobs``.
        """
        return _arrays(self._ask("predict_proba", X, **options))

    def predict_set(self, X: Any, confidence_level: float = 0.9, **options: Any) -> Any:
        """Sets of classes, after :meth:`conformalize`; see :meth:`Robust.predict_set`."""
        return self._ask("predict_set", X, confidence_level, **options)

    def predict_log_proba(self, X: Any, **options: Any) -> Any:
        """Logarithms of :meth:`predict_proba`, whose options it takes, but for ``return_std``."""
        with np.errstate(divide="ignore"):
            proba = self.predict_proba(X, **options)
            return [np.log(each) for each in proba] if isinstance(proba, list) else np.log(proba)


def _dummies(table: Any) -> list[tuple[int, ...]]:
    """One-hot columns of a training table that has nothing but numbers."""
    columns = Columns.infer(table)
    if any(column.kind is Kind.CATEGORICAL for column in columns):
        return []
    return one_hot_groups(columns.matrix(table))


def _arrays(answer: Any) -> Any:
    """Numpy arrays, however many and for however many targets."""
    if isinstance(answer, tuple | list):
        return type(answer)(map(_arrays, answer))
    return np.asarray(answer)


def _unwrapped(estimator: Any) -> Any:
    """The model inside a FrozenEstimator."""
    return estimator.estimator if isinstance(estimator, FrozenEstimator) else estimator
