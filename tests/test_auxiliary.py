"""Auxiliary columns: the density is over them, the trees are not, and tables may lack them."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor
from tests.cli.running import call, refused

import knothole as kh
from knothole.columns.auxiliary import without_auxiliary
from knothole.columns.columns import Columns, columns_from, describe_columns
from knothole.columns.evidence import Evidence
from knothole.errors import ColumnMismatch, DamagedFile, InvalidInput, SuspectColumn
from knothole.serve.questions import Questions
from knothole.trees.in_variables import in_variables

NAN = np.nan
FEATURES, BESIDE = ["a", "b", "c"], ["city", "d"]


def discrete(rows=600, nullable=False, seed=0):
    """Whole numbers and a category that hang together; the last two columns are auxiliary."""
    rng = np.random.default_rng(seed)
    z = rng.integers(0, 3, rows)
    table = pd.DataFrame(
        {
            "a": (z + rng.integers(0, 2, rows)).astype(float),
            "b": rng.integers(0, 2, rows).astype(float),
            "c": (z > rng.integers(0, 3, rows)).astype(float),
            "city": pd.Series(np.array(["Graz", "Linz", "Wien"], dtype=object)[z]),
            "d": ((z + rng.integers(0, 2, rows)) % 3).astype(float),
        }
    )
    table.loc[rng.random(rows) < 0.1, "city"] = "Linz"
    if nullable:
        table.loc[(z == 2) & (rng.random(rows) < 0.7), "city"] = None
    y = 3 * table["a"] - table["a"] * table["b"] + 2 * table["c"]
    return table, y.rename("price")


def categories(table):
    """The same as categories, so that every variable is discrete."""
    return table.astype(dict.fromkeys([*FEATURES, "d"], "Int64")).astype("category")


@pytest.fixture(scope="module")
def numeric():
    table, y = discrete()
    model = DecisionTreeRegressor(max_depth=5, random_state=0).fit(table[FEATURES], y)
    robust = kh.wrap(
        model, table, y, density=kh.Mixture(4, random_state=0), auxiliary=BESIDE, correction=False
    )
    return table, y, model, robust


# ---- exactness -----------------------------------------------------------------------------------


def enumerated(robust, model_of, points):
    """E[f | x_o] of points, by all completions and their probabilities under the density."""
    variables = robust.columns_.variables
    out = []
    for row in points:
        levels = [
            [value] if not np.isnan(value) else range(len(variable.levels))
            for value, variable in zip(row, variables, strict=True)
        ]
        whole = np.array(list(itertools.product(*levels)), dtype=float)
        log_p = robust.density_.log_evidence(Evidence(whole))
        p = np.exp(log_p - log_p.max())
        out.append(p @ model_of(whole) / p.sum())
    return np.array(out)


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    "density", [kh.Mixture(3, random_state=0), kh.LatentTree(3, random_state=0)]
)
def test_predictions_are_those_of_enumeration(density, nullable):
    lightgbm = pytest.importorskip("lightgbm")
    table, y = discrete(nullable=nullable)
    table = categories(table)
    model = lightgbm.LGBMRegressor(
        n_estimators=8, min_child_samples=5, min_data_per_group=5, verbose=-1, random_state=0
    ).fit(table[FEATURES], y)
    robust = kh.wrap(
        model, table, density=density, auxiliary=BESIDE, nan_policy="native", correction=False
    )
    rows = table.iloc[:40].copy()
    rows[FEATURES] = rows[FEATURES].mask(np.random.default_rng(1).random((40, 3)) < 0.5)

    def model_of(points):
        return robust.ensemble_.predict(np.ascontiguousarray(points))[:, 0]

    levels = [variable.levels for variable in robust.columns_.variables]
    codes = np.full((40, 5), NAN)
    for v, name in enumerate([*FEATURES, *BESIDE]):
        for row, value in enumerate(rows[name].astype(object)):
            if not pd.isna(value):
                codes[row, v] = levels[v].index(value)
            elif name == "city" and nullable:
                codes[row, v] = levels[v].index(None)  # not recorded
    assert_allclose(robust.predict(rows), enumerated(robust, model_of, codes), rtol=1e-9)
    codes[:, 3:] = NAN  # the table lacks them: a category that was not recorded is one of many
    found = robust.predict(rows[FEATURES])
    assert_allclose(found, enumerated(robust, model_of, codes), rtol=1e-9)
    assert np.abs(found - robust.predict(rows)).max() > 0.1


def test_complete_rows_keep_the_models_own_prediction(numeric):
    table, _, model, robust = numeric
    own = model.predict(table[FEATURES])
    nothing = table.assign(city=None, d=NAN)
    for asked in (table, table[FEATURES], table[["d", "c", "b", "a"]], nothing):
        assert_array_equal(robust.predict(asked), own)
        assert_array_equal(robust.predict(asked, return_error=True)[1], 0.0)


def test_they_tell_what_was_lost(numeric):
    table, y, _, robust = numeric
    asked = table.assign(a=NAN)
    without = asked[FEATURES]
    error, blind = (np.mean((robust.predict(each) - y) ** 2) for each in (asked, without))
    assert error < 0.7 * blind


# ---- tables with and without them ----------------------------------------------------------------


def test_tables_of_all_kinds_may_lack_them(numeric):
    table, _, _, robust = numeric
    asked = table.iloc[:5].assign(a=[NAN, 1.0, NAN, 2.0, NAN])
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    for names in ([*FEATURES, *BESIDE], ["c", "city", "b", "a"], FEATURES):
        some = asked[names]
        wanted = robust.predict(some)
        assert_allclose(robust.predict(some.reindex(columns=[*FEATURES, *BESIDE])), wanted)
        for like in (pl.from_pandas(some), pa.Table.from_pandas(some)):
            assert_array_equal(np.asarray(robust.predict(like)), wanted)
        assert_array_equal(robust.predict(some.to_dict("records")), wanted)
    with pytest.raises(ColumnMismatch, match="'b' missing"):
        robust.predict(asked[["a", "c", "d"]])
    assert len(robust.predict(asked[["c"]], absent="missing")) == 5


def test_arrays_have_them_last_or_not_at_all():
    table, y = discrete()
    X = table[[*FEATURES, "d"]].to_numpy()
    model = DecisionTreeRegressor(max_depth=4, random_state=0).fit(X[:, :3], y)
    density = kh.Mixture(3, random_state=0)
    robust = kh.wrap(model, X, density=density, auxiliary=[3])
    asked = X[:6].copy()
    asked[:, 0] = NAN
    known = robust.predict(asked)
    asked[:, 3] = NAN
    blind = robust.predict(asked)
    assert np.abs(known - blind).max() > 0.1
    assert_array_equal(robust.predict(asked[:, :3]), blind)
    assert_array_equal(robust.predict(pd.DataFrame(asked[:, :3])), blind)
    assert_array_equal(robust.predict(asked[:, :3].tolist()), blind)
    whole = X[:6, :3].astype(np.int64)
    assert_array_equal(robust.predict(whole), model.predict(whole))
    with pytest.raises(ColumnMismatch, match=r"4 columns .* or 3 without the auxiliary"):
        robust.predict(asked[:, :2])
    with pytest.raises(InvalidInput, match="must be the last columns"):
        kh.wrap(model, X, density=density, auxiliary=[0])
    named = pd.DataFrame(X, columns=["p", "q", "r", "s"])[["s", "p", "q", "r"]]
    by_name = kh.wrap(model, named, density=density, auxiliary=["s"])
    assert by_name.columns_.names == ("p", "q", "r", "s")
    asked = pd.DataFrame(asked, columns=["p", "q", "r", "s"])
    assert_array_equal(by_name.predict(asked.drop(columns="s")), by_name.predict(asked))


def test_masks_of_lost_values_may_leave_them_out():
    table, y = discrete(nullable=True)
    model = HistGradientBoostingRegressor(max_iter=5, random_state=0).fit(table[FEATURES], y)
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), auxiliary=BESIDE)
    asked = table.iloc[:4].assign(a=NAN, city=[None, None, "Graz", "Linz"])
    lost = asked.isna()
    told, said = robust.lost_probability(asked, lost), robust.lost_probability(asked)
    assert_array_equal(told["city"], [1.0, 1.0, NAN, NAN])
    assert (said["city"][:2] < 1.0).all() and (said["a"] == 1.0).all()
    features = asked[FEATURES]
    plain = robust.predict(features)
    for mask in (features.isna(), features.isna().to_numpy()):
        assert_array_equal(robust.predict(features, lost=mask), plain)
    some = robust.lost_probability(asked, lost[["c", "a", "b"]])
    assert_array_equal(some, robust.lost_probability(asked, lost.assign(city=False)))
    partly = robust.lost_probability(asked, lost[["a", "city"]])
    assert_array_equal(partly, robust.lost_probability(asked, lost.assign(b=False, c=False)))


def test_an_absent_column_says_nothing_where_it_may_be_null():
    table, y = discrete(nullable=True)
    model = HistGradientBoostingRegressor(max_iter=5, random_state=0).fit(table[FEATURES], y)
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), auxiliary=BESIDE)
    asked = table.iloc[:3].assign(a=NAN, city=None)
    apart = robust.predict(asked) - robust.predict(asked.drop(columns="city"))
    assert np.abs(apart).max() > 0.01  # not recorded is usual where z is 2, absent is nowhere


# ---- questions -----------------------------------------------------------------------------------


def test_an_auxiliary_column_is_a_player(numeric):
    table, _, _, robust = numeric
    asked = table.iloc[:4].assign(a=NAN)
    found = robust.explain(asked)
    assert list(found.data.columns) == [*FEATURES, *BESIDE]
    total = np.asarray(found.base) + found.values.sum(axis=1)
    assert_allclose(total, robust.predict(asked), atol=1e-9)
    assert (np.abs(found.values[:, 3]) > 0).all() and (found.values[:, 0] == 0).all()
    lacking = robust.explain(asked[FEATURES])
    assert (lacking.values[:, 3:] == 0).all()


def test_values_of_auxiliary_columns_are_those_of_the_definition(numeric):
    """The mean over all orders of the known columns of what each adds to the prediction."""
    table, _, _, robust = numeric
    asked = table.iloc[:3].assign(a=NAN)
    known = ["b", "c", *BESIDE]

    def answers(shown):
        return robust.predict(asked.where([[name in shown for name in asked]] * len(asked)))

    predicted = {
        frozenset(some): answers(some)
        for size in range(len(known) + 1)
        for some in itertools.combinations(known, size)
    }
    expected = pd.DataFrame(0.0, index=asked.index, columns=asked.columns)
    orders = list(itertools.permutations(known))
    for order in orders:
        for i, name in enumerate(order):
            added = predicted[frozenset(order[: i + 1])] - predicted[frozenset(order[:i])]
            expected[name] += added / len(orders)
    assert_allclose(robust.explain(asked).values, expected, atol=1e-9)


def test_acquisition_may_propose_to_look_one_up(numeric):
    table, _, _, robust = numeric
    asked = table.iloc[:4][["b", "c"]]
    found = robust.acquire(asked, cost={"a": 1000.0}, absent="missing")
    assert (found.gain[["a", *BESIDE]] > 0).all().all()
    assert set(found.best) <= set(BESIDE)
    assert (found.gain["a"] >= found.gain["city"]).all()


def test_imputation_fills_what_the_table_has(numeric):
    table, _, _, robust = numeric
    asked = table.iloc[:20].assign(a=NAN, city=None)
    filled = robust.impute(asked)
    assert not filled.isna().any().any() and set(filled["city"]) <= {"Graz", "Linz", "Wien"}
    assert_array_equal(filled[["b", "c", "d"]], asked[["b", "c", "d"]])
    assert list(robust.impute(asked[["a", "b", "c"]]).columns) == FEATURES


def test_intervals_with_and_without_them(numeric):
    *_, robust = numeric
    new, new_y = discrete(rows=1500, seed=1)
    asked = new.assign(a=NAN)
    calibrated = robust.conformalize(new, new_y)
    known, blind = (calibrated.predict_interval(each) for each in (asked, asked[FEATURES]))
    assert np.ptp(known, axis=1).mean() < 0.9 * np.ptp(blind, axis=1).mean()
    for ends in (known, blind):
        covered = ((ends["low"] <= new_y) & (new_y <= ends["high"])).mean()
        assert covered > 0.85
    of_features = robust.conformalize(new[FEATURES], new_y)  # what is not there hides the others
    low, high = of_features.predict_interval(asked.iloc[:200]).to_numpy().T
    assert ((low <= new_y[:200]) & (new_y[:200] <= high)).mean() > 0.8


# ---- files, pipelines, parts ---------------------------------------------------------------------


def test_saved_and_read_again(numeric, tmp_path):
    table, _, model, robust = numeric
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    asked = table.iloc[:9].assign(a=NAN)
    for each in (asked, asked[FEATURES]):
        assert_array_equal(again.predict(each), robust.predict(each))
    assert again.columns_.auxiliary.tolist() == [False, False, False, True, True]
    assert "3 columns, and 2 auxiliary columns" in repr(again)
    described = describe_columns(again.columns_)
    assert columns_from(described) == again.columns_
    for wrong in (-1, 5, "1"):
        with pytest.raises(DamagedFile):
            columns_from({**described, "auxiliary": wrong})
    assert_array_equal(again.to_native(model).predict(table[FEATURES]), robust.predict(table))


@pytest.mark.parametrize("seen", [False, True])
def test_pipelines_have_raw_columns_that_no_step_uses(seen):
    table, y = discrete()
    steps = ColumnTransformer(
        [("scaled", StandardScaler(), ["a", "b"]), ("c", "passthrough", ["c"])]
    )
    model = make_pipeline(steps, DecisionTreeRegressor(max_depth=4, random_state=0))
    model.fit(table if seen else table[FEATURES], y)
    robust = kh.wrap(
        model, table, y, density=kh.Mixture(3, random_state=0), auxiliary=BESIDE, correction=True
    )
    assert_allclose(robust.predict(table[FEATURES]), model.predict(table), rtol=1e-12)
    asked = table.iloc[:9].assign(a=NAN)
    assert np.abs(robust.predict(asked) - robust.predict(asked[FEATURES])).max() > 0.1
    assert robust.correction_ is not None
    with pytest.raises(InvalidInput, match="'c', which is a feature"):
        kh.wrap(model, table, density=kh.Factorized(), auxiliary=["c"])


def test_dask_and_files(numeric, tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    table, y, model, robust = numeric
    density = kh.Mixture(4, random_state=0)
    asked = table.iloc[:50].assign(a=NAN)
    lazy = dd.from_pandas(table, npartitions=3)
    parted = kh.wrap(model, lazy, density=density, auxiliary=BESIDE)
    assert_allclose(parted.predict(asked), robust.predict(asked))
    for names in ([*FEATURES, *BESIDE], FEATURES):
        found = robust.predict(dd.from_pandas(asked[names], npartitions=2))
        assert_array_equal(found.compute(), robust.predict(asked[names]))
    path = tmp_path / "train.csv"
    table.assign(price=y, note="x").to_csv(path, index=False)
    of_file = kh.wrap(model, path, "price", density=density, auxiliary=BESIDE, correction=False)
    assert_allclose(of_file.predict(asked), robust.predict(asked))
    asked[FEATURES].to_csv(tmp_path / "new.csv", index=False)
    assert_allclose(of_file.predict(tmp_path / "new.csv"), robust.predict(asked[FEATURES]))


def test_the_command_line(tmp_path, numeric, capsys):
    xgboost = pytest.importorskip("xgboost")
    table, y, _, _ = numeric
    model = xgboost.XGBRegressor(n_estimators=5, max_depth=3).fit(table[FEATURES], y)
    library, wrapped, train, new, out = (
        tmp_path / name for name in ("m.json", "m.knothole", "train.csv", "new.csv", "out.csv")
    )
    model.save_model(library)
    table.assign(price=y).to_csv(train, index=False)
    options = ["--target", "price", "--density", "mixture"]
    both = ["--auxiliary", "city", "--auxiliary", "d"]
    assert call("wrap", library, train, *options, *both) == 0
    assert "2 auxiliary columns" in capsys.readouterr().err
    asked = table.iloc[:5].assign(a=NAN)
    robust = kh.load(wrapped)
    for names in ([*FEATURES, *BESIDE], FEATURES):
        asked[names].to_csv(new, index=False)
        assert call("predict", wrapped, new, "-o", out) == 0
        assert_allclose(pd.read_csv(out)["prediction"], robust.predict(asked[names]), rtol=1e-6)
        assert call("explain", wrapped, new, "-o", out) == 0
        values = pd.read_csv(out).filter(like="value_")
        assert_allclose(values, robust.explain(asked[names]).values, rtol=1e-6, atol=1e-9)
        assert list(values.columns) == [f"value_{name}" for name in [*FEATURES, *BESIDE]]
    assert call("acquire", wrapped, new, "--cost", "a=1000", "-o", out) == 0
    assert set(pd.read_csv(out)["best"]) <= set(BESIDE)
    capsys.readouterr()
    named = ["--auxiliary", "price", "-o", tmp_path / "suspect.knothole"]
    with pytest.warns(SuspectColumn, match="'price' says the same as the target"):
        assert call("wrap", library, train, *options, *named) == 0
    capsys.readouterr()
    said = refused(capsys, "wrap", library, train, *options, "--auxiliary", "nowhere")
    assert "'nowhere' (--auxiliary)" in said
    said = refused(capsys, "wrap", library, train, *options, "--auxiliary", "b")
    assert "--auxiliary b: the model itself uses this column" in said
    said = refused(capsys, "refit", wrapped, train, "--target", "price", "--auxiliary", "d")
    assert "wrapped already" in said


def test_the_page_has_a_group_of_their_own(numeric):
    _, _, _, robust = numeric
    questions = Questions(robust)
    controls = questions.form()["variables"]
    assert [each["auxiliary"] for each in controls] == [False, False, False, True, True]
    rows = [{"b": 1, "c": 0}, {"b": 1, "c": 0, "city": "Wien"}]
    blind, known = (one["prediction"] for one in questions.predict({"rows": rows})["predictions"])
    assert known > blind + 0.1


# ---- learning ------------------------------------------------------------------------------------


def test_a_correction_is_learned_with_clones_that_see_features_only():
    table, y = discrete(rows=900)
    label = (y > y.median()).map({True: "high", False: "low"})
    model = RandomForestClassifier(5, max_depth=4, random_state=0).fit(table[FEATURES], label)
    robust = kh.wrap(
        model,
        table,
        label,
        density=kh.Mixture(2, random_state=0),
        auxiliary=BESIDE,
        correction=True,
    )
    assert robust.learned_correction is not None
    asked = table.iloc[:20].assign(a=NAN)
    for each in (asked, asked[FEATURES]):
        shares = robust.predict_proba(each)
        assert_allclose(shares.sum(axis=1), 1.0)
    assert_allclose(robust.predict_proba(table[FEATURES]), model.predict_proba(table[FEATURES]))


def test_leaves_are_refitted_given_them(numeric):
    table, y, _, _ = numeric
    incomplete = np.random.default_rng(0).random(table.shape) < 0.3
    training = table.mask(incomplete)
    fitted = DecisionTreeRegressor(max_depth=4, random_state=0).fit(training[FEATURES], y)
    plain = kh.wrap(
        fitted, training, density=kh.Mixture(4, random_state=0), auxiliary=BESIDE,
        nan_policy="lost",
    )  # fmt: skip
    refitted = plain.refit_leaves(training, y)
    assert refitted.refit_.after < refitted.refit_.before
    assert refitted.columns_.auxiliary.sum() == 2
    new, _ = discrete(seed=3)
    asked = new.assign(a=NAN)
    assert np.isfinite(refitted.predict(asked[FEATURES])).all()
    assert_array_equal(refitted.to_native().predict(new[FEATURES]), refitted.predict(new))
    with pytest.raises(
        ColumnMismatch, match="refit_leaves: X lacks the auxiliary columns 'city', 'd'"
    ):
        plain.refit_leaves(training[FEATURES], y)


def test_loss_rates_are_learned_with_them():
    table, y = discrete(nullable=True)
    model = HistGradientBoostingRegressor(max_iter=5, random_state=0).fit(table[FEATURES], y)
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), auxiliary=BESIDE)
    new, _ = discrete(nullable=True, seed=1)
    gone = np.random.default_rng(2).random(len(new)) < 0.4
    adapted = robust.adapt(new.assign(city=new["city"].where(~gone, None)))
    assert abs(adapted.loss_rates_["city"] - 0.4) < 0.1


def test_a_density_that_was_fitted_before(numeric):
    table, _, model, robust = numeric
    density = kh.Mixture(4, random_state=0).fit(table)
    found = kh.wrap(model, table, density=density, auxiliary=BESIDE)
    assert not density.columns_.auxiliary.any()
    asked = table.iloc[:9].assign(a=NAN)
    assert_allclose(found.predict(asked), robust.predict(asked))
    assert len(found.predict(asked[FEATURES])) == 9
    other = kh.Mixture(4, random_state=0).fit(table[[*BESIDE, *FEATURES]])
    with pytest.raises(ColumnMismatch, match="features first and then auxiliary"):
        kh.wrap(model, table, density=other, auxiliary=BESIDE)


def test_columns_described_by_the_caller(numeric):
    table, _, model, _ = numeric
    columns = Columns.infer(table)
    found = kh.wrap(
        model, table, columns=columns, density=kh.Mixture(4, random_state=0), auxiliary=BESIDE
    )
    assert found.columns_.auxiliary.sum() == 2


# ---- what is refused, and what is warned of ------------------------------------------------------


@pytest.mark.parametrize(
    ("auxiliary", "words"),
    [
        ("city", r"auxiliary=\['name'\]"),
        (["city", "city"], "each column once"),
        ([1.5], "sequence of names"),
        (["nowhere"], "'nowhere', which the table does not have"),
        (["a"], "'a', which is a feature of the model"),
    ],
)
def test_what_is_no_auxiliary_column_is_refused(numeric, auxiliary, words):
    table, _, model, _ = numeric
    with pytest.raises(InvalidInput, match=words):
        kh.wrap(model, table, density=kh.Factorized(), auxiliary=auxiliary)


def test_trees_do_not_split_on_them(numeric):
    *_, robust = numeric
    ensemble = robust.ensemble_
    with pytest.raises(ColumnMismatch, match="said to be auxiliary"):
        in_variables(ensemble, ensemble.columns.with_auxiliary(5))


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("price", lambda t, y: y, "'price' is the target"),
        ("copy", lambda t, y: 100 - 2 * y, "'copy' says the same as the target"),
        ("named", lambda t, y: y.map(lambda v: f"class {v}"), "says the same as the target"),
        ("id", lambda t, y: [f"customer {i}" for i in range(len(t))], "'id' has as many levels"),
        ("number", lambda t, y: np.arange(len(t)) + 1000, "as many levels as rows"),
    ],
)
def test_columns_that_are_better_left_out_are_named(numeric, name, column, words):
    table, y, model, _ = numeric
    table = table.iloc[:100].assign(**{name: column(table.iloc[:100], y[:100])})
    with pytest.warns(SuspectColumn, match=words):
        kh.wrap(model, table, y[:100], density=kh.Factorized(), auxiliary=[name], correction=False)


def test_of_others_nothing_is_said(numeric):
    table, y, model, _ = numeric
    noise = np.random.default_rng(0).normal(size=len(table))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SuspectColumn)
        kh.wrap(
            model, table.assign(noise=noise, almost=y + (noise > 2)), y, density=kh.Factorized(),
            auxiliary=["noise", "almost", "city"], correction=False,
        )  # fmt: skip


def test_the_models_table_has_no_auxiliary_columns():
    table = pd.DataFrame({"a": [1.0], "id": [2.0], "b": [3.0]})
    assert list(without_auxiliary(table, ["id"], ()).columns) == ["a", "b"]
    assert list(without_auxiliary(table, ["id"], ["id"]).columns) == ["a", "id", "b"]
    assert without_auxiliary(table.set_axis(range(3), axis=1), [2], ()).shape == (1, 2)
    assert without_auxiliary(table, [], ()) is table
