"""What the pictures of the benchmark show, asked of the figures themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from tests.benchmarks.made_up import made_up

from benchmarks import pictures
from benchmarks.suite import figures as drawing
from benchmarks.suite import page as pages
from benchmarks.suite.analysis import Ranking
from benchmarks.suite.peers.roster import all_peers

ERRORS = {"knothole": 1.0, "native": 1.5, "retrained x8": 1.2, "median": 1.3}


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


def no_text_on_another(figure) -> bool:
    figure.draw_without_rendering()
    boxes = [
        text.get_window_extent()
        for axes in figure.axes
        for text in axes.texts
        if text.get_text() and text.get_visible()
    ]
    return not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))


def test_every_picture_is_a_png():
    figures = pages.figures(made_up(ERRORS))
    assert list(figures) == ["tables", "ranks", "times", "duels"]
    for figure in figures.values():
        data = pictures.png(figure)
        assert data.startswith(b"\x89PNG") and len(data) > 5000
        assert data == pictures.png(figure)


def test_tables_show_methods_on_the_side_of_the_better():
    made = made_up(ERRORS, titanic={"native": 0.1})
    panels = drawing.tables(made.errors, "Errors").axes
    assert [axes.get_title(loc="left") for axes in panels] == list(drawing.PANELS.values())
    for axes in panels:
        line = {line.get_label(): line for line in axes.lines}["native"]
        over_ours = dict(zip(line.get_ydata(), line.get_xdata(), strict=True))
        assert over_ours["titanic"] < 1 < over_ours["abalone"]
        assert over_ours["abalone"] == pytest.approx(
            ERRORS["native"] / ERRORS["knothole"], rel=0.05
        )


def test_ranks_name_every_peer_with_its_rank():
    made = made_up(ERRORS)
    figure = drawing.ranks(made.ranking, "Ranks")
    shown = texts(figure)
    assert {"knothole  1.00", "retrained x8  2.00", "3.00  median", "4.00  native"} <= set(shown)
    assert f"critical difference {made.ranking.critical_difference:.2f}" in shown
    assert no_text_on_another(figure)


def test_bars_join_those_that_cannot_be_told_apart():
    ranks = pd.Series({"a": 1.0, "b": 1.5, "c": 2.4, "d": 5.0, "e": 5.1})
    ranking = Ranking(ranks, 0.01, 1.0, 10, 5)
    assert ranking.alike() == [("a", "b"), ("b", "c"), ("d", "e")]
    assert drawing._rows_of(ranking) == [[(1.0, 1.5), (5.0, 5.1)], [(1.5, 2.4)]]
    alone = Ranking(pd.Series({"a": 1.0, "b": 4.0}), 0.01, 1.0, 10, 5)
    assert alone.alike() == []


@pytest.mark.parametrize("seed", range(3))
def test_names_of_points_cover_no_other_name_or_point(seed):
    """All peers at once, crowded: the worst that a real run can look like."""
    rng = np.random.default_rng(seed)
    names = list(all_peers())
    overview = pd.DataFrame(
        {
            "relative_error": np.exp(rng.uniform(0, 0.5, len(names))),
            "predict_seconds": 10 ** rng.uniform(-2, 0, len(names)),
        },
        index=names,
    )
    figure = drawing.times(overview, "Times")
    assert set(texts(figure)) == set(names)
    assert no_text_on_another(figure)


def test_peers_that_always_failed_have_no_point():
    made = made_up(ERRORS | {"MICE": np.inf})
    assert "MICE" in made.overview.index
    assert set(texts(drawing.times(made.overview, "Times"))) == set(ERRORS)


def test_bars_of_duels_add_up_and_show_the_goal():
    made = made_up(ERRORS, titanic={"knothole": 1.25})
    figure = drawing.duels(made.tallies, "Duels", goal=0.85)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(
        made.tallies["knothole"].index
    )
    widths = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert set(widths) == {"win", "tie", "loss"}
    np.testing.assert_allclose(np.sum(list(widths.values()), axis=0), 100)
    assert widths["loss"][0] == pytest.approx(100 / 3)
    assert {"goal 85 %", " 66 %", " 100 %"} <= {text for text in texts(figure) if text}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["win", "tie", "loss"]


def test_each_of_ours_has_a_panel():
    made = made_up({"knothole": 1.5, "knothole refitted": 1.0, "native": 1.2}, "same")
    figure = drawing.duels(made.tallies, "Duels")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["knothole", "knothole refitted"]
    assert not any("goal" in text for text in texts(figure))


def test_too_little_for_a_picture_gives_none():
    assert list(pages.figures(made_up({"native": 1.0}))) == ["times"]
