"""Intervals for y: covered as often as promised, for every pattern of missing values."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier
from tests.cli.running import call, refused

import knothole as kh
from knothole import storage
from knothole.errors import DamagedFile, FewCalibrationRows, InvalidInput, NotAMean, NotFitted
from knothole.inspection import conformal
from knothole.inspection.missingness_model import MissingnessModel

PATTERNS = [np.array(pattern) for pattern in product([False, True], repeat=3)]
NOISE = 0.5


def draw(rng, n):
    """Rows of a known truth: three correlated columns, y with noise of known size."""
    X = rng.normal(size=(n, 1)) + rng.normal(size=(n, 3))
    return X, 2 * X[:, 0] - X[:, 1] + NOISE * rng.normal(size=n)


@pytest.fixture(scope="module")
def robust():
    X, y = draw(np.random.default_rng(0), 600)
    model = RandomForestRegressor(6, max_depth=5, random_state=0).fit(X, y)
    return kh.wrap(model, X, density=kh.Mixture(3, random_state=0))


@pytest.fixture(scope="module")
def calibrated(robust):
    X, y = draw(np.random.default_rng(1), 400)
    return robust.conformalize(kh.missingness.mcar(X, 0.1, 0), y)


# ---- what is promised ----------------------------------------------------------------------------


def coverage(robust, rng, repeats, rows, incomplete, ask=100):
    """Share of y in 80 % intervals for each pattern, over fresh calibration sets; and its error."""
    hits = np.empty((repeats, len(PATTERNS)))
    for repeat in range(repeats):
        X, y = draw(rng, rows)
        calibrated = robust.conformalize(incomplete(X, y, rng), y)
        X, y = draw(rng, ask * len(PATTERNS))
        X[np.repeat(PATTERNS, ask, axis=0)] = np.nan
        low, high = calibrated.predict_interval(X, 0.8).T
        hits[repeat] = ((low <= y) & (y <= high)).reshape(-1, ask).mean(axis=1)
    return hits.mean(axis=0), hits.std(axis=0, ddof=1) / np.sqrt(repeats)


def complete(X, y, rng):
    return X


def at_random(X, y, rng):
    return np.where(rng.random(X.shape) < 0.25, np.nan, X)


@pytest.mark.filterwarnings("ignore::knothole.errors.FewCalibrationRows")
@pytest.mark.parametrize("missing", [complete, at_random])
@pytest.mark.parametrize(
    ("repeats", "rows"), [(30, 60), pytest.param(60, 150, marks=pytest.mark.slow)]
)
def test_every_pattern_is_covered_as_promised(robust, missing, repeats, rows):
    """On average over calibration sets: at least 80 %, and where all rows serve hardly more."""
    found, error = coverage(robust, np.random.default_rng(rows), repeats, rows, missing)
    assert (found >= 0.8 - 3.5 * error).all()
    if missing is complete:
        serving = rows if rows < 100 else rows - conformal._set_aside(rows)
        assert (found <= 0.8 + 1 / (serving + 1) + 3.5 * error).all()
    assert error.max() < 0.02  # else the test would say nothing


@pytest.mark.parametrize("repeats", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_frequent_patterns_are_covered_whatever_made_the_missing_values(robust, repeats):
    """Here y itself makes them: rows that are hidden afterwards would tell something else."""

    def incomplete(y):
        return np.abs(y) > 3

    covered = []
    rng = np.random.default_rng(3)
    for _ in range(repeats):
        X, y = draw(rng, 1500)
        X[incomplete(y), 0] = np.nan
        calibrated = robust.conformalize(X, y)
        X, y = draw(rng, 1500)
        X, y = X[incomplete(y)], y[incomplete(y)]
        X[:, 0] = np.nan
        low, high = calibrated.predict_interval(X, 0.8).T
        covered.append(((low <= y) & (y <= high)).mean())
    assert abs(np.mean(covered) - 0.8) < 3.5 * 0.03 / np.sqrt(repeats)


@pytest.mark.filterwarnings("ignore::knothole.errors.FewCalibrationRows")
def test_few_rows_are_the_plain_order_statistic(robust):
    """The obvious twin: hide the calibration rows, sort their residuals, take one."""
    X, y = draw(np.random.default_rng(5), 40)
    asking, _ = draw(np.random.default_rng(6), 10)
    calibrated = robust.conformalize(X, y)
    for pattern in PATTERNS:
        hidden = np.where(pattern, np.nan, X)
        residuals = np.sort(np.abs(y - robust.predict(hidden)))
        bound = residuals[int(np.ceil(41 * 0.9)) - 1]
        rows = np.where(pattern, np.nan, asking)
        centre = robust.predict(rows)
        expected = np.stack([centre - bound, centre + bound], axis=1)
        np.testing.assert_allclose(calibrated.predict_interval(rows), expected, rtol=1e-12)


def test_intervals_are_short_where_much_is_known(calibrated):
    X, _ = draw(np.random.default_rng(2), 50)
    known = np.ptp(calibrated.predict_interval(X), axis=1)
    unknown = np.ptp(calibrated.predict_interval(np.where([True, False, False], np.nan, X)), axis=1)
    nothing = np.ptp(calibrated.predict_interval(np.full((1, 3), np.nan)), axis=1)
    assert known.mean() < unknown.mean() < nothing.mean()
    assert known.mean() > 2 * 1.64 * NOISE  # no 90 % interval can be shorter


def test_scale_follows_noise_that_grows_with_the_prediction():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, size=(3000, 2))
    y = X[:, 0] * (1 + 0.3 * rng.normal(size=3000))
    model = RandomForestRegressor(6, max_depth=4, random_state=0).fit(X[:1000], y[:1000])
    robust = kh.wrap(model, X[:1000], density=kh.Factorized()).conformalize(X[1000:], y[1000:])
    small, large = np.ptp(robust.predict_interval([[1.0, 5.0], [9.0, 5.0]]), axis=1)
    assert small < large / 3


# ---- which rows serve ----------------------------------------------------------------------------


def test_column_that_no_calibration_row_has_is_not_used(robust):
    X, y = draw(np.random.default_rng(7), 300)
    X[:, 2] = np.nan
    calibrated = robust.conformalize(X, y)
    asking, _ = draw(np.random.default_rng(8), 20)
    without = np.where([False, False, True], np.nan, asking)
    np.testing.assert_array_equal(
        calibrated.predict_interval(asking), calibrated.predict_interval(without)
    )


def test_rare_complete_rows_are_joined_by_those_that_lack_what_matters_least(robust):
    """x2 tells little: better hide it than rest on the few rows without missing values."""
    X, y = draw(np.random.default_rng(9), 900)
    X[12:, 2] = np.nan
    calibration = robust.conformalize(X, y).conformal_
    hide, _ = calibration._serving(np.zeros(3, dtype=bool), 0.9)
    assert hide.tolist() == [False, False, True]
    X, y = draw(np.random.default_rng(9), 900)
    X[700:, 0] = np.nan  # too dear
    calibration = robust.conformalize(X, y).conformal_
    hide, own = calibration._serving(np.zeros(3, dtype=bool), 0.9)
    rows = calibration._rows(conformal.CalibrationRule(hide, own))
    assert not hide.any() and not np.isnan(calibration.points[rows]).any()


def test_rows_that_lack_more_than_is_hidden_serve_no_pattern(robust):
    X, y = draw(np.random.default_rng(9), 900)
    X[::3, 0] = np.nan
    calibration = robust.conformalize(X, y).conformal_
    for hide in PATTERNS:
        rows = calibration._rows(conformal.CalibrationRule(hide, own=False))
        assert len(rows) and not (np.isnan(calibration.points[rows]) & ~hide).any()
        if not hide[0]:
            assert len(rows) < len(calibration.target)


@pytest.mark.parametrize(("rows", "rank"), [(9, 9), (10, 10), (18, 18), (19, 18), (25, 24)])
def test_the_score_that_bounds_the_next_one(rows, rank):
    """The next score is as likely to lie in any of the gaps that rows leave."""
    assert conformal._rank(rows, 0.9) == rank
    assert rank / (rows + 1) >= 0.9 > (rank - 1) / (rows + 1)


def test_the_scale_is_learned_from_rows_that_are_hidden(robust):
    """Complete rows say nothing of missing values unless some of them are hidden."""
    X, y = draw(np.random.default_rng(9), 900)
    assert robust.conformalize(X, y).conformal_.scale.weights[1] > 0


def test_of_many_rows_some_are_kept_and_fewer_used(robust, monkeypatch):
    monkeypatch.setattr(conformal, "KEPT", 300)
    monkeypatch.setattr(conformal, "USED", 150)
    X, y = draw(np.random.default_rng(9), 500)
    calibration = robust.conformalize(X, y).conformal_
    assert len(calibration.target) == 300 - conformal._set_aside(300)
    rows = calibration._rows(calibration._serving(np.zeros(3, dtype=bool), 0.9))
    assert len(rows) == 150


def test_one_hot_group_known_in_part_counts_as_missing():
    rng = np.random.default_rng(0)
    hue = rng.integers(3, size=600)
    X = np.column_stack([rng.normal(size=600), np.eye(3)[hue]])
    y = X[:, 0] + hue + 0.1 * rng.normal(size=600)
    model = RandomForestRegressor(5, max_depth=5, random_state=0).fit(X[:300], y[:300])
    density = kh.Mixture(2, random_state=0)
    robust = kh.wrap(model, X[:300], density=density, one_hot={"hue": [1, 2, 3]})
    calibrated = robust.conformalize(X[300:], y[300:])
    nan = np.nan
    partly, missing = calibrated.predict_interval([[0.5, 0, nan, nan], [0.5, nan, nan, nan]])
    assert (partly == missing).all()


# ---- what goes missing depends on what is observed -----------------------------------------------


def noisy(rng, n):
    """y is noisier where x0 is large, and there x1 goes missing; the model knows nothing of it."""
    X = rng.normal(size=(n, 3))
    y = X[:, 1] + np.where(X[:, 0] > 0.8, 2.0, 0.2) * rng.normal(size=n)
    gone = rng.random(n) < 1 / (1 + np.exp(3.5 - 2.5 * X[:, 0]))
    return X, y, gone


@pytest.fixture(scope="module")
def unaware():
    X, _, _ = noisy(np.random.default_rng(0), 600)
    model = RandomForestRegressor(4, max_depth=4, random_state=0).fit(X, X[:, 1])
    return kh.wrap(model, X, density=kh.Factorized())


@pytest.mark.filterwarnings("ignore::knothole.errors.FewCalibrationRows")
def test_rare_patterns_are_covered_where_observed_values_decide_what_is_missing(unaware):
    """Equal weights cover less than 65 % here."""
    rng, covered, equal = np.random.default_rng(1), [], []
    for _ in range(8):
        X, y, gone = noisy(rng, 1000)
        X[gone, 1] = np.nan
        conformalized = unaware.conformalize(X, y)
        assert conformalized.conformal_.missingness.predicted.tolist() == [False, True, False]
        X, y, gone = noisy(rng, 4000)
        X[:, 1] = np.nan
        low, high = conformalized.predict_interval(X[gone], 0.8).T
        covered.append(((low <= y[gone]) & (y[gone] <= high)).mean())
        conformalized.conformal_ = unweighted(conformalized.conformal_)
        low, high = conformalized.predict_interval(X[gone], 0.8).T
        equal.append(((low <= y[gone]) & (y[gone] <= high)).mean())
    assert abs(np.mean(covered) - 0.8) < 0.03
    assert np.mean(equal) < 0.65


def unweighted(one):
    constant = MissingnessModel.constant(one.points.shape[1])
    return conformal.Conformal(one.points, one.target, one.scale, one.residual, one.cost, constant)


def test_weights_are_the_learned_probability_of_the_pattern(unaware):
    """The slow twin: the logistic function of each row's own features."""
    X, y, gone = noisy(np.random.default_rng(2), 800)
    X[gone, 1] = np.nan
    one = unaware.conformalize(X, y).conformal_.missingness
    rows = np.where([False, True, False], np.nan, X[:20])
    hide = np.array([False, True, False])
    found = one.log_weight(unaware._corrected, rows, hide, hide)
    for row, log_weight in zip(rows, found, strict=True):
        total = one.coefficients[1, 0]
        for f, v in enumerate(one.variable):
            if one.coefficients[1, 1 + f]:
                score = np.clip((row[v] - one.centre[f]) / one.width[f], -4, 4)
                total += one.coefficients[1, 1 + f] * score
        assert log_weight == pytest.approx(-np.log1p(np.exp(-total)), rel=1e-9)
    for row, log_weight in zip(rows, found, strict=True):
        assert one.log_weight(unaware._corrected, row[None], hide, hide)[0] == log_weight
    shown = one.log_weight(unaware._corrected, rows, hide, np.zeros(3, dtype=bool))
    np.testing.assert_allclose(np.exp(shown) + np.exp(found), 1, rtol=1e-9)


def test_expected_features_stand_for_missing_ones(unaware):
    X, y, gone = noisy(np.random.default_rng(2), 800)
    X[gone, 1] = np.nan
    one = unaware.conformalize(X, y).conformal_.missingness
    hide = np.array([True, True, False])
    rows = np.where(hide, np.nan, X[:5])
    found = one.log_weight(unaware._corrected, rows, hide, np.array([False, True, False]))
    assert np.isfinite(found).all()
    alone = [
        one.log_weight(unaware._corrected, row[None], hide, np.array([False, True, False]))[0]
        for row in rows
    ]
    np.testing.assert_array_equal(found, alone)


def test_by_chance_all_weights_are_equal(robust):
    """So that the promise is the exact one."""
    X, y = draw(np.random.default_rng(9), 900)
    conformalized = robust.conformalize(kh.missingness.mcar(X, 0.3, 0), y)
    assert not conformalized.conformal_.missingness.predicted.any()


def test_weighted_bound_is_the_weighted_quantile():
    """The obvious twin: add up weights from the smallest score on."""
    rng = np.random.default_rng(0)
    scores, log_weight = rng.normal(size=40), rng.normal(size=40)
    own = rng.normal(size=6)
    found, number = conformal._weighted_bounds(scores, log_weight, own, 0.8)
    weight = np.exp(log_weight)
    weight = np.minimum(weight, conformal.LARGEST * weight.mean())
    for bound, one in zip(found, np.exp(own), strict=True):
        one = min(one, conformal.LARGEST * weight.mean(), weight.sum() / 4)
        enough = [
            s for s in scores if weight[scores <= s].sum() >= 0.8 * (weight.sum() + one) - 1e-9
        ]
        assert bound == min(enough)
    assert 1 < number < 40


# ---- sets of classes -----------------------------------------------------------------------------


def classes(rng, n):
    X, _ = draw(rng, n)
    return X, np.array(["a", "b", "c"])[np.digitize(X[:, 0] + rng.normal(size=n), [-0.7, 0.9])]


@pytest.fixture(scope="module")
def classifier():
    X, y = classes(np.random.default_rng(0), 800)
    model = RandomForestClassifier(8, max_depth=5, random_state=0).fit(X, y)
    return kh.wrap(model, X, density=kh.Mixture(3, random_state=0))


@pytest.mark.filterwarnings("ignore::knothole.errors.FewCalibrationRows")
@pytest.mark.parametrize("missing", [complete, at_random])
def test_sets_cover_every_pattern_as_promised(classifier, missing):
    rng, hits = np.random.default_rng(5), []
    for _ in range(25):
        X, y = classes(rng, 150)
        conformalized = classifier.conformalize(missing(X, y, rng), y)
        X, y = classes(rng, 60 * len(PATTERNS))
        X[np.repeat(PATTERNS, 60, axis=0)] = np.nan
        within = conformalized.predict_set(X, 0.8)
        assert within.dtype == bool and within.any(axis=1).all()
        hits.append(within[np.arange(len(y)), np.searchsorted(["a", "b", "c"], y)])
    found = np.reshape(hits, (25, len(PATTERNS), 60)).mean(axis=2)
    error = found.std(axis=0, ddof=1) / 5
    assert (found.mean(axis=0) >= 0.8 - 3.5 * error).all()


@pytest.mark.filterwarnings("ignore::knothole.errors.FewCalibrationRows")
def test_sets_are_those_of_the_plain_order_statistic(classifier):
    """The obvious twin: hide the rows, sort one minus the probability of y, take one."""
    X, y = classes(np.random.default_rng(6), 59)
    conformalized = classifier.conformalize(X, y)
    asking, _ = classes(np.random.default_rng(7), 30)
    code = np.searchsorted(["a", "b", "c"], y)
    for pattern in PATTERNS:
        chance = classifier.predict_proba(np.where(pattern, np.nan, X))
        bound = np.sort(1 - chance[np.arange(59), code])[47]  # 48 of 60
        chance = classifier.predict_proba(np.where(pattern, np.nan, asking))
        expected = 1 - chance <= bound
        expected[np.arange(30), chance.argmax(axis=1)] = True
        found = conformalized.predict_set(np.where(pattern, np.nan, asking), 0.8)
        np.testing.assert_array_equal(found, expected)


def test_sets_of_frames_and_files(classifier, tmp_path):
    X, y = classes(np.random.default_rng(6), 400)
    conformalized = classifier.conformalize(kh.missingness.mcar(X, 0.2, 0), y)
    frame = pd.DataFrame(kh.missingness.mcar(X[:30], 0.4, 1), index=range(5, 35))
    found = conformalized.predict_set(frame)
    assert (
        found.columns.tolist() == ["a", "b", "c"] and found.index.tolist() == frame.index.tolist()
    )
    assert found.to_numpy().dtype == bool
    conformalized.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole").predict_set(frame)
    pd.testing.assert_frame_equal(again, found)
    for place in range(0, 30, 7):
        alone = conformalized.predict_set(frame.iloc[[place]])
        pd.testing.assert_frame_equal(alone, found.iloc[[place]])


def test_weights_are_saved(unaware, tmp_path):
    X, y, gone = noisy(np.random.default_rng(2), 800)
    X[gone, 1] = np.nan
    conformalized = unaware.conformalize(X, y)
    conformalized.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    np.testing.assert_array_equal(again.predict_interval(X), conformalized.predict_interval(X))


# ---- one row, one answer -------------------------------------------------------------------------


def test_answers_depend_on_the_row_alone(robust, calibrated):
    X, _ = draw(np.random.default_rng(4), 40)
    X = kh.missingness.mcar(X, 0.4, 0)
    whole = calibrated.predict_interval(X)
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_array_equal(calibrated.predict_interval(X[order]), whole[order])
    np.testing.assert_array_equal(
        calibrated.predict_interval(np.tile(X, (2, 1))), np.tile(whole, (2, 1))
    )
    fresh = robust.conformalize(*_calibration_rows())  # nothing remembered
    parts = [fresh.predict_interval(row[None], n_jobs=1) for row in X]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def _calibration_rows():
    X, y = draw(np.random.default_rng(1), 400)
    return kh.missingness.mcar(X, 0.1, 0), y


def test_patterns_scored_together_or_one_by_one_agree(robust, calibrated, monkeypatch):
    X = np.where(np.array(PATTERNS), np.nan, 1.0)
    together = calibrated.predict_interval(X)
    monkeypatch.setattr(conformal, "_AT_ONCE", 1)
    fresh = robust.conformalize(*_calibration_rows())
    np.testing.assert_array_equal(fresh.predict_interval(X), together)


def test_forgotten_scores_come_back_the_same(calibrated, monkeypatch):
    monkeypatch.setattr(conformal, "_REMEMBERED", 1)
    X = np.where(np.array(PATTERNS), np.nan, 1.0)
    np.testing.assert_array_equal(calibrated.predict_interval(X), calibrated.predict_interval(X))


def test_calibrating_leaves_the_original_alone(robust, calibrated):
    assert robust.conformal_ is None and calibrated is not robust
    with pytest.raises(NotFitted, match="conformalize"):
        robust.predict_interval([[0.0, 0.0, 0.0]])
    X, y = _calibration_rows()
    model = RandomForestRegressor(2, max_depth=2, random_state=0).fit(X, y)
    robust = kh.wrap(model, X, density=kh.Factorized(), nan_policy="lost")
    refitted = robust.conformalize(X, y).refit_leaves(X, y)
    assert refitted.conformal_ is None  # its leaves are new


# ---- what cannot be promised ---------------------------------------------------------------------


def test_too_few_rows_are_refused_with_the_number_needed(robust):
    X, y = draw(np.random.default_rng(0), 15)
    few = robust.conformalize(X, y)
    with pytest.raises(InvalidInput, match=r"needs at least 19 .* there are 15.*at most 0\.938"):
        few.predict_interval(X, 0.95)
    with pytest.warns(FewCalibrationRows):
        few.predict_interval(X, 0.9)


def test_few_rows_say_what_they_cannot_promise(robust):
    X, y = draw(np.random.default_rng(0), 50)
    message = r"rest on only 49 calibration rows.*as low as 8\d%.*: \d+ that .* for 85%"
    with pytest.warns(FewCalibrationRows, match=message):
        robust.conformalize(X, y).predict_interval(X, 0.9)


@pytest.mark.parametrize("wrong", [0, 1, -0.5, 90, float("nan"), [0.8, 0.9], "90%"])
def test_coverage_must_be_a_share(calibrated, wrong):
    with pytest.raises(InvalidInput, match="confidence_level must be a number above 0, below 1"):
        calibrated.predict_interval([[0.0, 0.0, 0.0]], wrong)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(4), "each of the 5 rows"),
        (np.full(5, np.nan), "finite everywhere"),
        (["a"] * 5, "must hold numbers"),
        (np.zeros((5, 2)), "one target"),
    ],
)
def test_wrong_targets_are_refused(robust, y, message):
    with pytest.raises(InvalidInput, match=message):
        robust.conformalize(np.zeros((5, 3)), y)


def test_intervals_of_classifiers_are_refused_with_the_way_out():
    X = np.arange(20.0)[:, None]
    model = DecisionTreeClassifier().fit(X, X[:, 0] > 9)
    robust = kh.wrap(model, X, density=kh.Factorized())
    with pytest.raises(InvalidInput, match="predict_set"):
        robust.predict_interval(X)
    with pytest.raises(NotFitted, match="conformalize"):
        robust.predict_set(X)
    with pytest.raises(InvalidInput, match=r"2\.0 is none of the model's classes"):
        robust.conformalize(X, X[:, 0])


def test_sets_of_regressors_are_refused_with_the_way_out(robust):
    assert not hasattr(robust, "predict_set")


def test_several_targets_are_refused_with_the_way_out():
    X, y = draw(np.random.default_rng(0), 50)
    model = RandomForestRegressor(2, max_depth=2).fit(X, np.stack([y, -y], axis=1))
    robust = kh.wrap(model, X, density=kh.Factorized())
    with pytest.raises(InvalidInput, match="a model for each target"):
        robust.conformalize(X, y)


def test_what_is_missing_and_what_was_never_seen():
    """``missing_mask`` and ``handle_unknown`` are those of predict."""
    rng = np.random.default_rng(0)
    city = rng.choice(["Graz", "Linz"], 600)
    table = pd.DataFrame({"size": rng.normal(size=600), "city": pd.Categorical(city)})
    y = table["size"] + 3 * (city == "Graz") + 0.1 * rng.normal(size=600)
    model = xgboost.XGBRegressor(
        n_estimators=5, max_depth=2, learning_rate=0.5, n_jobs=1, enable_categorical=True
    ).fit(table[:300], y[:300])
    robust = kh.wrap(model, table[:300], density=kh.Factorized())
    calibrated = robust.conformalize(table[300:], y[300:], n_jobs=1)
    new = pd.DataFrame({"size": [0.0], "city": ["Wels"]})
    with pytest.raises(InvalidInput, match="Wels"):
        calibrated.predict_interval(new)
    missing = pd.DataFrame({"size": [0.0], "city": [None]})
    expected = calibrated.predict_interval(missing).to_numpy()
    found = calibrated.predict_interval(new, handle_unknown="missing", n_jobs=1)
    np.testing.assert_array_equal(found, expected)
    lost = np.array([[False, True]])
    np.testing.assert_array_equal(calibrated.predict_interval(missing, lost=lost), expected)
    with pytest.raises(InvalidInput, match="lost"):
        calibrated.predict_interval(missing, lost=np.array([[True, True]]))


# ---- models of quantiles -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quantiles():
    X, y = draw(np.random.default_rng(0), 1500)
    model = xgboost.XGBRegressor(
        n_estimators=5, max_depth=4, learning_rate=0.5, n_jobs=1,
        objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9],
    ).fit(X, y)  # fmt: skip
    with pytest.warns(NotAMean):
        return kh.wrap(model, X, density=kh.Mixture(3, random_state=0))


def test_models_of_quantiles_are_conformalised(quantiles):
    X, y = draw(np.random.default_rng(1), 1200)
    calibrated = quantiles.conformalize(X, y)
    X, y = draw(np.random.default_rng(2), 2000)
    for pattern in PATTERNS[::3]:
        low, high = calibrated.predict_interval(np.where(pattern, np.nan, X)).T
        assert abs(((low <= y) & (y <= high)).mean() - 0.9) < 3.5 * 0.012
    outputs = quantiles.predict(X)
    own = outputs.max(axis=1) - outputs.min(axis=1)
    low, high = calibrated.predict_interval(X).T
    assert np.corrcoef(high - low, own)[0, 1] > 0.9
    middle = (outputs.max(axis=1) + outputs.min(axis=1)) / 2
    np.testing.assert_allclose((low + high) / 2, middle, rtol=1e-9, atol=1e-9)


def test_intervals_never_turn_round(quantiles):
    """Where the model's quantiles are much too wide, they are shortened, to nothing at most."""
    X, _ = draw(np.random.default_rng(1), 340)
    centre = quantiles.predict(X)
    calibrated = quantiles.conformalize(X, (centre.max(axis=1) + centre.min(axis=1)) / 2)
    low, high = calibrated.predict_interval(X, 0.5).T
    assert (low <= high).all()


# ---- tables, files, command line -----------------------------------------------------------------


def test_frames_in_frames_out():
    X, y = draw(np.random.default_rng(0), 500)
    frame = pd.DataFrame(X, columns=list("abc"), index=np.arange(500) + 7)
    model = RandomForestRegressor(4, max_depth=4, random_state=0).fit(frame[:300], y[:300])
    robust = kh.wrap(model, frame[:300], density=kh.Factorized())
    calibrated = robust.conformalize(frame[300:], pd.Series(y[300:]))
    found = calibrated.predict_interval(frame[:5])
    assert found.columns.tolist() == ["low", "high"]
    assert found.index.tolist() == [7, 8, 9, 10, 11]
    array = calibrated.predict_interval(X[:5])
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, found.to_numpy())


def test_saved_and_loaded_to_the_last_bit(calibrated, tmp_path):
    calibrated.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    X, _ = draw(np.random.default_rng(4), 20)
    X = kh.missingness.mcar(X, 0.4, 0)
    np.testing.assert_array_equal(again.predict_interval(X), calibrated.predict_interval(X))


def test_damaged_conformal_is_refused(calibrated, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "describe_conformal", lambda one: {"points": one.points})
    calibrated.save(tmp_path / "model.knothole")
    with pytest.raises(DamagedFile):
        kh.load(tmp_path / "model.knothole")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intervals")
    X, y = draw(np.random.default_rng(0), 700)
    table = pd.DataFrame(X, columns=list("abc")).assign(price=y)
    model = xgboost.XGBRegressor(n_estimators=4, max_depth=3, n_jobs=1)
    model.fit(table[["a", "b", "c"]][:300], y[:300]).save_model(folder / "model.json")
    table[:300].to_csv(folder / "train.csv", index=False)
    table[300:600].to_csv(folder / "held_out.csv", index=False)
    table[600:].drop(columns="price").mask(np.eye(100, 3) > 0).to_csv(
        folder / "ask.csv", index=False
    )
    return folder


def test_command_line(files, capsys):
    common = [files / "train.csv", "--target", "price", "--density", "independent"]
    assert call("wrap", files / "model.json", *common) == 0
    plain, asking = files / "model.knothole", files / "ask.csv"
    assert "--conformalize" in refused_after(capsys, "predict", plain, asking, "--interval", 0.9)
    held_out = ["--conformalize", files / "held_out.csv"]
    for command in ("wrap", "refit"):
        place = files / f"{command}.knothole"
        assert call(command, files / "model.json", *common, *held_out, "-o", place) == 0
        out = files / f"{command}.csv"
        assert call("predict", place, asking, "--interval", 0.9, "--chunk", 7, "-o", out) == 0
        found = pd.read_csv(out)
        assert found.columns.tolist() == ["prediction", "low", "high"]
        expected = kh.load(place).predict_interval(pd.read_csv(asking))
        np.testing.assert_allclose(found[["low", "high"]], expected)
    nameless = [files / "train.csv", "--density", "independent", *held_out]
    assert "--target" in refused_after(capsys, "wrap", files / "model.json", *nameless)


def refused_after(capsys, *arguments):
    capsys.readouterr()
    return refused(capsys, *arguments)
