"""Plausible rows: what was known comes back bit for bit, the rest as the table has it."""

import copy

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

import knothole as kh
from knothole.columns.outputs import filled, long
from knothole.errors import ImpossibleRow, InvalidInput, UnseenCategory

CITIES = ["Graz", "Linz", "Wien"]


def town(n=400, seed=0):
    """A table of all kinds of columns that tell of each other."""
    rng = np.random.default_rng(seed)
    code = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "size": 40 + 20 * code + rng.gamma(2.0, 3.0, size=n),
            "rooms": pd.array(2 + code + rng.integers(2, size=n), dtype="Int64"),
            "city": pd.Categorical.from_codes(code, CITIES),
            "street": np.array(["a", "bb", "ccc"], dtype=object)[code],
            "lift": pd.array(code > 0, dtype="boolean"),
        }
    )


def incomplete(table, seed=1, rate=0.3):
    mask = np.random.default_rng(seed).random(table.shape) < rate
    out = table.copy()
    for i, name in enumerate(out.columns):
        out.loc[mask[:, i], name] = None
    return out, mask


@pytest.fixture(scope="module")
def imputer():
    return kh.Imputer(kh.Mixture(3, random_state=0)).fit(town())


# ---- what comes back -----------------------------------------------------------------------------


def test_observed_entries_come_back_and_missing_values_obey_types_levels_and_ranges(imputer):
    rows, mask = incomplete(town(seed=5))
    whole = imputer.transform(rows)
    assert type(whole) is pd.DataFrame and whole.columns.equals(rows.columns)
    assert whole.dtypes.tolist() == rows.dtypes.tolist()
    assert whole.index.equals(rows.index)
    assert not whole.isna().any().any()
    for i, name in enumerate(rows.columns):
        pd.testing.assert_series_equal(whole[name][~mask[:, i]], rows[name][~mask[:, i]])
    assert whole["rooms"].between(2, 5).all()
    assert set(whole["street"]) <= {"a", "bb", "ccc"}
    # What is known tells of what is not: the second floor of Wien is larger than all of Graz.
    assert whole["size"][mask[:, 0] & (rows["city"] == "Wien")].min() > 60


def test_integers_remain_whole_and_within_reach_for_every_density():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 4, 300), rng.poisson(3, 300), rng.normal(size=300)])
    X[:, 1] += X[:, 0]
    for density in (kh.Mixture(3), kh.LatentTree(3), kh.GaussianMixture(2), kh.Factorized()):
        density.set_params(random_state=0)
        fitted = kh.Imputer(density).fit(X)
        whole = fitted.impute(np.full((50, 3), np.nan), n_draws=4)[:, 1:]
        assert (whole[:, :2] == np.round(whole[:, :2])).all()
        assert whole[:, 0].min() >= 0 and whole[:, 0].max() <= 4


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("kind", ["polars", "arrow", "batch", "objects", "list"])
def test_tables_of_other_libraries(imputer, kind):
    rows, _ = incomplete(town(seed=7), seed=8)
    expected = imputer.transform(rows)
    frame = pl.from_pandas(rows).with_columns(pl.col("city").cast(pl.Enum(CITIES)))
    if kind == "polars":
        whole = imputer.transform(frame)
        assert type(whole) is pl.DataFrame and whole.schema == frame.schema
        found = {name: whole[name].to_list() for name in whole.columns}
    elif kind in ("arrow", "batch"):
        table = pa.Table.from_pandas(rows, preserve_index=False)
        table = table if kind == "arrow" else table.to_batches()[0]
        whole = imputer.transform(table)
        assert type(whole) is type(table) and whole.schema.types == table.schema.types
        found = whole.to_pydict()
    else:
        objects = rows.astype(object).where(rows.notna(), None).to_numpy()
        whole = imputer.transform(objects if kind == "objects" else objects.tolist())
        assert whole.dtype == object
        found = {name: whole[:, i].tolist() for i, name in enumerate(rows.columns)}
    for name in rows.columns:
        assert found[name] == expected[name].tolist(), name


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_columns_are_found_by_name(kind):
    """In another order, and beside columns that are not the model's."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal([0.0, 100.0], size=(200, 2)), columns=["low", "high"])
    model = DecisionTreeRegressor(max_depth=3).fit(X, X.sum(axis=1))
    robust = kh.wrap(model, X, density=kh.Factorized())
    rows = pd.DataFrame(
        {"high": [None, 99.0], "other": [1.0, None], "low": [0.5, None]}, dtype=float
    )
    table = {
        "pandas": lambda: rows,
        "polars": lambda: pl.from_pandas(rows),
        "arrow": lambda: pa.Table.from_pandas(rows, preserve_index=False),
    }[kind]()
    whole = robust.impute(table)
    whole = whole if kind == "pandas" else whole.to_pandas()
    assert whole.columns.tolist() == ["high", "other", "low"]
    assert whole["high"][0] > 90 and abs(whole["low"][1]) < 10
    assert whole["other"][0] == 1.0 and np.isnan(whole["other"][1])


def test_no_rows_give_no_rows(imputer):
    assert imputer.transform(town(5)[:0]).shape == (0, 5)


def test_columns_without_a_type_for_what_is_drawn_get_one():
    columns = kh.Columns.infer([[0.5], [1.5]])
    missing_mask = np.array([[True], [False]])
    matrix = np.array([[0.5], [7.0]])
    assert filled(np.array([[0], [7]]), columns, matrix, missing_mask).tolist() == [[0.5], [7.0]]
    whole = pd.DataFrame({"x0": pd.array([None, 7], dtype="Int64")})
    assert filled(whole, columns, matrix, missing_mask)["x0"].tolist() == [0.5, 7.0]
    assert filled(pl.DataFrame({"x0": [None, 7]}), columns, matrix, missing_mask)["x0"][0] == 0.5
    assert (
        filled(pa.table({"x0": [None, 7]}), columns, matrix, missing_mask)["x0"][0].as_py() == 0.5
    )
    words = kh.Columns.infer([["aa"], ["long word"]])
    text = np.array([["aa"], ["aa"]])
    assert filled(text, words, np.array([[1.0], [0.0]]), missing_mask)[0, 0] == "long word"


def test_categories_that_the_table_does_not_declare_are_added(imputer):
    rows = town(20, seed=3)
    rows["city"] = pd.Categorical([None] * 20, categories=["Graz"])
    assert set(imputer.transform(rows)["city"]) == set(CITIES)


def test_booleans_in_columns_of_objects_remain_booleans():
    table = pd.DataFrame({"lift": [True, False] * 50, "x": [1.5, 2.5] * 50})
    rows = pd.DataFrame({"lift": [None, True], "x": [1.5, 2.5]}, dtype=object)
    assert kh.Imputer(kh.Mixture(2, random_state=0)).fit(table).transform(rows)["lift"][0] is True


# ---- several draws -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_several_draws_are_a_long_table(imputer):
    rows, mask = incomplete(town(30, seed=2))
    draws = imputer.impute(rows, n_draws=5)
    assert draws.columns.tolist() == ["draw", *rows.columns]
    assert draws["draw"].tolist() == np.repeat(range(5), 30).tolist()
    assert draws.index.tolist() == 5 * rows.index.tolist()
    pd.testing.assert_frame_equal(
        draws[draws["draw"] == 0].drop(columns="draw"), imputer.transform(rows)
    )
    sizes = draws["size"].to_numpy().reshape(5, 30)
    assert (np.ptp(sizes, axis=0) > 0).tolist() == mask[:, 0].tolist()
    frame = pl.from_pandas(rows).with_columns(pl.col("city").cast(pl.Enum(CITIES)))
    assert imputer.impute(frame, n_draws=2)["draw"].to_list() == [0] * 30 + [1] * 30
    table = pa.Table.from_pandas(rows, preserve_index=False)
    assert imputer.impute(table, n_draws=2).column("draw").to_pylist() == [0] * 30 + [1] * 30
    batch = table.combine_chunks().to_batches()[0]
    assert imputer.impute(batch, n_draws=2).num_rows == 60


def test_central_intervals_of_draws_cover_as_they_should():
    """On rows of the density's own kind: 90 % of truths lie within 90 % of the draws."""
    rng = np.random.default_rng(0)

    def normal(n):
        return rng.multivariate_normal([0, 1, 2], [[1, 0.8, 0.3], [0.8, 1, 0.5], [0.3, 0.5, 1]], n)

    imputer = kh.Imputer(kh.GaussianMixture(1, random_state=0)).fit(normal(3000))
    truth = normal(1500)
    mask = rng.random(truth.shape) < 0.4
    draws = imputer.impute(np.where(mask, np.nan, truth), n_draws=199)[:, 1:].reshape(199, 1500, 3)
    below = (draws < truth).mean(axis=0)[mask]
    assert abs(((below > 0.05) & (below < 0.95)).mean() - 0.9) < 0.025  # error 0.007
    assert abs((below < 0.5).mean() - 0.5) < 0.04


def test_draws_of_a_table_with_categories_cover_too():
    truth = town(1500, seed=11)
    rows, mask = incomplete(truth, seed=12)
    imputer = kh.Imputer(kh.Mixture(3, random_state=0)).fit(town(3000, seed=13))
    draws = imputer.impute(rows, n_draws=99)
    sizes = draws["size"].to_numpy().reshape(99, -1)
    below = (sizes < truth["size"].to_numpy()).mean(axis=0)[mask[:, 0]]
    assert abs(((below > 0.05) & (below < 0.95)).mean() - 0.9) < 0.04
    # A draw agrees with the truth as often as with another draw, if p is right.
    cities = draws["city"].astype(str).to_numpy().reshape(99, -1)[:, mask[:, 2]]
    right = (cities == truth["city"].astype(str).to_numpy()[mask[:, 2]]).mean()
    assert abs(right - (cities[:-1] == cities[1:]).mean()) < 0.03


# ---- one row, one answer -------------------------------------------------------------------------


@pytest.mark.parametrize("density", [kh.Mixture(3), kh.GaussianMixture(2), kh.LatentTree(3)])
def test_a_row_is_filled_the_same_wherever_it_stands(density):
    density.set_params(random_state=0)
    imputer = kh.Imputer(density).fit(town())
    rows, _ = incomplete(town(60, seed=4))
    whole = imputer.transform(rows)
    pd.testing.assert_frame_equal(imputer.transform(rows[::-1])[::-1], whole)
    pd.testing.assert_frame_equal(imputer.transform(rows[17:18]), whole[17:18])


# ---- of a wrapped model --------------------------------------------------------------------------


def test_imputed_rows_average_to_the_expected_prediction():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 1)) + 0.5 * rng.normal(size=(500, 4))
    model = RandomForestRegressor(10, max_depth=5, random_state=0).fit(X, X.sum(axis=1))
    robust = kh.wrap(model, X, density=kh.Mixture(6, random_state=0))
    rows = np.where(rng.random((20, 4)) < 0.5, np.nan, X[:20])
    draws = robust.impute(rows, n_draws=640)
    predicted = model.predict(draws[:, 1:]).reshape(640, 20)
    expected, std = robust.predict(rows, return_std=True)
    assert (np.abs(predicted.mean(axis=0) - expected) <= 4 * std / np.sqrt(640) + 1e-9).all()


def test_one_hot_groups_observed_in_part_and_not_recorded():
    codes = np.random.default_rng(0).integers(3, size=300)
    X = np.column_stack([np.eye(3)[codes], codes + 0.1 * np.random.default_rng(1).normal(size=300)])
    X[:60, 3] = np.nan
    table = pd.DataFrame(X, columns=["hue_red", "hue_green", "hue_blue", "x"])
    model = DecisionTreeRegressor(max_depth=3).fit(table, codes)
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), one_hot="auto")
    missing = np.nan
    rows = pd.DataFrame(
        [[missing, missing, 0.0, 1.0], [missing, missing, missing, missing]], columns=table.columns
    )
    draws = robust.impute(rows, n_draws=50, not_recorded=True)
    hues = draws[["hue_red", "hue_green", "hue_blue"]].to_numpy()
    assert_array_equal(hues.sum(axis=1), 1)
    assert (hues[::2, 2] == 0).all() and hues[1::2].mean(axis=0).min() > 0
    assert 0.05 < draws["x"][1].isna().mean() < 0.95  # not recorded, as 60 of 300 were, or lost
    lost = robust.impute(rows, n_draws=50, lost=rows.isna(), not_recorded=True)
    assert lost["x"].notna().all()
    pd.testing.assert_frame_equal(lost, robust.impute(rows, n_draws=50))


def test_rows_that_are_impossible_are_filled_with_a_warning():
    X = np.array([["a", "x"], ["b", "y"]] * 50, dtype=object)
    density = kh.Factorized(random_state=0).fit(X)
    density.distributions_ = copy.deepcopy(density.distributions_)
    density.distributions_[0].form.table[1] = -np.inf  # no state has "b"
    imputer = kh.Imputer(density)
    imputer.density_, imputer.seed_, imputer.n_features_in_ = density, 0, 2
    with pytest.warns(ImpossibleRow):
        assert imputer.transform(np.array([["b", None]], dtype=object))[0, 0] == "b"


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [0, -1, 2.5, True, "3"])
def test_draws_must_be_a_whole_number(imputer, draws):
    with pytest.raises(InvalidInput, match="draws must be None or a whole number from 1 on"):
        imputer.impute(town(5), n_draws=draws)


def test_what_is_refused(imputer):
    with pytest.raises(InvalidInput, match="rename it"):
        long([town(3).rename(columns={"lift": "draw"})])
    with pytest.raises(UnseenCategory, match="Bonn"):
        imputer.transform(town(3).assign(street=["Bonn"] * 3))
    with pytest.raises(InvalidInput, match="density must be 'auto'"):
        kh.Imputer("best").fit(town())


# ---- scikit-learn --------------------------------------------------------------------------------


@parametrize_with_checks([kh.Imputer(kh.Factorized())])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_output_and_names(imputer):
    assert imputer.get_feature_names_out().tolist() == list(town(1).columns)
    frame = pl.from_pandas(incomplete(town(9))[0]).with_columns(
        pl.col("city").cast(pl.Enum(CITIES))
    )
    rng = np.random.default_rng(0)
    X = np.where(rng.random((50, 2)) < 0.2, np.nan, rng.normal(size=(50, 2)))
    plain = kh.Imputer(kh.Factorized()).fit(X)
    assert type(plain.set_output(transform="pandas").transform(X)) is pd.DataFrame
    assert type(imputer.transform(frame)) is pl.DataFrame
    pipeline = make_pipeline(kh.Imputer(kh.Factorized()), RandomForestRegressor(3))
    assert np.isfinite(pipeline.fit(X, np.nansum(X, axis=1)).predict(X)).all()


def test_auto_chooses_by_held_out_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 2))
    imputer = kh.Imputer([kh.Factorized(), kh.Mixture(6, random_state=0)]).fit(X)
    assert imputer.selection_["name"].tolist() == ["mixture", "independent"]
    assert type(kh.Imputer().fit(X).density_) is not kh.Factorized


# ---- values that occur, and complete rows --------------------------------------------------------


@pytest.mark.parametrize("density", ["gaussian-mixture", "mixture", "latent-tree", "independent"])
def test_few_numbers_are_filled_with_those_of_training(density):
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    table = pd.DataFrame(
        {
            "rooms": np.select([z < -1, z < 0, z < 1], [1, 2, 10], 50),
            "share": np.select([z < -0.5, z < 0.5], [0.0, 0.5], 1.0),
            "other": np.where(z < 0.5, np.nan, rng.integers(-3, 1, 300)),
            "x": z + 0.3 * rng.normal(size=300),
        }
    )
    model = HistGradientBoostingRegressor(max_iter=5).fit(table, z)
    robust = kh.wrap(model, table, density=density)
    rows = kh.missingness.mcar(table, 0.4, 1)[:60]
    draws = robust.impute(rows, n_draws=4)
    for done in (draws, kh.Imputer(density).fit(table).impute(rows, n_draws=4)):
        assert not done.isna().any().any()  # "not recorded" is not drawn unless asked for
        for name in ("rooms", "share", "other"):
            assert set(done[name]) <= set(table[name].dropna())
        zeros = done.to_numpy(dtype=np.float64)
        assert not np.signbit(zeros[zeros == 0]).any()
    assert robust.impute(rows, n_draws=4, not_recorded=True)["other"].isna().any()
    with pytest.raises(InvalidInput, match="not_recorded must be True or False"):
        robust.impute(rows, not_recorded="yes")


def test_values_are_kept_in_a_file(tmp_path):
    table = pd.DataFrame({"rooms": [1.0, 2.0, 10.0] * 20, "x": np.arange(60.0)})
    model = DecisionTreeRegressor(max_depth=2).fit(table, table["x"])
    robust = kh.wrap(model, table, density="mixture")
    robust.save(tmp_path / "model.knothole")
    rows = table.assign(rooms=np.nan)
    loaded = kh.load(tmp_path / "model.knothole")
    assert loaded.columns_[0].values == (1.0, 2.0, 10.0) and not loaded.columns_[1].values
    pd.testing.assert_frame_equal(loaded.impute(rows), robust.impute(rows))
