"""Model files of the tree libraries, and what must hold of those that are not refused."""

from contextlib import contextmanager

import numpy as np
import pandas as pd
from tests.fuzz import mutations
from tests.trees.damage import KeptChild

from knothole.errors import ReaderMismatch
from knothole.trees import quarantine
from knothole.trees.read import reading_of
from knothole.trees.verify import verify

#: How files of a format are changed; otherwise their bytes are.
CHANGES = {
    "xgboost-json": mutations.text,
    "xgboost-ubj": mutations.ubj,
    "lightgbm-text": mutations.lines,
    "catboost-json": mutations.text,
    "catboost-cbm": mutations.words,
}


def table():
    """Numbers, some missing, few categories and many; three classes."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(150, 2)), columns=["a", "b"])
    frame["few"] = pd.Categorical(rng.choice(["x", "y", "z"], 150))
    frame["many"] = pd.Categorical(rng.integers(0, 20, 150).astype(str))
    y = np.digitize(frame["a"] + (frame["few"] == "x") + frame["many"].cat.codes % 3, [1, 2])
    frame.loc[::7, "a"] = np.nan
    return frame, y


def of_xgboost(form):
    """A classifier of three classes, one of two in dropped-out trees, trees of vectors."""
    import xgboost

    X, y = table()
    usual = {"max_depth": 3, "n_estimators": 2, "n_jobs": 1, "max_cat_to_onehot": 1}
    usual |= {"enable_categorical": True, "tree_method": "hist"}
    made = [
        xgboost.XGBClassifier(**usual).fit(X, y),
        xgboost.XGBClassifier(**usual, booster="dart", rate_drop=0.5).fit(X, y > 0),
        xgboost.XGBRegressor(**usual, multi_strategy="multi_output_tree").fit(
            X[["a", "b"]], np.column_stack([y, -y])
        ),
    ]
    return [bytes(model.get_booster().save_raw(form)) for model in made]


def of_lightgbm():
    """The same, but a forest in place of the last."""
    import lightgbm

    X, y = table()
    usual = {"num_leaves": 6, "n_estimators": 2, "n_jobs": 1, "verbose": -1, "cat_smooth": 1}
    usual |= {"min_child_samples": 3, "min_data_per_group": 3, "cat_l2": 1}
    forest = {"boosting_type": "rf", "subsample_freq": 1, "subsample": 0.5}
    made = [
        lightgbm.LGBMClassifier(**usual).fit(X, y),
        lightgbm.LGBMClassifier(**usual, boosting_type="dart").fit(X, y > 0),
        lightgbm.LGBMRegressor(**usual, **forest).fit(X, y),
    ]
    return [model.booster_.model_to_string().encode() for model in made]


def of_catboost(form, path):
    """A classifier of symmetric trees, and one of others."""
    import catboost

    X, y = table()
    usual = {"iterations": 2, "depth": 3, "one_hot_max_size": 5, "max_ctr_complexity": 1}
    usual |= {"thread_count": 1, "verbose": False, "allow_writing_files": False}
    found = []
    for policy, label in (("SymmetricTree", y), ("Lossguide", y > 0)):
        model = catboost.CatBoostClassifier(**usual, grow_policy=policy)
        model.fit(X, label, cat_features=["few", "many"]).save_model(str(path), format=form)
        found.append(path.read_bytes())
    return found


def sources(kind, path):
    """Files of a format, as the library itself saves them; ``path`` may be written to."""
    library, form = kind.split("-")
    if library == "xgboost":
        return of_xgboost(form)
    return of_lightgbm() if library == "lightgbm" else of_catboost(form, path)


def changed(kind, source, number):
    """A file changed part by part, every third one byte by byte."""
    change = CHANGES[kind] if number % 3 else mutations.raw
    made = change(source, number)
    return made.encode() if isinstance(made, str) else made


def judge(path, seed):
    """What is wrong with an answer to a file that is not refused."""
    reading = reading_of(path)
    verify(reading)  # all that a user's read does
    try:
        verify(reading, seed=seed + 1)
    except ReaderMismatch as error:
        return f"another answer: {error}"
    rows = np.random.default_rng(seed).normal(size=(50, len(reading.ensemble.columns)))
    return "NaN" if np.isnan(reading.ensemble.margin(rows)).any() else None


@contextmanager
def kept_child():
    """Let one process answer for all files."""
    kept = KeptChild()
    quarantine.ask = kept.ask
    yield
    kept.close()
