"""What both test modules of scikit-learn's models share: the native answer, and comparing to it."""

import pickle

import numpy as np
from sklearn.base import is_classifier

from knothole.trees.read import read, write


def native_response(model, X, ensemble):
    """The model's own answer, in the shape of ``ensemble.predict``."""
    if not is_classifier(model):
        return model.predict(X).reshape(len(X), -1)
    probability = model.predict_proba(X)
    if isinstance(probability, list):
        return np.hstack(probability)
    return probability[:, 1:] if ensemble.n_outputs == 1 < len(ensemble.classes) else probability


def assert_reads(model, X, codes=None):
    """The model is read, answers as the library does, and is not changed by that.

    ``codes`` is ``X`` as the ensemble wants it, where that differs.
    """
    before = pickle.dumps(model)
    ensemble = read(model)
    assert pickle.dumps(model) == before
    response = native_response(model, X, ensemble)
    codes = np.asarray(X, dtype=np.float64) if codes is None else codes
    np.testing.assert_allclose(ensemble.predict(codes), response, rtol=1e-12, atol=1e-12)
    return ensemble


def assert_writes(model, X, codes=None, seed=0):
    """Unchanged leaves give identical answers, changed ones those of the ensemble."""
    ensemble = read(model)
    codes = np.asarray(X, dtype=np.float64) if codes is None else codes
    original = native_response(model, X, ensemble)
    same = write(model, ensemble)
    assert type(same) is type(model) and same is not model
    assert np.array_equal(native_response(same, X, ensemble), original)

    spread = np.random.default_rng(seed).uniform(0.5, 1.5, ensemble.value.shape)
    changed = ensemble.with_values(ensemble.value * spread)
    written = write(model, changed)
    response = native_response(written, X, changed)
    np.testing.assert_allclose(response, changed.predict(codes), rtol=1e-12, atol=1e-12)
    assert not np.array_equal(response, original)
    assert np.array_equal(native_response(model, X, ensemble), original)
