"""Explainable boosting machines: tables of scores as trees, with bins for NaN and the unseen."""

import warnings

import numpy as np
import pandas as pd
import pytest

import knothole as kh
from knothole.errors import NotFitted, ReaderMismatch, UnsupportedModel
from knothole.trees.links import Link
from knothole.trees.read import name_levels, read, write
from knothole.trees.readers import interpret as reader
from knothole.trees.verify import probe_rows

glassbox = pytest.importorskip("interpret.glassbox")

ROWS = 5000
FAST = {"outer_bags": 2, "max_rounds": 20, "n_jobs": 1, "max_bins": 32}
NOMINAL = {"feature_types": ["continuous", *["nominal"] * 4]}


def table(missing_rate=0.0, n=300, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "rooms": rng.integers(0, 5, n),
            "city": rng.choice(["Graz", "Linz", "Wien"], n),
            "lift": rng.random(n) < 0.5,
            "floor": rng.choice([0.5, 1.0, 2.5], n),
        }
    )
    y = frame["size"] * (frame["city"] == "Graz") + 0.2 * frame["rooms"] + frame["floor"]
    return frame.mask(rng.random(frame.shape) < missing_rate), y.to_numpy()


REGRESSORS = {
    "pairs": {},
    "single columns": {"interactions": 0},
    "three columns": {"interactions": [(0, 1, 2)]},
    "nominal": NOMINAL,
    "Poisson": {"objective": "poisson_deviance"},
}


def fitted(make, X, y, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pairs of multiclass models cannot be drawn
        return make(**{**FAST, **settings}).fit(X, y)


def assert_native(model):
    """Margins equal the library's own at and beside cuts, for NaN, and for levels never seen."""
    ensemble = read(model)
    rows = probe_rows(ensemble, ROWS, np.random.default_rng(1))
    shown = reader._table(rows, ensemble.columns)
    native = np.asarray(model._predict_score(shown)).reshape(ROWS, -1)
    np.testing.assert_allclose(ensemble.margin(rows), native, rtol=1e-13, atol=1e-13)
    return ensemble


@pytest.mark.parametrize("missing_rate", [0.0, 0.1], ids=["complete", "incomplete"])
@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name, missing_rate):
    X, y = table(missing_rate)
    model = fitted(glassbox.ExplainableBoostingRegressor, X, np.exp(y), **REGRESSORS[name])
    ensemble = assert_native(model)
    assert ensemble.link == Link("exp" if name == "Poisson" else "identity")
    assert ensemble.n_trees == len(model.term_features_)


@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers(classes):
    X, y = table(0.1)
    label = np.array(["a", "b", "c"])[np.digitize(y, [1.0, 2.0] if classes == 3 else [1.5])]
    settings = {"interactions": 1}
    model = fitted(glassbox.ExplainableBoostingClassifier, X, label, **settings)
    ensemble = assert_native(model)
    assert ensemble.classes == tuple("abc"[:classes])
    robust = kh.wrap(model, X, density=kh.Factorized(), nan_policy="native")
    np.testing.assert_allclose(robust.predict_proba(X), model.predict_proba(X), atol=1e-12)
    assert np.array_equal(robust.predict(X), model.predict(X))


@pytest.mark.parametrize("settings", [{}, NOMINAL], ids=["guessed", "nominal"])
def test_categories_are_called_what_the_table_calls_them(settings):
    """Numbers and truth values too, which the model keeps as texts."""
    X, y = table()
    model = fitted(glassbox.ExplainableBoostingRegressor, X, y, **settings)
    levels = [column.levels for column in name_levels(read(model), X).columns]
    assert levels[2] == ("Graz", "Linz", "Wien")
    if settings:
        assert levels[1] == (0, 1, 2, 3, 4) and set(levels[4]) == {0.5, 1.0, 2.5}
    robust = kh.wrap(model, X, density=kh.Factorized())
    np.testing.assert_allclose(robust.predict(X), model.predict(X), atol=1e-12)


@pytest.mark.parametrize("texts", [("False", "True", "2"), ("False", "True", "2.0")])
def test_versions_of_the_library_spell_categories_differently(texts):
    """Truth values as words, whole numbers with decimals or without: tables have numbers."""
    *truth, number = texts
    rooms = {"column": "rooms", "levels": [["1.5"], [number]], "branches": [{"value": 1}] * 2}
    root = {"column": "lift", "levels": [[one] for one in truth], "branches": [rooms] * 2}
    columns = [{"name": "lift", "levels": truth}, {"name": "rooms", "levels": ["1.5", number]}]
    document = {"format": "knothole trees", "columns": columns, "trees": [{"root": root}]}
    ensemble = read(document)
    X = pd.DataFrame({"lift": [True, False], "rooms": [2.0, 1.5]})
    levels = [column.levels for column in reader.name_levels(ensemble, X).columns]
    assert levels == [(0, 1), (1.5, 2)]


def test_arrays_have_columns_without_names(tmp_path):
    X, y = table()
    X = X[["size", "floor"]].to_numpy(copy=True)
    model = fitted(glassbox.ExplainableBoostingRegressor, X, y)
    robust = kh.wrap(model, X, density=kh.Factorized())
    assert not robust.columns_.named
    np.testing.assert_allclose(robust.predict(X), model.predict(X), atol=1e-12)
    robust.save(tmp_path / "model.knothole")
    X[::2, 0] = np.nan
    again = kh.load(tmp_path / "model.knothole")
    assert np.array_equal(again.predict(X), robust.predict(X))


def test_new_scores_are_written_into_a_copy():
    X, y = table()
    model = fitted(glassbox.ExplainableBoostingRegressor, X, y)
    before = model.predict(X)
    ensemble = name_levels(read(model), X)
    changed = ensemble.with_values(
        ensemble.value * np.random.default_rng(0).uniform(0.5, 1.5, ensemble.value.shape)
    )
    written = write(model, changed)
    codes = ensemble.columns.matrix(X)
    np.testing.assert_allclose(written.predict(X), changed.predict(codes)[:, 0], atol=1e-12)
    assert np.array_equal(model.predict(X), before) and not np.array_equal(
        written.predict(X), before
    )
    robust = kh.wrap(model, X, density=kh.Factorized(), nan_policy="lost")
    missing_mask = X.mask(np.random.default_rng(1).random(X.shape) < 0.2)
    refitted = robust.refit_leaves(missing_mask, y)
    np.testing.assert_allclose(refitted.to_native().predict(X), refitted.predict(X), atol=1e-9)


def test_a_wrong_reading_is_refused(monkeypatch):
    X, y = table()
    model = fitted(glassbox.ExplainableBoostingRegressor, X, y)
    read(model)
    original = reader._Terms._numbers

    def shifted(self, column, cuts, below):
        return original(self, column, np.nextafter(cuts, np.inf), below)

    monkeypatch.setattr(reader._Terms, "_numbers", shifted)
    with pytest.raises(ReaderMismatch):
        read(model)


def test_what_is_not_read_says_so(monkeypatch):
    X, y = table()
    with pytest.raises(NotFitted, match="has not been fitted"):
        read(glassbox.ExplainableBoostingRegressor())
    model = fitted(glassbox.ExplainableBoostingClassifier, X, np.zeros(len(y), dtype=int))
    with pytest.raises(UnsupportedModel, match=r"link 'monoclassification'.*at least two classes"):
        read(model)
    model = fitted(glassbox.ExplainableBoostingRegressor, X, y)
    monkeypatch.setattr(reader, "MOST_CELLS", 50)
    with pytest.raises(UnsupportedModel, match="more than 50 cells"):
        read(model)
