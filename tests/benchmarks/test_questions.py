"""The benchmark of questions: orders of finding out, and the page from what was measured."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.questions import acquiring, page

DOCS = Path(__file__).parents[2] / "docs"


class Sum:
    """Predicts the sum of what is known."""

    def predict(self, rows):
        return rows.fillna(0.0).sum(axis=1).to_numpy()


def test_errors_are_shares_of_the_one_with_nothing_known():
    truth = pd.DataFrame({"a": [3.0, 3.0], "b": [1.0, 1.0]})
    asked = []

    def way(rows, step):
        asked.append(rows.isna().sum().tolist())
        return np.array([[0, 1], [1, 0]])[:, step]

    found = acquiring._errors(Sum(), truth, np.array([4.0, 4.0]), way)
    # Nothing known: off by 4; then by 1 and by 3; then by nothing.
    assert found == pytest.approx([1.0, np.sqrt(5) / 4, 0.0])
    assert asked == [[2, 2], [1, 1]]


def test_spam_is_split_as_published():
    """A fifth for the test, a fifth to stop by, the rest to train; the order of one seed."""
    order = np.arange(4601)
    np.random.default_rng(0).shuffle(order)
    parts = acquiring.parts(4601)
    assert [len(part) for part in parts] == [920, 920, 2761]
    np.testing.assert_array_equal(np.concatenate(parts), order)


def test_the_page_says_what_was_measured(tmp_path):
    (tmp_path / "results").mkdir()
    found = json.loads((DOCS / "results" / "questions.json").read_text())
    page.write(tmp_path, found)
    text = (tmp_path / "questions.md").read_text()
    assert text == (DOCS / "questions.md").read_text()
    assert f"**{np.mean(found['spam']['auroc']):.2f}**" in text
    for name in acquiring.TABLES:
        assert f"| {name} " in text
