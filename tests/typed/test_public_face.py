"""What type checkers know of the public face; ``make lint`` checks it, and it is run as well."""

from typing import Any, assert_type

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import knothole as kh
from knothole.inspection.acquisition import Acquisition
from knothole.inspection.shapley import Explanation

X = np.random.default_rng(0).normal(size=(200, 2))
FRAME = pd.DataFrame(X, columns=["a", "b"])


@pytest.fixture(scope="module")
def robust() -> kh.Robust:
    model = DecisionTreeRegressor(max_depth=2).fit(FRAME, X[:, 0])
    return assert_type(kh.wrap(model, FRAME, density=kh.Factorized()), kh.Robust)


def test_arrays_give_arrays_and_frames_give_frames(robust: kh.Robust) -> None:
    found = assert_type(robust.predict(X, n_jobs=1, absent="missing"), NDArray[Any])
    assert type(found) is np.ndarray
    series = assert_type(robust.predict(FRAME, FRAME.isna()), "pd.Series[Any] | pd.DataFrame")
    assert isinstance(series, pd.Series)
    table = assert_type(robust.predict(FRAME, quantiles=[0.5]), "pd.Series[Any] | pd.DataFrame")
    assert isinstance(table, pd.DataFrame)
    both = assert_type(robust.predict(X, return_std=True), tuple[NDArray[Any], ...])
    assert [type(each) for each in both] == [np.ndarray] * 2


def test_questions_have_answers_of_their_own(robust: kh.Robust) -> None:
    assert isinstance(assert_type(robust.explain(X[:2]), Explanation), Explanation)
    assert isinstance(assert_type(robust.acquire(X[:2]), Acquisition), Acquisition)
    assert isinstance(assert_type(robust.score(X, X[:, 0]), float), float)
    assert isinstance(
        assert_type(robust.leaf_probabilities(X[:2]), sparse.csr_matrix), sparse.csr_matrix
    )
    assert assert_type(robust.n_features_in_, int) == 2
    refitted = assert_type(robust.refit_leaves(X, X[:, 0]), kh.Robust)
    assert type(assert_type(refitted.conformalize(X, X[:, 0]), kh.Robust)) is kh.Robust


def test_an_option_that_is_not_there_is_an_error_to_both(robust: kh.Robust) -> None:
    with pytest.raises(TypeError):
        robust.margin(X, jobs=2)  # type: ignore[call-arg]


def test_meta_estimators_give_arrays() -> None:
    labels = np.where(X[:, 0] > 0, "yes", "no")
    made = kh.ExpectedClassifier(DecisionTreeClassifier(max_depth=2), density=kh.Factorized())
    fitted = assert_type(made.fit(FRAME, labels), kh.ExpectedClassifier)
    assert type(assert_type(fitted.predict(FRAME), NDArray[Any])) is np.ndarray
    both = assert_type(fitted.predict(FRAME, return_std=True), tuple[NDArray[Any], ...])
    assert len(both) == 2
