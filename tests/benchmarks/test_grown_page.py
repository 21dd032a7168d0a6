"""What the page of grown trees says of results."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from benchmarks.growing import page, pictures
from benchmarks.growing.run import GROWN, NATIVE, REFITTED, SHIFTS, Job

OFFSET = {NATIVE: 100.0, REFITTED: 0.0, GROWN: -5.0}


def insurance():
    """Grown trees are better than refitted leaves, and those better than native."""
    rows = [
        {"model": model, "rate": rate, "trial": trial, "method": method,
         "rmse": 1000 * rate + OFFSET[method] + trial * (method == GROWN)}
        for model, rate, trial, method in product(
            ("one tree", "100 trees"), (0.1, 0.2), range(3), OFFSET
        )
    ]  # fmt: skip
    return pd.DataFrame(rows)


def shifts():
    """Errors are twice native's, and native's differ by table."""
    rows = [
        {"table": table, "repeat": 0, "training": training, "deployment": deployment, "peer": peer,
         "error": scale * factor, "max_rows": 1500}
        for (table, scale), training, deployment, (peer, factor) in product(
            {"abalone": 1.0, "titanic": 7.0}.items(), ("none", "mcar"), ("mcar", "outage"),
            {"knothole": 0.5, "native": 1.0, "MICE": 2.0}.items(),
        )
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_the_verdict_names_rates_at_which_grown_trees_are_behind():
    results = insurance()
    assert page.verdict(results).count("no rate") == 2
    worse = (
        (results["method"] == GROWN) & (results["rate"] == 0.2) & (results["model"] == "one tree")
    )
    results.loc[worse, "rmse"] += 50
    assert "at one tree at 0.2;\n" in page.verdict(results)
    assert "native XGBoost at no rate" in page.verdict(results)
    results.loc[worse, "rmse"] += 100
    assert "native XGBoost at one tree at 0.2." in page.verdict(results)
    assert "+146 ± 1" in pictures.insurance_table(results)


def test_errors_of_shifts_are_multiples_of_natives_whatever_the_table():
    found = pictures.relative(shifts())
    assert found.shape == (4, 3)
    np.testing.assert_allclose(found, [[0.5, 1.0, 2.0]] * 4)
    assert "Least error of the 4 shifts: knothole in 4." in page.survivors(shifts())
    assert "MICE 2.00" in page.survivors(shifts())


def times():
    return pd.DataFrame(
        {"estimator": ["a", "a", "b"], "repeat": [0, 1, 0], "rows": 10, "draws": 70,
         "own": [1.0, 3.0, 5.0], "drawing": [0.4, 0.4, 0.0], "training": [8.0, 8.0, 10.0]}
    )  # fmt: skip


def test_times_are_multiples_of_the_estimators_own():
    rows = pictures.times_table(times()).splitlines()[2:]
    numbers = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert numbers == [["a", "0.2", "4.0", "5.2"], ["b", "0.0", "2.0", "3.0"]]


def test_a_page_is_written_from_its_results(tmp_path):
    (tmp_path / "results").mkdir()
    insurance().to_csv(tmp_path / "results" / "growing_insurance.csv", index=False)
    shifts().to_csv(tmp_path / "results" / "growing_shifts.csv", index=False)
    times().to_csv(tmp_path / "results" / "growing_times.csv", index=False)
    text = page.write(tmp_path).read_text()
    assert "3 trials" in text and "Abalone, titanic, at most 1,500 rows, 1 split" in text
    for name in ("growing_insurance.png", "growing_shifts.png"):
        assert (tmp_path / "results" / name).read_bytes().startswith(b"\x89PNG")


def test_every_mechanism_meets_every_other():
    pairs = {(s.training and s.training.kind, s.deployment.kind) for s in SHIFTS}
    assert pairs == set(product((None, "mcar", "mar", "mnar"), ("mcar", "mar", "mnar", "outage")))


@pytest.mark.parametrize("what", ["insurance", "abalone"])
def test_what_was_done_is_not_done_again(tmp_path, what, monkeypatch):
    made = []
    for name in ("insurance", "shifts"):
        monkeypatch.setattr(
            f"benchmarks.growing.run.{name}", lambda *of: made.append(of) or [{"rmse": 1.0}]
        )
    job = Job(what, 2, 0.3, tmp_path)
    assert pd.read_csv(job.done())["rmse"].tolist() == [1.0] and job.done() == job.path
    assert made == [(0.3, 2) if what == "insurance" else ("abalone", 2)]
