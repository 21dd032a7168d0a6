"""``wrap``: from a fitted model and its training table to a :class:`Robust`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from sklearn.base import clone
from sklearn.base import is_classifier as is_sklearn_classifier
from sklearn.utils import check_random_state

from knothole.arrays import Floats
from knothole.checks import check_choice
from knothole.columns.auxiliary import (
    auxiliary_of,
    named_as_in,
    names_of_auxiliary,
    warn_of_suspects,
    without_auxiliary,
)
from knothole.columns.columns import Columns, Kind, OneHotGroups
from knothole.columns.evidence import nullable_as_met, with_nan, without_nullable
from knothole.columns.read import check_absent, check_rows, row_weights
from knothole.densities.base import Density, UserDensity, go_on
from knothole.densities.held_out import (
    TOO_FEW_TO_HOLD_OUT,
    TOO_FEW_TO_JUDGE,
)
from knothole.densities.names import from_name, name_of
from knothole.densities.select import Selected, default_candidates, select
from knothole.errors import ColumnMismatch, FewRows, InvalidInput, NotAMean, UnsupportedModel
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import SHARE
from knothole.inspection.correction import (
    HeldOutPredictions,
    Patterns,
    check_options,
    held_out_predictions,
    learn_correction,
    no_correction,
)
from knothole.loss_priors import choose_prior
from knothole.missingness.inference import NanPolicy, Reading
from knothole.out_of_core.files import is_path
from knothole.out_of_core.partitions import Partitions, is_lazy, partitions_of, sample
from knothole.progress import Advance, Verbose, bar, tell
from knothole.robust import Robust
from knothole.scoring import PredictionLoss, prediction_loss
from knothole.trees.classes import is_classifier, require_target
from knothole.trees.ensemble import MEDIAN, Ensemble
from knothole.trees.pipelines.composed import is_composed, read_over
from knothole.trees.read import name_levels, read

# Parts of 100 that take the prior of losses and the correction; densities have the rest.
PRIOR, CORRECTION = 4.0, 24.0


def wrap(
    model: Any,
    X_train: Any,
    y_train: Any = None,
    density: Any = "auto",
    columns: Columns | None = None,
    *,
    one_hot: OneHotGroups | None = None,
    nan_policy: NanPolicy = "infer",
    auxiliary: Sequence[str | int] | None = None,
    sample_weight: Any = None,
    tol: float | None = SHARE,
    correction: Literal["auto"] | bool = "auto",
    patterns: Patterns | None = None,
    X_valid: Any = None,
    random_state: Any = 0,
    verbose: Verbose = "auto",
) -> Robust:
    """Make a fitted tree model answer rows with missing values by its expected prediction.

    Parameters
    ----------
    model : object or path
        A fitted model of XGBoost, LightGBM, CatBoost or scikit-learn, or a file its library saved;
        a quantile forest, an explainable boosting machine, a survival or an isolation forest.
        Also a scikit-learn Pipeline that ends in one, with steps that work on each column by
        itself (scalers, encoders, imputers, bins), and TransformedTargetRegressor,
        CalibratedClassifierCV, VotingRegressor and VotingClassifier of such models.
    X_train : table
        What the model was trained on, or rows like it: numpy array, pandas or polars DataFrame,
        Dask DataFrame or Array, or the path of CSV or Parquet files (a directory, a pattern), read
        some rows at a time. Of Dask collections and files, 200,000 rows drawn at random decide all
        choices; the density is then trained further on all rows. For a pipeline: the raw table,
        such as :meth:`Robust.predict` will be given.
    y_train : array (rows,), optional
        Targets. Where ``X_train`` is a Dask collection, a Dask Series or Array; where it is a path,
        the name of a column. With targets, the density and the meaning of missing values are chosen
        by the error of predictions on held-out rows; without, by how close predictions are to the
        model's own on complete rows. Leave them out for isolation forests, which have none, and for
        survival forests, whose targets are censored.
    density : str, Density, sequence of densities, or any object with ``complete``
        "auto" tries several and keeps the best on masked held-out rows; so does a sequence (or
        mapping from names). "gaussian-mixture", "mixture", "latent-tree" and "independent" are
        :class:`GaussianMixture`, :class:`Mixture`, :class:`LatentTree` and :class:`Factorized`
        with their defaults. A density that is not fitted is cloned and fitted; one that is must
        have been fitted on the same columns. An object of your own must have
        ``complete(X, draws)``: float64 (rows, columns) with categories as codes in, (rows, draws,
        columns) without missing values out.
    columns : Columns, optional
        Description of the columns, instead of what model and table show.
    one_hot : "auto" or mapping, optional
        One-hot groups, each taken as one variable: found by names such as ``city_Graz`` and
        ``city_Linz``, or given by name with their columns.
    nan_policy : {"infer", "lost", "native"}
        What a missing value means in a column that had missing values in training: that the value
        was *not recorded*, as in training, or that it was recorded and then *lost*. "infer": the
        probability of either follows from the rest of the row by Bayes' rule; where ``y_train`` is
        given, its prior is chosen on held-out rows. "lost": every missing value was lost, also in
        the training table; use :meth:`Robust.refit_leaves` afterwards if that has any. "native": no
        value was lost, and the model itself decides where the row goes.
    auxiliary : sequence of str, optional
        Columns of ``X_train`` that are not features of the model but are informative about them:
        other sensors, an earlier measurement, a postcode. The density is over both; the trees see
        the features only. Tables for prediction may have these columns or not. In an array they are
        the last columns, given by position. Numbers that are codes should be text or of pandas'
        ``category``. See :doc:`/howto/auxiliary`.
    sample_weight : array (rows,), optional
        Weights of the rows, for the density.
    tol : float, optional
        The largest standard error of Monte Carlo answers, as a share of the standard deviation of
        the model's own outputs on training rows (for probabilities, of 0.5). Rows get more draws
        until they meet it. None: the first draws decide, whatever their error.
    correction : {"auto", True, False}
        Whether to correct errors that the density makes. The correction is learned from rows that
        the model was not trained on, with some of their values hidden; see ``correction_``. Such
        rows are ``X_valid``; or, with ``y_train``, the model is cloned and refitted without some of
        its rows. "auto": correct if the density is chosen by this call, if there are such rows, and
        if the gain on other held-out rows is more than twice its standard error, against the
        model's own output and, where known, against y. True: always correct, on training rows if
        there are no others.
    patterns : bool (patterns, columns) or callable, optional
        How values go missing at deployment, for the correction: patterns to draw from, or a
        function ``patterns(X, seed)`` that returns a mask of the table's shape, such as
        ``lambda X, seed: knothole.missingness.mar_mask(X, 0.3, seed)``. Half of the rows that the
        correction is learned from get such missing values. Refused where no correction is learned.
    X_valid : table, optional
        Rows that the model was not trained on, for the correction: a few hundred at least, without
        targets. Refused where no correction is learned.
    random_state : int, RandomState or None
        Seed of the densities of "auto", of splits and masks, and of draws.
    verbose : bool or "auto"
        "auto": a progress bar after two seconds, on a terminal or in a notebook. True: a line for
        each stage on the error stream. The logger ``knothole`` gets these lines in any case, at
        level INFO.

    Returns
    -------
    Robust

    Examples
    --------
    >>> import numpy as np
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> X[:, 1] += X[:, 0]
    >>> model = DecisionTreeRegressor(max_depth=3).fit(X, X.sum(axis=1))
    >>> robust = kh.wrap(model, X, density=kh.Mixture(n_components=4, random_state=0))
    >>> missing = np.nan
    >>> low, high = robust.predict([[-1.0, missing], [1.0, missing]])
    >>> bool(low < 0 < high)
    True
    """
    check_choice("verbose", verbose, ("auto", True, False))
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    check_options(correction, patterns, X_valid)
    if isinstance(density, str) and density != "auto":
        density = from_name(density, random_state)
    further = names_of_auxiliary(auxiliary)
    check_choice("nan_policy", nan_policy, ("infer", "lost", "native"))
    composed = is_composed(model)
    own = None
    if not composed and (is_path(X_train) or is_lazy(X_train) or isinstance(X_train, Partitions)):
        own = read(model)
    parts = partitions_of(
        X_train, y_train, sample_weight, None if own is None else own.columns,
        also=[str(name) for name in further],
    )  # fmt: skip
    target = y_train if is_path(X_train) else getattr(y_train, "name", None)
    drawn, shown = None, X_train
    if parts is not None:
        drawn = sample(parts, seed, () if own is None else _categories(own))
        drawn.tell(verbose is True)
        X_train, y_train, shown = drawn.table, drawn.y, drawn.shown
        sample_weight = drawn.weight
    features = without_auxiliary(shown, further, getattr(model, "feature_names_in_", ()))
    if own is None:
        own = read_over(model, features, nan_policy != "lost") if composed else read(model)
    ensemble = replace(own, columns=own.columns.called_as_in(features))
    if further:
        called = named_as_in(ensemble.columns, features)
        beside = auxiliary_of(called, shown, further)
        ensemble = replace(ensemble, columns=called).with_auxiliary(beside)
    table = ensemble.columns.read(X_train)
    check_rows(table)
    everything = table if drawn is None else ensemble.columns.read(shown)
    ensemble = ensemble if composed else name_levels(ensemble, everything)
    _warn_of_quantiles(ensemble.recipe.levels)
    if y_train is not None:
        require_target(ensemble, "y_train")
    _refuse_labels_apart(model, ensemble)
    for_correction = [
        name for name, given in (("X_valid", X_valid), ("patterns", patterns)) if given is not None
    ]
    if ensemble.curves:
        if correction is True or for_correction:
            raise InvalidInput(
                f"{(for_correction or ['correction'])[0]}: quantiles and survival curves are not "
                f"corrected; leave it out."
            )
        correction = False
    if for_correction and correction == "auto" and not _is_searched(density):
        raise InvalidInput(
            f"{for_correction[0]} is for the correction, and with a density that is given "
            f"correction='auto' learns none; pass correction=True, or leave out "
            f"{' and '.join(for_correction)}."
        )
    if is_fitted(density):
        described = _columns_of(density, ensemble, columns, one_hot)
        matrix = with_nan(described.matrix(table), ensemble.sentinel, described)
    else:
        described = columns or _described(ensemble.columns, table, everything, one_hot)
        described = described.with_auxiliary(len(further))
        matrix = with_nan(described.matrix(table), ensemble.sentinel, described)
        met = matrix
        if drawn is not None:
            met = with_nan(described.matrix(everything), ensemble.sentinel, described)
        as_met = nan_policy != "lost"
        described = nullable_as_met(described, met) if as_met else without_nullable(described)
        described = described.with_values(met)
        if isinstance(density, str | Sequence | Mapping | Density):
            _warn_of_few_rows(len(matrix))
    warn_of_suspects(described, matrix, y_train, target)
    weight = row_weights(sample_weight, len(matrix))
    loss = prediction_loss(ensemble, matrix, described, y_train)
    learned_correction, correction_table, priors = None, None, None
    with _told(verbose) as advance:
        chosen, selected = _choose(density, matrix, described, weight, loss, random_state, advance)
        learned = isinstance(chosen, Density) and not is_fitted(density)
        if drawn is not None and learned and not drawn.whole:
            chosen = go_on(chosen, drawn, ensemble.sentinel)
        reading = Reading(nan_policy)
        if nan_policy == "infer" and isinstance(chosen, UserDensity):
            _refuse_to_infer(described)
        expectation = Expectation.of(
            ensemble, chosen, tol=tol, seed=seed, reading=reading, spread=loss.spread
        )
        corrects = correction is True or (correction == "auto" and selected is not None)
        infers = nan_policy == "infer" and bool(described.nullable.any()) and y_train is not None
        held_out: list[HeldOutPredictions] = []
        why = ""
        if corrects or infers:
            advance("predict rows by clones of the model that have not seen them", 0.0)
            held_out, why = held_out_predictions(
                model, expectation, X_train, matrix, y_train, loss.truth if loss.of_y else None,
                always=correction is True, X_valid=X_valid, seed=seed,
            )  # fmt: skip
        if infers:
            advance("choose what missing values mean", 0.0)
            reading, priors = choose_prior(loss, held_out, seed)
            expectation = replace(expectation, reading=reading)
            held_out = [one.read_as(reading) for one in held_out]
        advance("", PRIOR)
        if corrects and held_out:
            advance("learn a correction", 0.0)
            learned_correction, correction_table = learn_correction(
                expectation,
                held_out,
                matrix,
                always=correction is True,
                patterns=patterns,
                seed=seed,
            )
        elif corrects:
            correction_table = no_correction(why)
        advance("done", CORRECTION)
    return Robust(
        expectation,
        model,
        correction=learned_correction,
        correction_table=correction_table,
        selection=None if selected is None else selected.selection_,
        prior_selection=priors,
    )


def _described(
    columns: Columns, table: Any, everything: Any, one_hot: OneHotGroups | None
) -> Columns:
    """Columns as all rows of a table show them, one-hot groups as those in memory do."""
    described = columns.describe(table, one_hot)
    if everything is table:
        return described
    return replace(columns.describe(everything), one_hot=described.one_hot)


def _categories(ensemble: Ensemble) -> list[str]:
    """Columns whose numbers are codes of levels, also under the names that tables make up."""
    return [
        name
        for position, column in enumerate(ensemble.columns)
        if column.kind is Kind.CATEGORICAL
        for name in (column.name, str(position))
    ]


@contextmanager
def _told(verbose: Verbose) -> Iterator[Advance]:
    """Progress, of 100 parts in all: a bar, or a line for each stage when it begins and ends."""
    done = 0.0
    with bar("wrapping", 100.0, verbose=verbose if verbose == "auto" else False) as advance:

        def told(doing: str = "", amount: float = 1.0) -> None:
            nonlocal done
            done += amount
            if doing:
                tell(f"[wrap] {done:3.0f} % {doing}", verbose is True)
            advance(doing, amount)

        yield told


def _warn_of_quantiles(levels: tuple[float, ...]) -> None:
    if levels:
        what = "median" if levels == MEDIAN else f"{', '.join(f'{q:g}' for q in levels)} quantile"
        warnings.warn(
            f"the model was trained to predict the {what} of y. Its expected prediction is not a "
            f"quantile of y given the observed values: the more is missing, the further it is from "
            f"covering that share of y. For intervals for y that hold for every pattern of missing "
            f"values use robust.conformalize(X, y).predict_interval(X), best with a model of "
            f"several quantiles.",
            NotAMean,
            stacklevel=3,
        )


def _refuse_to_infer(columns: Columns) -> None:
    """A density of one's own has no log p to infer by."""
    if columns.nullable.any():
        name = columns.names[int(columns.nullable.argmax())]
        raise InvalidInput(
            f"column {name!r} has missing values in training, and a density with only a method "
            f"'complete' cannot tell whether later ones are lost or not recorded; pass "
            f"nan_policy='native' (all are not recorded) or nan_policy='lost' (all are lost)."
        )


def _warn_of_few_rows(rows: int) -> None:
    if rows < TOO_FEW_TO_HOLD_OUT:
        warnings.warn(
            f"X_train has {rows} row(s). From fewer than {TOO_FEW_TO_HOLD_OUT} rows a density "
            f"learns hardly any dependence between columns, and answers to rows with missing "
            f"values are little better than a guess. Pass more rows; they need no targets.",
            FewRows,
            stacklevel=3,
        )


def _fit(
    density: Density, matrix: Floats, columns: Columns, weight: Floats, rows: Any = slice(None)
) -> Density:
    """A density like this one, learned from some of the rows."""
    fresh: Density = clone(density)
    return fresh.fit_matrix(matrix[rows], columns, sample_weight=weight[rows])


def _refuse_labels_apart(model: Any, ensemble: Ensemble) -> None:
    """Refuse a classifier of several labels at once whose trees do not say which classes it has."""
    if not hasattr(model, "get_params") or is_composed(model) or is_classifier(ensemble):
        return
    if is_sklearn_classifier(model):
        name = type(model).__name__
        raise UnsupportedModel(
            f"a {name} of several labels at once is not read, because its trees do not hold its "
            f"classes. Train a {name} for each label and wrap each; or wrap the booster inside, "
            f"model.get_booster(), whose predictions are the labels' probabilities."
        )


def _is_searched(density: Any) -> bool:
    """Whether the density is to be chosen among several."""
    return (
        density == "auto" if isinstance(density, str) else isinstance(density, Sequence | Mapping)
    )


def is_fitted(density: Any) -> bool:
    """Whether it is a density of ours that has learned already."""
    return isinstance(density, Density) and hasattr(density, "columns_")


def _choose(
    density: Any,
    matrix: Floats,
    columns: Columns,
    weight: Floats,
    loss: PredictionLoss,
    random_state: Any,
    advance: Advance,
) -> tuple[Any, Selected | None]:
    """The density to use, fitted, and how it was selected, if it was."""
    candidates, work = density, 100.0 - PRIOR - CORRECTION
    if isinstance(density, str):
        candidates = default_candidates(columns, random_state)
    if isinstance(candidates, (Sequence, Mapping)):
        # With fewer rows whose truth is known, densities are compared by log p alone.
        enough = loss.eligible.sum() >= TOO_FEW_TO_JUDGE
        selected = select(
            candidates, matrix, columns, score=loss if enough else None,
            eligible=loss.eligible if enough else None, sample_weight=weight,
            random_state=random_state,
            advance=lambda doing="", amount=1.0: advance(doing, amount * work / 100.0),
        )  # fmt: skip
        return selected.density, selected
    if is_fitted(density):
        advance("", work)
        if columns is not density.columns_:
            density = copy(density)
            density.columns_ = columns
        return density, None
    if isinstance(density, Density):
        advance(f"fit {name_of(density)} to all rows", 0.0)
        fitted = _fit(density, matrix, columns, weight)
        advance("", work)
        return fitted, None
    if hasattr(density, "complete") and not isinstance(density, type):
        advance("", work)
        return UserDensity(density, columns), None
    raise InvalidInput(
        f"density must be 'auto', a density such as knothole.Mixture(), or an object with a method "
        f"complete(X, draws); got {density!r}."
    )


def _columns_of(
    density: Density, ensemble: Ensemble, columns: Columns | None, one_hot: OneHotGroups | None
) -> Columns:
    """The columns a fitted density knows, which must be the model's."""
    if columns is not None or one_hot is not None:
        raise InvalidInput(
            "columns and one_hot were settled when the density was fitted: fit it with them "
            "(Density.fit(X, columns=...)), or pass one that is not fitted yet."
        )
    own, fitted = ensemble.columns, density.columns_
    problem = "" if len(own) == len(fitted) else f"{len(fitted)} columns instead of {len(own)}"
    if own.named and fitted.named and own.names != fitted.names:
        try:
            check_absent(own.names, fitted.names)
            problem = "they are in another order"
        except ColumnMismatch as error:
            problem = str(error)
    if problem:
        first = ", its features first and then auxiliary columns" if own.auxiliary.any() else ""
        raise ColumnMismatch(
            f"density was fitted on other columns than the model; fit it on the model's training "
            f"table{first} ({problem})"
        )
    if not own.auxiliary.any():
        return fitted
    return fitted.with_auxiliary(int(own.auxiliary.sum()))
