"""Verdicts on made-up results that win and lose; the page and its files say what they say."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from tests.benchmarks.made_up import DATASETS, made_up

from benchmarks import markdown
from benchmarks.suite import page as pages
from benchmarks.suite import results
from benchmarks.suite.peers import roster
from benchmarks.suite.scenarios import SETTINGS, Mechanism, Scenario
from benchmarks.suite.verdicts import verdicts
from knothole.errors import InvalidInput

WINS = {"knothole": 1.0, "native": 1.5, "retrained x8": 1.2, "median": 1.3}


def said(made) -> list[str]:
    return [
        str(verdict)
        for verdict in verdicts(
            made.setting, made.ranking, made.tallies, made.by_dataset, made.corrections
        )
    ]


def written(folder, *suites) -> str:
    for made in suites:
        results.save(made, folder)
    return pages.write(folder).read_text()


# --- verdicts ------------------------------------------------------------------------------------


def test_a_suite_that_wins_everywhere():
    best, by_dataset, each = said(made_up(WINS))
    # Three datasets can never be enough for Wilcoxon's test.
    assert by_dataset.startswith(
        "knothole: smaller errors than each other method, every dataset counted once: **no** "
        "(Wilcoxon, Holm; not shown against"
    )
    assert "retrained x8 0.833 of its error, ahead on 3 of 3, p 0.75" in by_dataset
    assert best.startswith("best mean rank of all methods: **yes** (knothole 1.00, retrained x8")
    assert each.startswith(
        "knothole: no loss in at least 97 % of cells against each other method: "
    )
    assert "**yes**" in each and "100 %" in each


def test_a_suite_that_loses_says_against_whom_and_how_often():
    made = made_up(WINS, titanic={"knothole": 1.25}, concrete={"knothole": 1.25})
    best, _, each = said(made)
    assert "**no** (knothole 1.67, retrained x8 1.33; they cannot be told apart)" in best
    assert "(not against retrained x8 33 %)" in each and "**no**" in each
    best, _, each = said(made_up(WINS | {"knothole": 2.0}))
    assert "**no** (knothole 4.00, retrained x8 1.00; they differ)" in best
    assert "not against" in each and all(f"{name} 0 %" in each for name in set(WINS) - {"knothole"})


def test_a_correction_is_held_against_none_and_takes_no_rank():
    """A cell that is worse by more than half a per cent is named."""
    plain = {roster.UNCORRECTED: 1.004}
    made = made_up(WINS | plain)
    *others, harm = said(made)
    assert len(others) == len(said(made_up(WINS)))
    assert harm.startswith("corrected, no cell is worse by 0.5 % and a standard error")
    assert ": **yes** (0 of 21 cells; on average -0.40 %)" in harm
    assert roster.UNCORRECTED not in made.overview.index
    assert roster.UNCORRECTED not in set(made.duels["knothole"]["rival"])
    worse = said(made_up(WINS | plain, titanic={"knothole": 1.03}))[-1]
    assert "**no** (7 of 21 cells: titanic, MCAR 10 % +2.59 +- 0.2" in worse
    # What is within a standard error is no harm.
    noisy = made_up(WINS | plain, titanic={"knothole": 1.03})
    rng = np.random.default_rng(0)
    noisy.results["groups"] = [rng.normal(1.0, 1.0, 20) for _ in noisy.results["groups"]]
    assert "**yes** (0 of 21 cells" in said(noisy)[-1]


@pytest.mark.parametrize(("setting", "goal"), [("same", 80), ("changed", 95)])
def test_with_missing_values_in_training_both_of_ours_are_held_against_native(setting, goal):
    errors = {"knothole": 1.5, "knothole refitted": 1.0, "native": 1.2}
    made = made_up(errors, setting)
    best, _, _, *each, plain, refitted = said(made)
    assert all(
        claim.endswith("**not measured** (no other method but native was run).") for claim in each
    )
    with_another = said(made_up(errors | {"median": 1.3}, setting))
    assert [claim.split(" (")[0] for claim in with_another[3:5]] == [
        f"{name}: no loss in at least 95 % of cells against each other method: **{word}**"
        for name, word in (("knothole", "no"), ("knothole refitted", "yes"))
    ]
    assert "**yes** (knothole refitted 1.00, native 2.00" in best
    claim = f"no loss in at least {goal} % of cells against native"
    assert plain == f"knothole: {claim}: **no** (0 %)."
    assert refitted == f"knothole refitted: {claim}: **yes** (100 %)."
    # Two of three cells are enough for neither goal.
    lost = said(made_up(errors, setting, titanic={"knothole refitted": 1.3}))
    assert lost[-1].endswith("**no** (66 %).")


def test_what_was_not_run_is_not_claimed():
    best, *_, native = said(made_up({"knothole": 1.0, "median": 2.0}, "same"))
    assert native.endswith("**not measured** (native was not run).")
    assert "**yes**" in best
    assert said(made_up({"knothole": 1.0}))[0].endswith(
        "**not measured** (fewer than two cells that all methods ran)."
    )
    both = said(made_up({"knothole": 1.0, "knothole refitted": 1.0}, "same"))
    assert both == [
        "best mean rank of all methods: **not measured** (needs knothole and another method)."
    ]


def test_our_own_methods_are_not_compared_with_each_other():
    made = made_up({"knothole": 1.5, "knothole refitted": 1.0, "native": 1.2}, "same")
    assert all(list(tally.index) == ["native"] for tally in made.tallies.values())


# --- pages ---------------------------------------------------------------------------------------


def test_a_page_of_several_settings_is_written_from_its_files(tmp_path):
    changed = made_up({"knothole": 1.5, "knothole refitted": 1.0, "native": 1.2}, "changed")
    page = written(tmp_path, changed, made_up(WINS))
    files = {file.name for file in (tmp_path / "results").iterdir()}
    for setting in ("deployment", "changed"):
        kept = {f"suite_{setting}.parquet", f"suite_{setting}.json"}
        drawn = {f"suite_{setting}_{name}.png" for name in ("ranks", "times", "duels")}
        assert kept | drawn <= files
        assert all(f"(results/{name})" in page for name in drawn)
    assert page.index("## Missing values at deployment only") < page.index(
        "by different mechanisms\n\n###"
    )
    assert "by the same mechanism" not in page
    again = pages.write(tmp_path).read_text()
    assert again == page


def test_a_page_says_where_knothole_loses(tmp_path):
    page = written(tmp_path, made_up(WINS, titanic={"knothole": 1.25}))
    assert (
        "7 of 63 comparisons, 7 of them against methods that are told how values go missing" in page
    )
    row = r"| titanic | MCAR 10 % | retrained x8\* | 1.250 | 1.200 | 4.2 % | < 0.0001 |"
    assert row in page
    assert "| abalone | MCAR 10 % | retrained x8" not in page
    assert "### Why" not in page
    (tmp_path / "results" / "suite_deployment_why.md").write_text("It rained.\n")
    page = written(tmp_path, made_up(WINS))
    assert "Nowhere." in page and "### Why\n\nIt rained.\n" in page


def test_a_page_has_errors_auc_times_and_what_was_skipped(tmp_path):
    page = written(tmp_path, made_up(WINS, abalone={"median": np.inf}))
    assert r"| dataset | scenario | **knothole** | retrained x8\* | median | native |" in page
    assert "| abalone | MAR 30 % | **1.000** | 1.200 | failed | 1.500 |" in page
    assert "| titanic | MAR 30 % | **1.000** | 0.8333 | 0.7692 | 0.6667 |" in page  # AUC
    assert "| **knothole** | 1.00 | 1.000 | 1.000 | 1.0 | 0.10 | 0 |" in page
    assert (
        "on each of 3 datasets by their mean rank in its cells (21 that\nall methods ran, of 21)"
        in page
    )
    assert "| native | 0.667, 3 of 3, p 0.75 |" in page
    assert "- Skipped: ydf (ydf is not installed)." in page
    assert "- Failed: median, 14 times (abalone): `broke`" in page
    assert "knothole 0.1.0" in page and "repeat r has the seed r" in page


def test_results_keep_their_digits_and_stay_small(tmp_path):
    made = made_up(WINS)
    results.save(made, tmp_path)
    (kept,) = results.load(tmp_path)
    pd.testing.assert_series_equal(
        kept.results["rmse"], made.results["rmse"], check_dtype=False, rtol=1e-6
    )
    pd.testing.assert_frame_equal(
        kept.tallies["knothole"], made.tallies["knothole"], check_dtype=False
    )
    # The whole suite is some fifty times as large, and must stay below a megabyte.
    assert (tmp_path / "results" / "suite_deployment.parquet").stat().st_size < 2**20 / 40


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"no results/suite_\*\.parquet to write a page from"):
        pages.write(tmp_path)
    with pytest.raises(InvalidInput, match=r"has no settings\.json"):
        results.gather(tmp_path)
    (tmp_path / "settings.json").write_text(json.dumps({"scenarios": []}))
    with pytest.raises(InvalidInput, match="no finished cell yet"):
        results.gather(tmp_path)


def test_settings_are_told_by_their_scenarios():
    assert {name: results.setting_of(planned) for name, planned in SETTINGS.items()} == {
        name: name for name in SETTINGS
    }
    mcar, mar = Mechanism("mcar", 0.1), Mechanism("mar", 0.3)
    assert results.setting_of([Scenario(mcar, mcar), Scenario(mar, mcar)]) == "changed"


def test_cells_keep_the_order_of_the_registry():
    made = made_up(WINS)
    assert [name for name, _ in made.cells[:: len(SETTINGS["deployment"])]] == list(DATASETS)
    assert made.errors.index.tolist() == made.cells


def test_idle_peers_are_on_the_roster_and_ours_are():
    names = set(roster.all_peers())
    assert set(roster.OWN) <= names
    for setting in SETTINGS:
        assert set(roster.idle(setting)) < names
        assert "knothole" not in roster.idle(setting)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (-12.345, "-12.35"), (99999.5, "100000"), (np.nan, ""), (np.inf, "failed")],
)
def test_numbers_have_four_digits_that_matter(value, text):
    assert markdown.number(value) in (text, text.replace("12.35", "12.34"))
    assert markdown.p_value(np.nan) == ""
