"""Pipelines before trees, and models made of models, as one ensemble over the raw columns.

A step that works on each column alone only changes how the trees see it: a split on a scaled
number is a split on the number, a split on a dummy is a split on a set of categories. So the steps
are folded into the splits (:mod:`~knothole.trees.pipelines.fold`). The result is trees over the
user's own columns, in which no imputed value and no row of zeros hides a missing value.
"""
