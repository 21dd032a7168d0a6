"""Kernels are compiled by using them: with models of all kinds, in an order of their own."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import knothole as kh
from knothole import storage, warm, wrapping
from knothole.compiled import ahead, sobol
from knothole.expectation import gaussian, tables
from knothole.expectation.monte_carlo import kernels
from knothole.expectation.warm import use_walks
from knothole.trees import traverse


@pytest.mark.parametrize("name", ["auto", *(kind.__name__ for kind in warm.DENSITIES)])
@pytest.mark.parametrize("classifier", [False, True])
def test_every_density_is_used(name, classifier):
    warm.use(name, classifier)


@pytest.mark.parametrize("kind", [HistGradientBoostingRegressor, HistGradientBoostingClassifier])
@pytest.mark.parametrize("density", [*warm.DENSITIES, kh.Factorized])
def test_a_file_s_kernels_are_those_that_a_prediction_needs(tmp_path, kind, density):
    """Whatever the columns and levels are: it is asked of rows without a number."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(200, 2)), rng.integers(0, 3, 200)])
    model = kind(max_iter=3, categorical_features=[2]).fit(X, X[:, 0] + X[:, 2] > 1)
    robust = kh.wrap(model, X, density=density(random_state=0))
    robust.save(tmp_path / "model.knothole")
    warm.use_file(str(tmp_path / "model.knothole"))


def test_walks_are_those_of_a_prediction():
    """What is compiled ahead without a density has the types that one asks for."""
    drawn = sobol.fill_uniform, tables.narrow_rows, kernels.fill_group_sums
    walks = *drawn, tables.fill, gaussian.add_expected, traverse.walk_margin
    use_walks()
    before = [len(walk.signatures) for walk in walks]
    assert min(before) > 0
    warm.use("GaussianMixture")
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = HistGradientBoostingRegressor(max_iter=2).fit(X, X[:, 0])
    kh.wrap(model, X, density=kh.GaussianMixture(2, random_state=0)).predict(X)
    assert [len(walk.signatures) for walk in walks] == before


@pytest.fixture
def begun(monkeypatch):
    """What would be compiled ahead."""
    calls = []

    def note(kernel, use, *of, walks=False, tell=False):
        assert hasattr(warm, use)
        calls.append((use, *of))

    for module in (wrapping, storage):
        monkeypatch.setattr(module, "compile_ahead", note)
    return calls


def test_wrap_and_load_have_kernels_compiled_ahead(tmp_path, begun, monkeypatch):
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = HistGradientBoostingClassifier(max_iter=2).fit(X, X[:, 0] > 0)
    robust = kh.wrap(model, X, density=kh.Factorized())
    assert not begun
    kh.wrap(model, X)
    assert begun == [("use", "auto", True)]
    robust.save(tmp_path / "model.knothole")
    kh.load(tmp_path / "model.knothole")
    assert begun[1:] == [("use_file", str(tmp_path / "model.knothole"))]
    monkeypatch.setattr(storage, "MOST_BYTES", 10)
    kh.load(tmp_path / "model.knothole")
    assert len(begun) == 2, "too large to be read twice"


def test_what_is_ahead_compiles_nothing_ahead_of_itself(monkeypatch):
    monkeypatch.setattr(ahead, "_is_ahead", type(ahead._is_ahead)())
    monkeypatch.setattr(ahead, "thread_count", lambda: pytest.fail("it went on"))
    monkeypatch.setattr(ahead, "is_kept", lambda kernel: False)
    ahead._is_ahead.set()
    ahead.compile_ahead(None, "use", "auto")
