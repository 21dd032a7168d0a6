"""Ranks, critical differences and duels on results whose verdict is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.suite import analysis
from knothole.errors import InvalidInput


def results_of(
    errors: dict[str, list[float]], repeats: int = 3, noise: float = 0.0
) -> pd.DataFrame:
    """Results with these errors in each cell, and groups around their squares."""
    rng = np.random.default_rng(0)
    rows = []
    n_cells = len(next(iter(errors.values())))
    for cell in range(n_cells):
        for repeat in range(repeats):
            shared = noise * rng.normal(size=20)  # hard rows are hard for everybody
            for peer, of_cells in errors.items():
                error = of_cells[cell]
                failed = not np.isfinite(error)
                groups = () if failed else tuple(error**2 + shared + 0.01 * rng.normal(size=20))
                rows.append(
                    {
                        "dataset": f"d{cell // 2}", "scenario": f"s{cell % 2}", "repeat": repeat,
                        "peer": peer, "rmse": np.nan if failed else error, "log_loss": np.nan,
                        "auc": np.nan, "fit_seconds": 1.0, "predict_seconds": 2.0,
                        "groups": groups, "failure": "broke" if failed else "",
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_mean_ranks_share_ties_and_put_failures_last():
    ranking = analysis.rank(
        results_of({"a": [1, 1, 1, 1], "b": [2, 1, 2, 2], "c": [3, 3, np.inf, 1.5]})
    )
    # Mean ranks in the cells of d0: 1.25, 1.75, 3; of d1: 1, 2.5, 2.5.
    assert ranking.mean_rank.to_dict() == {"a": 1.0, "b": 2.25, "c": 2.75}
    assert (ranking.cells, ranking.datasets) == (4, 2)


def test_friedman_is_that_of_scipy():
    rng = np.random.default_rng(1)
    errors = {name: list(rng.normal(k, 2, 12)) for k, name in enumerate("abcd")}
    results = results_of({name: [v + 9 for v in e] for name, e in errors.items()})
    results["dataset"] += results["scenario"]  # a dataset for each cell
    ranking = analysis.rank(results)
    chi2 = stats.friedmanchisquare(*errors.values()).statistic
    f = 11 * chi2 / (12 * 3 - chi2)  # Iman and Davenport's form
    assert ranking.p_value == pytest.approx(stats.f.sf(f, 3, 33))


@pytest.mark.parametrize(
    ("peers", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (8, 3.031), (10, 3.164)]
)
def test_critical_differences_are_those_of_the_published_table(peers, q):
    expected = q * np.sqrt(peers * (peers + 1) / (6 * 30))
    assert analysis.critical_difference(peers, 30) == pytest.approx(expected, rel=5e-4)


def test_those_within_the_critical_difference_are_like_the_best():
    rng = np.random.default_rng(2)
    base = rng.random(20)
    errors = {
        "a": list(base),
        "b": list(base + rng.normal(0, 1e-6, 20)),
        "c": list(base + 1),
        "d": list(base + 2),
    }
    ranking = analysis.rank(results_of(errors))
    assert set(ranking.like_the_best()) == {"a", "b"}
    assert ranking.p_value < 1e-6


def test_cells_that_somebody_has_not_run_are_left_out():
    results = results_of({"a": [1, 1, 1], "b": [2, 2, 2]})
    partly = results[
        ~((results["peer"] == "b") & (results["repeat"] == 2) & (results["dataset"] == "d1"))
    ]
    assert len(analysis.error_table(partly)) == 2
    with pytest.raises(InvalidInput, match="at least two peers in two cells"):
        analysis.rank(results[results["peer"] == "a"])


def test_duels_are_decided_by_pairs_not_by_the_noise_both_share():
    results = results_of(
        {"knothole": [1.0, 1.0, 1.0, 1.0], "rival": [1.2, 1.0, 0.9, np.inf]}, noise=5.0
    )
    duels = analysis.duels(results)
    assert duels["outcome"].tolist() == ["win", "tie", "loss", "win"]
    assert duels["error"].tolist() == [1.0] * 4 and np.isinf(duels["rival_error"].iloc[3])
    tally = analysis.tally(duels)
    assert tally.loc["rival"].to_dict() == {"win": 2, "tie": 1, "loss": 1, "win_or_tie": 0.75}


def test_false_alarms_are_as_rare_as_alpha():
    same = results_of({"knothole": [1.0] * 400, "rival": [1.0] * 400}, repeats=2, noise=1.0)
    ties = (analysis.duels(same)["outcome"] == "tie").mean()
    assert abs(ties - 0.95) < 4 * np.sqrt(0.05 * 0.95 / 400)


def test_identical_predictions_and_failures_of_both_are_ties():
    results = results_of({"knothole": [1.0, np.inf, np.inf], "rival": [1.0, np.inf, 1.0]})
    copied = results[results["peer"] == "knothole"]["groups"].tolist()
    results.loc[results["peer"] == "rival", "groups"] = pd.Series(
        copied, index=results.index[results["peer"] == "rival"]
    )
    assert analysis.duels(results)["outcome"].tolist() == ["tie", "tie", "loss"]
    with pytest.raises(InvalidInput, match="peer must be among those in the results; got 'odd'"):
        analysis.duels(results, "odd")


def test_error_and_time_stand_side_by_side():
    overview = analysis.overview(results_of({"a": [1.0, 2.0], "b": [2.0, 8.0], "c": [1.0, np.inf]}))
    assert overview.index.tolist() == ["a", "c", "b"]
    assert overview["relative_error"].tolist() == pytest.approx([1.0, 1.0, np.sqrt(8)])
    assert overview["failures"].tolist() == [0, 3, 0]
    assert (overview["fit_seconds"] == 1).all() and (overview["predict_seconds"] == 2).all()


def test_by_dataset_every_dataset_counts_once():
    rng = np.random.default_rng(3)
    ratio = np.exp(rng.normal(0.2, 0.1, size=(10, 2)))  # two cells of each of ten datasets
    errors = {
        "knothole": [1.0] * 20,
        "rival": list(ratio.reshape(-1)),
        "same": [1.0] * 20,
        "worse": list(1 / ratio.reshape(-1)),
    }
    found = analysis.by_dataset(analysis.duels(results_of(errors)))
    of_datasets = np.log(ratio).mean(axis=1)
    plain = stats.wilcoxon(of_datasets).pvalue
    assert found.loc["rival", "ratio"] == pytest.approx(np.exp(-of_datasets.mean()))
    assert found.loc["rival", "better"] == (of_datasets > 0).sum()
    assert found.loc["worse", "ratio"] == pytest.approx(np.exp(of_datasets.mean()))
    # Holm: the smallest of three p-values counts threefold, none less than a smaller one.
    assert found["p_value"].to_dict() == pytest.approx(
        {"rival": 3 * plain, "worse": 3 * plain, "same": 1.0}
    )
    failed = analysis.duels(results_of(errors | {"rival": [np.inf] * 2 + [2.0] * 18}))
    assert analysis.by_dataset(failed).loc["rival", "datasets"] == 9


def test_groups_by_the_way_missing_values_come():
    """Against the best rival of each cell; a table with natural missing values is in two groups."""
    lines = [
        ("concrete", "MCAR 10 %", "a", 1.0, 1.0, "tie"),
        ("concrete", "MCAR 10 %", "b", 1.0, 2.0, "win"),
        ("titanic", "MCAR 30 %", "a", 1.21, 1.0, "loss"),
        ("titanic", "outage of column 1", "a", 1.02, 1.0, "tie"),
    ]
    columns = ["dataset", "scenario", "rival", "error", "rival_error", "outcome"]
    found = analysis.by_group(pd.DataFrame(lines, columns=columns))
    assert found.index.tolist() == ["MCAR", "outage", "natural"]
    assert found["cells"].tolist() == [2, 1, 2]
    assert found["win_or_tie"].tolist() == pytest.approx([2 / 3, 1.0, 0.5])
    assert found["ratio"].tolist() == pytest.approx([1.1, 1.02, np.sqrt(1.21 * 1.02)])
    assert found["largest"].tolist() == pytest.approx([1.21, 1.02, 1.21])
    assert found["cells_behind"].tolist() == [1, 0, 1]
