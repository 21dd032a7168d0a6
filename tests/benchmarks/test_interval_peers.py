"""Other methods of intervals, on predictions that can be followed by hand; and the page."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.intervals import page, peers, tables


def mean_of_known(X):
    """A predictor that takes missing values: the mean of what is known, 0 where nothing is."""
    known = ~np.isnan(X)
    mean = np.where(known, X, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.stack([mean, mean], axis=1)


def rows_of(missing, missing_mask_test, n=39):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    X_test = rng.normal(size=(len(missing_mask_test), 2))
    return peers.Rows(
        X, np.broadcast_to(missing, X.shape), X[:, 0], X_test, np.array(missing_mask_test)
    )


def test_exact_hides_calibration_rows_like_the_one_that_asks():
    rows = rows_of([False, False], [[False, False], [True, False]])
    found = peers.exact(mean_of_known, rows, 0.9)
    for number, hidden in enumerate((rows.X.mean(axis=1), rows.X[:, 1])):
        bound = np.sort(np.abs(rows.y - hidden))[35]  # 36 = ceil(40 * 0.9)
        centre = (rows.X_test[0].mean(), rows.X_test[1, 1])[number]
        np.testing.assert_allclose(found[number], [centre - bound, centre + bound])


def test_exact_has_no_end_where_no_calibration_row_fits():
    rows = rows_of([True, False], [[False, False]])
    assert peers.exact(mean_of_known, rows, 0.9).tolist() == [[-np.inf, np.inf]]


def test_nested_is_exact_where_calibration_rows_are_complete():
    rows = rows_of([False, False], [[False, False], [True, False], [True, True]])
    exact = peers.exact(mean_of_known, rows, 0.9)
    np.testing.assert_allclose(peers.nested(mean_of_known, rows, 0.9), exact)


def test_nested_compares_under_the_union_of_both_patterns():
    rows = rows_of([True, False], [[False, False]])
    found = peers.nested(mean_of_known, rows, 0.9)
    bound = np.sort(np.abs(rows.y - rows.X[:, 1]))[35]
    centre = rows.X_test[0, 1]
    np.testing.assert_allclose(found, [[centre - bound, centre + bound]])


@pytest.mark.parametrize("missing", tables.MISSING)
def test_made_tables_and_their_missing_values(missing):
    parts = tables.split("curved", 100)
    calibration, test = tables.masks("curved", missing, parts, 100)
    assert calibration.shape == parts.parts[1].shape and test.shape == parts.parts[2].shape
    assert test.any() and calibration.any() == (missing != "outage")


def test_page_says_what_was_missed(tmp_path):
    """Two splits: one pattern at 70 %, and another method, valid and half as wide."""
    lines = []
    for seed in (0, 1):
        for method, covered in (("knothole", (920, 700)), ("CP-MDA-Exact, expected", (900, 900))):
            for pattern, hits in zip((".", "?"), covered, strict=True):
                width = 1000.0 if method == "knothole" else 500.0 + seed
                lines.append(("linear", "MCAR", "mean", seed, method, pattern, 1000, hits, width))
    names = ["table", "missing", "model", "seed", "method", "pattern", "rows", "covered", "width"]
    page.write(tmp_path, pd.DataFrame(lines, columns=names).assign(own=1000.0, seconds=1.0))
    text = (tmp_path / "intervals.md").read_text()
    assert "outside 89 to 92 %: linear MCAR (81.0% ± 0.0%)" in text
    assert "below 88 %: MCAR 1 of 2, 0.0 by chance" in text
    assert "in each split: 2, of which 1 are below 88 %; the smallest is 70.0%" in text
    assert "narrower than knothole 1 times, 1 times by more than two standard errors" in text
