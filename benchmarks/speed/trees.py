"""Traversal of complete rows, and reading models."""

import json
import tempfile
from pathlib import Path

from benchmarks.speed.setting import Ratio, cpu, table, xgboost_model
from knothole.trees import libraries
from knothole.trees.read import read


def run():
    X, y = table(10_000)
    model = xgboost_model(X, y)
    booster = model.get_booster()
    ensemble = read(model)
    native = cpu(lambda: booster.inplace_predict(X), 15)
    yield Ratio(
        "trees", "margins of complete rows, 100 trees of depth 6, 10,000 x 20, one thread",
        cpu(lambda: ensemble.margin(X, threads=1), 15), native, "XGBoost inplace_predict", 2.0,
    )  # fmt: skip
    X, y = X[:4000], y[:4000]
    yield from _reading_xgboost(X, y)
    yield from _reading_lightgbm(X, y)
    yield from _reading_catboost(X, y)


def _reading(library, model, dump, dumped):
    module = libraries.reader_of(libraries.library_of(model))
    return Ratio(
        "trees", f"reading 500 trees of depth 8, {library}",
        cpu(lambda: module.read(model), 3), cpu(dump, 3), dumped, 2.0,
    )  # fmt: skip


def _reading_xgboost(X, y):
    model = xgboost_model(X, y, trees=500, depth=8)
    booster = model.get_booster()
    yield _reading("XGBoost", model, lambda: booster.save_raw("json"), "save_raw('json')")


def _reading_lightgbm(X, y):
    import lightgbm

    model = lightgbm.LGBMRegressor(
        n_estimators=500, max_depth=8, num_leaves=255, n_jobs=1, verbose=-1
    ).fit(X, y)
    yield _reading("LightGBM", model, model.booster_.dump_model, "dump_model()")


def _reading_catboost(X, y):
    import catboost

    model = catboost.CatBoostRegressor(
        iterations=500, depth=8, thread_count=1, verbose=False, allow_writing_files=False
    ).fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"

        def dump():
            model.save_model(path, format="json")
            return json.loads(path.read_text())

        yield _reading("CatBoost", model, dump, "JSON export, parsed")
