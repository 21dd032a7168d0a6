"""The page on auxiliary columns says what results and times say."""

import pandas as pd
import pytest

from benchmarks.auxiliary import page
from benchmarks.auxiliary.run import REPEATS, SCENARIOS, WITH, WITHOUT


def results(factor, repeats=REPEATS):
    """Errors of one table: with auxiliary columns ``factor`` times those without."""
    rows = []
    for repeat in repeats:
        for scenario in SCENARIOS:
            for peer in (WITHOUT, WITH):
                times = factor if peer == WITH and scenario != SCENARIOS[0] else 1.0
                error = times * (2.0 + 0.1 * (repeat - REPEATS[0]))
                groups = [error**2 * (1 + 0.01 * i) for i in range(20)]
                rows.append(
                    {"dataset": "houses", "task": "regression", "repeat": repeat, "peer": peer,
                     "scenario": scenario, "rmse": error, "log_loss": None, "groups": groups,
                     "failure": ""}
                )  # fmt: skip
    return pd.DataFrame(rows)


def written(folder, factor, repeats=REPEATS):
    (folder / "results").mkdir()
    page.keep(folder / "results", results(factor, repeats))
    return page.write(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("factor", "goal", "behind"), [(0.9, "yes", "yes"), (0.98, "no", "yes"), (1.1, "no", "no")]
)
def test_verdicts_are_those_of_the_errors(tmp_path, factor, goal, behind):
    text = written(tmp_path, factor)
    for scenario in SCENARIOS[1:]:
        assert f"at most 0.97 with {scenario}: **{goal}** ({factor:.3f}" in text
    assert f"No table significantly above 1.00: **{behind}**" in text
    assert "preliminary" not in text
    (row,) = (line for line in text.splitlines() if line.startswith("| houses"))
    mark = "-" if factor > 1 else r"+"
    assert row == f"| houses | 5 | 1.000 ± 0.000 | {f'{factor:.3f} ± 0.000 {mark} | ' * 2}".rstrip()


def test_draws_that_are_missing_are_told(tmp_path):
    assert "Not all of the 5 draws have been made" in written(tmp_path, 0.9, REPEATS[:2])


def test_times_are_judged_by_density(tmp_path):
    times = pd.DataFrame(
        {"dataset": ["a", "b", "a"], "density": ["mixture", "mixture", "Gaussian mixture"],
         "auxiliary": [0.010, 0.012, 0.030], "features": [0.010, 0.010, 0.020]}
    )  # fmt: skip
    (tmp_path / "results").mkdir()
    times.to_csv(tmp_path / "results" / page.TIMES)
    text = page.write(tmp_path).read_text(encoding="utf-8")
    assert "under a mixture: **yes** (geometric mean 1.10, largest 1.20)" in text
    assert "under a Gaussian mixture: **no** (geometric mean 1.50, largest 1.50)" in text
