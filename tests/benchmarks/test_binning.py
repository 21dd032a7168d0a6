"""Irregular histograms against enumeration and known shapes; the authors' own encoding."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.paper import binning
from knothole.errors import InvalidInput, NotFitted, UnseenCategory


def penalised(values: np.ndarray, edges: np.ndarray) -> float:
    """Penalised likelihood straight from its definition, on the range scaled to 1."""
    n, bins = len(values), len(edges) - 1
    total = 0.0
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        count = np.sum((values <= high) & ((values > low) | (i == 0)))
        total += count * math.log(count / (n * (high - low) / (edges[-1] - edges[0])))
    return total - math.log(math.comb(n - 1, bins - 1)) - (bins - 1) - math.log(bins) ** 2.5


def best_by_enumeration(values: np.ndarray, max_bins: int) -> float:
    ends = np.unique(values)
    return max(
        penalised(values, np.array([ends[0], *inner, ends[-1]]))
        for bins in range(1, max_bins + 1)
        for inner in itertools.combinations(ends[1:-1], bins - 1)
    )


@given(seed=st.integers(0, 10_000), n=st.integers(3, 40), power=st.floats(1, 12))
@settings(max_examples=40, deadline=None)
def test_dynamic_programming_finds_the_best_partition(seed, n, power):
    values = np.random.default_rng(seed).random(n).round(1) ** power
    if values.min() == values.max():
        return
    edges = binning.irregular_edges(values, max_bins=4)
    assert 2 <= len(edges) <= 5
    assert penalised(values, edges) == pytest.approx(best_by_enumeration(values, 4), abs=1e-9)


def test_a_step_density_is_recovered():
    rng = np.random.default_rng(1)
    values = np.concatenate(
        [rng.uniform(0, 2, 500), rng.uniform(2, 3, 2000), rng.uniform(3, 9, 50)]
    )
    edges = binning.irregular_edges(values)
    assert len(edges) == 4
    np.testing.assert_allclose(edges, [0, 2, 3, 9], atol=0.1)


@pytest.mark.parametrize("n", [50, 500, 5000])
def test_a_uniform_sample_is_one_bin_and_falls_back_to_equal_width(n):
    values = np.random.default_rng(n).random(n)
    assert len(binning.irregular_edges(values)) == 2
    np.testing.assert_allclose(np.diff(binning.histogram_edges(values)), np.ptp(values) / 10)


def test_ten_bins_are_the_most():
    rng = np.random.default_rng(2)
    values = np.concatenate([rng.normal(10 * k, 0.3, 400) for k in range(12)])
    assert len(binning.irregular_edges(values, max_bins=10)) == 11
    assert len(binning.irregular_edges(values, max_bins=40)) > 11
    assert len(binning.histogram_edges(values)) == 11


def steps(n):
    """So many dense steps of width 0.1, two apart: as many bins, and one for each gap."""
    return np.concatenate([np.linspace(2 * k, 2 * k + 0.1, 80) for k in range(n)])


@pytest.mark.parametrize(
    ("values", "edges"),
    [
        (np.linspace(0, 1, 100), [0, 1]),
        (steps(2), [0, 0.1, 2, 2.1]),
        (steps(5), [0, 0.1, 2, 2.1, 4, 4.1, 6, 6.1, 8, 8.1]),
        # A sparse tail makes ten, which are kept; another step eleven, which are not.
        (np.append(steps(5), [9, 10, 11, 12]), [0, 0.1, 2, 2.1, 4, 4.1, 6, 6.1, 8, 8.1, 12]),
        (steps(6), np.linspace(0, 10.1, 11)),
    ],
    ids=["one", "three", "nine", "ten", "eleven"],
)
def test_more_than_ten_bins_become_ten_of_equal_width_by_the_papers_rule(values, edges):
    np.testing.assert_allclose(binning.paper_edges(values), edges)
    table = pd.DataFrame({"x": values})
    found = binning.OneHotBinning(rule="paper").fit(table).edges_["x"]
    np.testing.assert_allclose(found, edges)


def test_rules_have_names():
    with pytest.raises(InvalidInput, match="rule must be one of"):
        binning.OneHotBinning(rule="ten").fit(pd.DataFrame({"x": steps(2)}))


def test_scale_and_shift_do_not_matter():
    values = np.random.default_rng(3).exponential(size=800)
    np.testing.assert_allclose(
        binning.irregular_edges(values * 250 - 7), binning.irregular_edges(values) * 250 - 7
    )


def test_constant_and_empty_columns():
    assert binning.histogram_edges([2.0, 2.0, np.nan]).tolist() == [2.0]
    assert binning.equal_width_edges([2.0, 2.0]).tolist() == [2.0]
    with pytest.raises(InvalidInput, match="at least one that is not NaN"):
        binning.irregular_edges([np.nan])
    with pytest.raises(InvalidInput, match="max_bins must be at least 1"):
        binning.irregular_edges([1.0, 2.0], max_bins=0)


# --- dummies -------------------------------------------------------------------------------------


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame(
        {
            "income": rng.exponential(size=400),
            "children": rng.choice([0, 1, 3], 400),
            "region": rng.choice(["north", "south"], 400),
            "flat": np.full(400, 1.5),
        }
    )


def test_every_row_has_one_dummy_in_every_one_hot_group(table):
    encoded = binning.OneHotBinning().fit(table).transform(table)
    for names in encoded.one_hot.values():
        assert (encoded.table[list(names)].sum(axis=1) == 1).all()
    assert encoded.one_hot["children"] == ("children=0", "children=1", "children=3")
    assert encoded.one_hot["flat"] == ("flat=1",)


def test_bins_contain_their_right_end(table):
    binned = binning.OneHotBinning().fit(table)
    edges = binned.edges_["income"]
    rows = table.iloc[: len(edges)].assign(income=edges)
    codes = binned.transform(rows).table.filter(like="income=").to_numpy().argmax(axis=1)
    assert codes.tolist() == [0, *range(len(edges) - 1)]


def test_missing_values_and_values_that_training_did_not_have(table):
    binned = binning.OneHotBinning().fit(table)
    rows = table.iloc[:2].assign(income=[1e9, np.nan], children=[9, np.nan], region=["north", None])
    encoded = binned.transform(rows).table
    assert encoded.iloc[0].filter(like="income=").tolist()[-1] == 1
    assert encoded.iloc[0].filter(like="children=").tolist() == [0, 0, 1]
    assert encoded.iloc[1].drop("flat=1").isna().all()
    with pytest.raises(UnseenCategory, match="'west'"):
        binned.transform(rows.assign(region="west"))


def test_it_must_be_fitted(table):
    with pytest.raises(NotFitted, match="fit"):
        binning.OneHotBinning().transform(table)


# --- the authors ---------------------------------------------------------------------------------


def test_the_authors_encoding_and_split_are_reproduced_exactly(data):
    split = binning.authors_insurance(pd.read_csv(data / "insurance.csv"))
    meta = json.loads((data / "mc2" / "insurance" / "meta.json").read_text())
    for name, edges in meta["bin_edges"].items():
        np.testing.assert_array_equal(split.edges[name], edges)
    assert list(split.one_hot) == meta["group_names"]
    groups = [i for i, names in enumerate(split.one_hot.values()) for _ in names]
    assert groups == meta["feature_groups"]
    for name, part in {"train": split.train, "valid": split.valid, "test": split.test}.items():
        published = pd.read_csv(data / "mc2" / "insurance" / f"{name}.csv")
        np.testing.assert_array_equal(part.rows, published.pop("row_index"))
        np.testing.assert_allclose(part.target, published.pop("target"), rtol=1e-14)
        assert list(part.table.columns) == list(published.columns) == meta["onehot_names"]
        np.testing.assert_array_equal(part.table.to_numpy(), published.to_numpy())
