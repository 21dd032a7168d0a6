"""Dask collections in, lazy answers out: the same bits as in memory, whatever the partitions."""

import os
import signal
import threading
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.utils import assert_eq
from pandas.testing import assert_frame_equal
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier

import knothole as kh
from knothole.errors import ColumnMismatch, InvalidInput, UnseenCategory
from knothole.inspection.acquisition import Acquisition
from knothole.inspection.shapley import Explanation

PARTITIONS = (1, 2, 7, 50)


def table(n=300, seed=0):
    rng = np.random.default_rng(seed)
    size = rng.normal(size=n)
    city = np.array(["Graz", "Linz", "Wien"])[rng.integers(3, size=n)]
    frame = pd.DataFrame(
        {"size": size, "rooms": rng.integers(1, 6, size=n).astype(float), "city": city}
    )
    frame.index = pd.Index(np.arange(n) * 2, name="house")
    return frame


def with_missing(frame, seed=1):
    rng = np.random.default_rng(seed)
    out = frame.copy()
    for name in out.columns:
        out.loc[rng.random(len(out)) < 0.3, name] = None
    return out


def encoded(frame):
    return frame.assign(city=frame["city"].map({"Graz": 0.0, "Linz": 1.0, "Wien": 2.0}))


class Described:
    """A regressor and a classifier on numbers, and one that splits on categories."""

    def __init__(self):
        import lightgbm

        frame = table()
        y = frame["size"] + frame["rooms"] * (frame["city"] == "Linz")
        numbers = encoded(frame)
        forest = RandomForestRegressor(5, max_depth=4, random_state=0).fit(numbers, y)
        self.regressor = kh.wrap(forest, numbers, density=kh.Mixture(4, random_state=0))
        self.regressor = self.regressor.conformalize(numbers, y + 0.1)
        tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(numbers, frame["city"])
        self.classifier = kh.wrap(tree, numbers, density=kh.Mixture(4, random_state=0))
        levels = frame.astype({"city": "category"})
        model = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1).fit(levels, y)
        self.levels = kh.wrap(model, levels, density=kh.Mixture(4, random_state=0))
        self.levels = self.levels.conformalize(levels, y + 0.1)
        model = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1, n_jobs=1).fit(levels, y > 1)
        self.level_classes = kh.wrap(model, levels, density=kh.Mixture(4, random_state=0))


@pytest.fixture(scope="module")
def models():
    return Described()


@pytest.fixture(scope="module")
def rows():
    return with_missing(encoded(table(120, 2)))


QUESTIONS = {
    "predict": ("regressor", lambda m, X: m.predict(X)),
    "label": ("classifier", lambda m, X: m.predict(X)),
    "several": ("regressor", lambda m, X: m.predict(X, return_std=True, return_error=True)),
    "quantiles": ("regressor", lambda m, X: m.predict(X, quantiles=[0.1, 0.9])),
    "proba": ("classifier", lambda m, X: m.predict_proba(X)),
    "margin": ("regressor", lambda m, X: m.margin(X)),
    "interval": ("regressor", lambda m, X: m.predict_interval(X, 0.8)),
    "impute": ("regressor", lambda m, X: m.impute(X)),
    "explain": ("classifier", lambda m, X: m.explain(X)),
    "acquire": ("classifier", lambda m, X: m.acquire(X, budget=2.0)),
}


def parts_of(answer):
    """An answer as its parts that have rows."""
    if isinstance(answer, Explanation):
        return [answer.values, answer.errors, answer.data, answer.codes]
    if isinstance(answer, Acquisition):
        return [answer.gain, answer.error, answer.per_cost, answer.best, answer.change, answer.plan]
    return list(answer) if isinstance(answer, tuple) else [answer]


def same(lazy, expected):
    """What is computed, and what is told before, are what is expected."""
    parts, expected = parts_of(lazy), parts_of(expected)
    assert all(dask.is_dask_collection(part) for part in parts)
    arrays = [part for part in parts if isinstance(part, da.Array)]
    frames = [part for part in parts if not isinstance(part, da.Array)]
    found = {}
    for alike in (arrays, frames):  # Dask takes both at once for all arrays
        for part, one in zip(alike, dask.compute(*alike, scheduler="sync"), strict=True):
            found[id(part)] = one
    for part, wanted in zip(parts, expected, strict=True):
        one = found[id(part)]
        if isinstance(wanted, np.ndarray):
            np.testing.assert_array_equal(one, wanted)
            assert (part.dtype, part.shape[1:]) == (wanted.dtype, wanted.shape[1:])
            continue
        equal = pd.testing.assert_series_equal if wanted.ndim == 1 else assert_frame_equal
        equal(one, wanted)
        equal(part._meta, wanted.iloc[:0], check_index_type=False)
    return parts


@pytest.mark.parametrize("partitions", PARTITIONS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_frames_are_answered_as_in_memory_whatever_the_partitions(
    models, rows, question, partitions
):
    if partitions == 50 and question not in ("predict", "label", "interval"):
        rows = rows.head(12)  # most partitions have no more than a row
    name, ask = QUESTIONS[question]
    model, frame = getattr(models, name), dd.from_pandas(rows, npartitions=partitions)
    for part in same(ask(model, frame), ask(model, rows)):
        if hasattr(part, "divisions"):
            assert part.divisions == frame.divisions


@pytest.mark.parametrize("question", QUESTIONS)
def test_arrays_are_answered_as_in_memory(models, rows, question):
    name, ask = QUESTIONS[question]
    model, array = getattr(models, name), rows.to_numpy()
    for part in same(ask(model, da.from_array(array, chunks=(50, 2))), ask(model, array)):
        assert not isinstance(part, da.Array) or len(part) == len(array)


def test_partitions_without_rows_and_unknown_divisions(models, rows):
    whole = dd.from_pandas(rows.sort_values("size", ignore_index=True), npartitions=6)
    some = whole[whole["size"] > 1.0].clear_divisions()
    assert some.map_partitions(len).compute(scheduler="sync").tolist()[0] == 0
    none = whole[whole["size"] > 99]
    for frame in (some, none):
        lazy = models.regressor.predict(frame)
        assert lazy.known_divisions == frame.known_divisions
        expected = models.regressor.predict(frame.compute(scheduler="sync"))
        pd.testing.assert_series_equal(lazy.compute(scheduler="sync"), expected)


def test_text_and_categories_that_only_partitions_know(models):
    rows = with_missing(table(90, 3))
    expected = models.levels.predict(rows.astype({"city": "category"}))
    text = dd.from_pandas(rows, npartitions=3)
    with dask.config.set({"dataframe.convert-string": True}):
        arrow = dd.from_pandas(rows, npartitions=3)
    assert isinstance(arrow.dtypes["city"], pd.StringDtype)
    unknown = text.astype({"city": "category"})
    assert not unknown["city"].cat.known
    for frame in (text, arrow, unknown, unknown.categorize()):
        lazy = models.levels.predict(frame)
        pd.testing.assert_series_equal(lazy.compute(scheduler="sync"), expected)
    own = models.levels.impute(unknown)
    assert own.dtypes["city"] == "category"
    filled = own.compute(scheduler="sync")
    assert filled["city"].astype(str).tolist() == models.levels.impute(rows)["city"].tolist()
    known = models.levels.impute(unknown.categorize())
    assert_eq(known, models.levels.impute(rows.astype({"city": "category"})), scheduler="sync")


@pytest.mark.parametrize("kind", ["pyarrow", "unknown"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_takes_odd_partitions(models, question, kind):
    """Without rows, without divisions, with levels or text that only the partitions know."""
    name, ask = QUESTIONS[question]
    model = models.levels if name == "regressor" else models.level_classes
    rows = with_missing(table(40, 3)).sort_values("size")
    rows = rows[rows["size"].notna()]
    with dask.config.set({"dataframe.convert-string": kind == "pyarrow"}):
        lazy = dd.from_pandas(rows.reset_index(drop=True), npartitions=4)
    lazy = lazy[lazy["size"] > 0].clear_divisions()
    if kind == "unknown":
        lazy = lazy.astype({"city": "category"})
        assert not lazy["city"].cat.known
    else:
        assert isinstance(lazy.dtypes["city"], pd.StringDtype)
    with dask.config.set(scheduler="sync"):
        own = lazy.compute()
        assert lazy.map_partitions(len).compute().iloc[0] == 0
        for part, wanted in zip(parts_of(ask(model, lazy)), parts_of(ask(model, own)), strict=True):
            found = part.compute()
            assert len(found) == len(own) > 5
            if isinstance(wanted, np.ndarray):
                np.testing.assert_array_equal(found, wanted)
            else:
                as_text = pd.DataFrame(found).astype(str), pd.DataFrame(wanted).astype(str)
                assert_frame_equal(*as_text, check_column_type=False)


def test_draws_of_a_lazy_table_are_those_in_memory(models, rows):
    lazy = models.regressor.impute(dd.from_pandas(rows, npartitions=4), n_draws=3)
    assert not lazy.known_divisions
    found = lazy.compute(scheduler="sync").sort_values(["draw", "house"])
    expected = models.regressor.impute(rows, n_draws=3)
    pd.testing.assert_frame_equal(found, expected.sort_values(["draw", "house"]))
    array = models.regressor.impute(da.from_array(rows.to_numpy(), chunks=(60, 3)), n_draws=2)
    assert array.shape == array.compute(scheduler="sync").shape == (240, 4)


def test_mistakes_are_told_before_anything_is_computed(models, rows):
    lazy = dd.from_pandas(rows, npartitions=2)
    with pytest.raises(ColumnMismatch, match="'city' missing"):
        models.regressor.predict(lazy[["size", "rooms"]])
    with pytest.raises(InvalidInput, match="quantiles"):
        models.regressor.predict(lazy, return_std=True, quantiles=[0.5])
    with pytest.raises(InvalidInput, match="lost must be a Dask collection"):
        models.regressor.predict(lazy, np.isnan(rows.to_numpy()))
    with pytest.raises(AttributeError, match="no classifier"):
        models.regressor.predict_proba(lazy)
    with pytest.raises(InvalidInput, match="two dimensions"):
        models.regressor.predict(da.zeros(3))
    with pytest.raises(InvalidInput, match="compute"):
        models.regressor.encode(lazy)


def test_options_are_those_of_each_partition(models, rows):
    lazy = dd.from_pandas(rows, npartitions=3)
    some = models.regressor.predict(lazy[["city", "size"]], absent="missing", n_jobs=2)
    expected = models.regressor.predict(rows[["city", "size"]], absent="missing")
    pd.testing.assert_series_equal(some.compute(scheduler="sync"), expected)
    with pytest.raises(TypeError, match="strange"):
        models.regressor.predict(lazy, strange=1)


def test_an_error_names_the_partition_and_the_column(models, rows):
    bad = rows.copy()
    bad.loc[bad.index[-1], "rooms"] = np.inf
    lazy = models.regressor.predict(dd.from_pandas(bad, npartitions=4))
    with pytest.raises(InvalidInput, match=r"partition 3: column 'rooms' must hold finite"):
        lazy.compute(scheduler="sync")
    strange = with_missing(table(40, 3))
    strange.loc[strange.index[0], "city"] = "Rom"
    lazy = models.levels.predict(dd.from_pandas(strange, npartitions=2))
    with pytest.raises(UnseenCategory, match=r"partition 0: .*'city'"):
        lazy.compute(scheduler="sync")


def loads(dask_worker):
    """How often a worker has unpacked a model."""
    from knothole.out_of_core import lazy

    return lazy.unpacked.cache_info().misses


def test_the_model_is_unpacked_once_by_each_worker(cluster, models, rows):
    before = cluster.run(loads)
    lazy = models.regressor.predict(dd.from_pandas(rows, npartitions=20))
    names = {str(key[0]).partition("-")[0] for key in dict(lazy.__dask_graph__())}
    assert {"knothole_model", "knothole_predict"} <= names
    found = lazy.compute()
    after = cluster.run(loads)
    assert all(0 <= after[worker] - before[worker] <= 1 for worker in after)
    pd.testing.assert_series_equal(found, models.regressor.predict(rows))


def left(dask_scheduler):
    """Tasks that a scheduler still knows."""
    return len(dask_scheduler.tasks)


def test_what_is_cancelled_leaves_nothing_behind(cluster, models, rows):
    frame = dd.from_pandas(rows, npartitions=40)
    slow = frame.map_partitions(slowly, meta=frame._meta)
    future = cluster.compute(models.regressor.predict(slow))
    until = time.monotonic() + 20
    while not (tasks := cluster.run_on_scheduler(left)) and time.monotonic() < until:
        time.sleep(0.01)
    assert tasks > 0
    future.cancel()
    until = time.monotonic() + 20
    while cluster.run_on_scheduler(left) and time.monotonic() < until:
        time.sleep(0.1)
    assert cluster.run_on_scheduler(left) == 0


def slowly(frame):
    time.sleep(0.05)
    return frame


def test_a_worker_that_is_killed_changes_nothing(cluster, models, rows):
    frame = dd.from_pandas(rows, npartitions=40)
    slow = frame.map_partitions(slowly, meta=frame._meta)
    lazy = models.regressor.predict(slow)
    victim = next(iter(cluster.run(os.getpid).values()))
    killer = threading.Timer(0.6, os.kill, (victim, signal.SIGKILL))
    killer.start()
    found = lazy.compute()
    killer.join()
    cluster.wait_for_workers(2, timeout=60)
    assert victim not in cluster.run(os.getpid).values()
    pd.testing.assert_series_equal(found, models.regressor.predict(rows))
