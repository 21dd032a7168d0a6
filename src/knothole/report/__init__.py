"""Plots and the HTML report of a wrapped model on held-out rows."""

from knothole.report.displays import (
    AssociationDisplay,
    CoverageDisplay,
    MarginalDisplay,
    OutageDisplay,
    PairDisplay,
    RobustnessDisplay,
)
from knothole.report.evaluation import Comparison, Evaluation, evaluate
from knothole.report.methods import Case
from knothole.report.page import render

__all__ = [
    "AssociationDisplay", "Case", "Comparison", "CoverageDisplay", "Evaluation", "MarginalDisplay",
    "OutageDisplay", "PairDisplay", "RobustnessDisplay", "evaluate", "render",
]  # fmt: skip
