"""Displays draw what they are given, on axes of ours or of theirs."""

import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from knothole import report
from knothole.errors import InvalidInput, MissingExtra

matplotlib.use("agg")


def displays(evaluation):
    return [
        report.RobustnessDisplay.from_results(evaluation.robustness),
        report.OutageDisplay.from_results(evaluation.outage),
        report.CoverageDisplay.from_results(evaluation.coverage),
        report.MarginalDisplay.from_results(evaluation.fit.marginals[0]),
        report.MarginalDisplay.from_results(evaluation.fit.marginals[1]),
        report.PairDisplay.from_results(evaluation.fit.pairs[0]),
        report.AssociationDisplay.from_results(evaluation.fit),
    ]


def test_all_of_them_draw_on_axes_given_and_return_themselves(evaluation):
    for display in displays(evaluation):
        ax = Figure().subplots()
        assert display.plot(ax) is display
        assert display.ax_ is ax and display.figure_ is ax.figure
        assert ax.has_data()


def test_without_axes_a_figure_of_pyplot_is_made(evaluation):
    from matplotlib import pyplot

    display = report.RobustnessDisplay.from_results(evaluation.robustness).plot()
    assert pyplot.fignum_exists(display.figure_.number)
    pyplot.close(display.figure_)


def test_drawing_leaves_the_users_settings_alone(evaluation):
    before = dict(matplotlib.rcParams)
    for display in displays(evaluation):
        display.plot(Figure().subplots())
    assert dict(matplotlib.rcParams) == before


def test_robustness_lines_are_means_and_bands_are_ranges(evaluation):
    results = evaluation.robustness
    ax = report.RobustnessDisplay.from_results(results).plot(Figure().subplots()).ax_
    lines = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    assert set(lines) == {"knothole", "scikit-learn alone", "other"}
    errors = results.errors["RMSE"]["knothole"]
    assert lines["knothole"].get_ydata() == pytest.approx(errors.mean(axis=1))
    assert lines["knothole"].get_xdata() == pytest.approx(100 * np.array(results.rates))
    bands = [collection.get_datalim(ax.transData) for collection in ax.collections]
    assert any(band.y1 == pytest.approx(errors.max()) for band in bands)
    order = [text.get_text() for text in ax.get_legend().get_texts()]
    assert order == ["knothole", "scikit-learn alone", "other"]


def test_what_leaves_the_plot_is_said(evaluation):
    ax = report.RobustnessDisplay.from_results(evaluation.robustness).plot(Figure().subplots()).ax_
    notes = [text.get_text() for text in ax.texts]
    assert any(note.startswith("beyond the plot at 90 %:\nscikit-learn alone: 4") for note in notes)


def test_lines_differ_in_marker_as_well_as_colour(evaluation):
    ax = report.RobustnessDisplay.from_results(evaluation.robustness).plot(Figure().subplots()).ax_
    looks = [line.get_marker() for line in ax.lines if not line.get_label().startswith("_")]
    assert len(set(looks)) == len(looks)


def test_unknown_metric_is_named(evaluation):
    with pytest.raises(InvalidInput, match=r"metric must be 'RMSE'; got 'MAE'"):
        report.RobustnessDisplay.from_results(evaluation.robustness, "MAE")


def test_without_matplotlib_the_extra_is_named(evaluation, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'knothole\[plot\]'"):
        report.RobustnessDisplay.from_results(evaluation.robustness).plot()
