"""Circuits: worked by hand, by enumeration, and beside the densities they stand for."""

import inspect
import itertools
import json
import textwrap
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from tests.densities import made_tables

from knothole.columns.columns import Columns, Evidence
from knothole.densities.base import Within
from knothole.densities.circuit.density import Circuit
from knothole.densities.circuit.nodes import evaluate, flows, read_nodes
from knothole.densities.em import EncodedRows
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.densities.univariate.base import log_of
from knothole.densities.univariate.packed import pack
from knothole.errors import DamagedFile, InvalidInput

MISSING = np.nan


def product_nodes(names, copies):
    """A sum of products of all variables."""
    nodes, products = [], []
    for _ in range(copies):
        nodes += [{"leaf": name} for name in names]
        first = len(nodes) - len(names)
        products.append(len(nodes))
        nodes.append({"product": list(range(first, len(nodes)))})
    return [*nodes, {"sum": products}]


def mixed_table(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    table = made_tables.mixed_table(rows, rng)
    return table.mask(rng.random(table.shape) < 0.2)


def quietly(density, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return density.fit(*args, **options)


# ---- a circuit worked by hand -------------------------------------------------------------------

#: Weather: 0.6 (dry: rain 0.1, umbrella 0.2) + 0.4 (wet: rain 0.7, and of those who carry an
#: umbrella, two kinds, 0.25 at 0.5 and 0.75 at 0.9). The wet part shares its distribution of rain.
WEATHER = {
    "format": "knothole circuit",
    "version": 1,
    "variables": [
        {"name": "rain", "kind": "categorical", "levels": ["no", "yes"]},
        {"name": "umbrella", "kind": "categorical", "levels": ["no", "yes"]},
    ],
    "nodes": [
        {"leaf": "rain", "probabilities": [0.9, 0.1]},
        {"leaf": "umbrella", "probabilities": [0.8, 0.2]},
        {"product": [0, 1]},
        {"leaf": "rain", "probabilities": [0.3, 0.7]},
        {"leaf": "umbrella", "probabilities": [0.5, 0.5]},
        {"leaf": "umbrella", "probabilities": [0.1, 0.9]},
        {"sum": [4, 5], "weights": [0.25, 0.75]},
        {"product": [3, 6]},
        {"sum": [2, 7], "weights": [0.6, 0.4]},
    ],
}


def weather():
    return Circuit.from_json(json.dumps(WEATHER))


def test_worked_by_hand():
    circuit = weather()
    p = np.exp(circuit.score_samples(
        pd.DataFrame({
            "rain": ["no", "no", "yes", "yes", "yes", None, None],
            "umbrella": ["no", "yes", "no", "yes", None, "yes", None],
        })
    ))  # fmt: skip
    # p(umbrella | wet) = 0.25 * 0.5 + 0.75 * 0.9 = 0.8
    expected = [
        0.6 * 0.9 * 0.8 + 0.4 * 0.3 * 0.2,
        0.6 * 0.9 * 0.2 + 0.4 * 0.3 * 0.8,
        0.6 * 0.1 * 0.8 + 0.4 * 0.7 * 0.2,
        0.6 * 0.1 * 0.2 + 0.4 * 0.7 * 0.8,
        0.6 * 0.1 + 0.4 * 0.7,
        0.6 * 0.2 + 0.4 * 0.8,
        1.0,
    ]
    np.testing.assert_allclose(p, expected, rtol=1e-12)
    np.testing.assert_allclose(p[:4].sum(), 1, rtol=1e-12)


def test_regions_worked_by_hand():
    circuit = weather()
    nothing = pd.DataFrame({"rain": [None], "umbrella": ["yes"]}, dtype=object)
    np.testing.assert_allclose(
        np.exp(circuit.log_mass(nothing, {"rain": ["yes"]})), 0.6 * 0.1 * 0.2 + 0.4 * 0.7 * 0.8
    )
    np.testing.assert_allclose(
        np.exp(circuit.log_mass(nothing, {"rain": ["no", "yes"]})), 0.6 * 0.2 + 0.4 * 0.8
    )
    assert np.isneginf(circuit.log_mass(nothing, {"rain": []})).all()


def test_one_step_of_em_worked_by_hand():
    """One row (rain, no umbrella): its shares of dry and wet, and within wet."""
    circuit = weather()
    found = circuit.expect(Evidence(np.array([[1.0, 0.0]])), np.array([2.0]))
    dry, wet = 0.6 * 0.1 * 0.8, 0.4 * 0.7 * 0.2
    share = dry / (dry + wet)
    first = 0.25 * 0.5 / (0.25 * 0.5 + 0.75 * 0.1)
    # Edges: of the inner sum first, for it comes first among the nodes.
    expected = [2 * (1 - share) * first, 2 * (1 - share) * (1 - first), 2 * share, 2 * (1 - share)]
    np.testing.assert_allclose(found.latents[0], expected, rtol=1e-12)
    np.testing.assert_allclose(found.log_likelihood, 2 * np.log(dry + wet))
    np.testing.assert_allclose(found.distributions[0].count, [[0, 0], [2 * share, 2 * (1 - share)]])


def test_samples_match_masses():
    circuit = weather()
    n = 20_000
    draws = circuit.sample_points(n, np.random.default_rng(0))
    for row in itertools.product([0.0, 1.0], repeat=2):
        p = np.exp(circuit.log_evidence(Evidence(np.array([row]))))[0]
        hit = (draws == row).all(axis=1).mean()
        assert abs(hit - p) < 4.5 * np.sqrt(p * (1 - p) / n)


def test_completions_match_conditionals():
    """Of mixed types, under each of several kinds of evidence."""
    circuit = quietly(Circuit(product_nodes(list(mixed_table()), 3), random_state=0), mixed_table())
    n = 20_000
    rows = np.full((2, 4), MISSING)
    rows[0, 1] = 1.0
    rows[1, [0, 2]] = 2.5, 6.0
    draws = circuit.complete_points(Evidence(rows), n, 1)
    assert draws.shape == (2, n, 4)
    for i, region in ((0, Within(0, 2.0, np.inf)), (0, Within(3, 0.0, 1e-300)),
                      (1, Within(1, codes=(1,))), (1, Within(3, 0.5, 3.0))):  # fmt: skip
        evidence = Evidence(rows[[i]])
        alone = circuit.log_evidence(evidence)[0]
        p = np.exp(circuit.log_evidence(evidence, [region])[0] - alone)
        x = draws[i, :, region.variable]
        hit = np.isin(x, region.codes) if region.codes else (x >= region.low) & (x < region.high)
        assert abs(hit.mean() - p) < 4.5 * np.sqrt(p * (1 - p) / n) + 1e-4
    np.testing.assert_array_equal(draws[1, :, 0], 2.5)


def test_rows_of_probability_zero():
    nodes = [{"leaf": "a", "probabilities": [1.0, 0.0]}, {"leaf": "b", "probabilities": [0.5, 0.5]},
             {"product": [0, 1]}]  # fmt: skip
    variables = [{"name": n, "kind": "categorical", "levels": [0, 1]} for n in "ab"]
    circuit = Circuit.from_json(json.dumps({**WEATHER, "nodes": nodes, "variables": variables}))
    impossible = Evidence(np.array([[MISSING, 1.0], [1.0, MISSING]]))
    assert np.isneginf(circuit.log_evidence(impossible)).tolist() == [False, True]
    with pytest.raises(InvalidInput, match="row 1 has probability 0"):
        circuit.complete_points(impossible, 3, 0)
    found = circuit.expect(impossible, np.ones(2))
    assert not any(np.isnan(one.count).any() for one in found.distributions)


# ---- rules --------------------------------------------------------------------------------------

A, B = {"leaf": "a"}, {"leaf": "b"}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], r"nodes must be a list"),
        ("leaf", r"nodes must be a list"),
        ([A, 3], r"nodes\[1\] must be a mapping"),
        ([{"leaf": "a", "sum": [0]}], r"nodes\[0\] must be a mapping with one of the keys"),
        ([{"leaf": 3}], r"nodes\[0\] \(leaf\) must name a variable"),
        ([A, {"sum": []}], r"nodes\[1\] \(sum\) must have a list of at least one child"),
        ([A, {"product": "01"}], r"nodes\[1\] \(product\) must have a list"),
        ([A, {"sum": [1]}], r"nodes\[1\] \(sum\) must have children from before it, 0 to 0; got 1"),
        ([A, {"sum": [-1]}], r"nodes\[1\] \(sum\) must have children from before it"),
        ([A, {"sum": [True]}], r"nodes\[1\] \(sum\) must have children from before it"),
        ([A, {"sum": [0.0]}], r"nodes\[1\] \(sum\) must have children from before it"),
        ([A, {"sum": [0, 0]}], r"nodes\[1\] \(sum\) must have each child once"),
        ([A, B, {"sum": [0, 1]}], r"nodes\[2\] \(sum\) is not smooth.*\['a'\].*\['b'\]"),
        ([A, A, {"product": [0, 1]}], r"nodes\[2\] \(product\) is not decomposable.*\['a'\]"),
        ([A, B, {"product": [0, 1]}, {"leaf": "b"}, {"product": [2, 3]}],
         r"nodes\[4\] \(product\) is not decomposable.*child 3.*\['b'\]"),
        ([A, B], r"nodes\[1\], the last one, is the root.*\['a'\]"),
        ([A, A, {"sum": [1]}], r"nodes\[0\] is not below the root"),
        ([A, A, {"sum": [0, 1], "weights": [1]}], r"nodes\[2\] \(sum\) must have 2 weights"),
        ([A, A, {"sum": [0, 1], "weights": [0.5, 0.6]}], r"add up to 1"),
        ([A, A, {"sum": [0, 1], "weights": [-0.5, 1.5]}], r"none negative"),
        ([A, A, {"sum": [0, 1], "weights": [MISSING, 1.0]}], r"nodes\[2\] \(sum\) must have 2"),
        ([A, A, {"sum": [0, 1], "weights": "ab"}], r"nodes\[2\] \(sum\) must have 2 weights"),
    ],
)  # fmt: skip
def test_violations_name_the_node(nodes, message):
    with pytest.raises(InvalidInput, match=message):
        Circuit(nodes)


def test_layers_have_children_below():
    structure = read_nodes(WEATHER["nodes"])
    done = set(structure.leaf)
    for layer in structure.layers:
        assert set(layer.children.tolist()) <= done
        done |= set(layer.nodes.tolist())
    assert done == set(range(9))


def test_variables_must_be_those_of_the_table():
    with pytest.raises(InvalidInput, match=r"table's variables, \['x0', 'x1'\].*\['x0', 'z'\]"):
        Circuit([{"leaf": "x0"}, {"leaf": "z"}, {"product": [0, 1]}]).fit(np.eye(2))


# ---- learning -----------------------------------------------------------------------------------


def test_flow_is_kept():
    """What enters a node leaves it: sums divide it, products pass all of it to every child."""
    circuit = quietly(Circuit(product_nodes(list(mixed_table()), 3), random_state=0), mixed_table())
    evidence = circuit.evidence(mixed_table())
    weight = np.random.default_rng(0).uniform(0.5, 2, 200)
    log_weights = log_of(circuit.weights_)
    values = evaluate(circuit.structure_, log_weights, circuit.terms(evidence))
    flow, through = flows(circuit.structure_, log_weights, values, weight)
    np.testing.assert_allclose(through.sum(), weight.sum())
    for nodes in circuit.structure_.leaf_nodes:
        np.testing.assert_allclose(flow[nodes].sum(axis=0), weight)


@pytest.mark.parametrize("strength", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("kind", ["mixed", "one_hot", "weather"])
def test_em_never_lowers_its_objective(kind, strength):
    options = {"strength": strength, "max_iter": 25, "tol": 0.0, "random_state": 0}
    if kind == "weather":
        table = pd.DataFrame(np.random.default_rng(0).integers(0, 2, (60, 2)).astype(float))
        table.columns = ["rain", "umbrella"]
        columns = Columns.infer(table, categorical=[0, 1])
        circuit = Circuit(WEATHER["nodes"], **options)
    elif kind == "mixed":
        table, columns = mixed_table(), None
        circuit = Circuit(product_nodes(list(table), 4), **options)
    else:
        table, columns = made_tables.one_hot_table()
        circuit = Circuit(product_nodes(["colour", columns.names[4]], 3), **options)
    weight = np.random.default_rng(1).uniform(0.5, 2, len(table))
    quietly(circuit, table, columns=columns, sample_weight=weight)
    assert np.diff(circuit.objective_).min() > -1e-8 * abs(circuit.objective_[-1])
    assert circuit.objective_[-1] > circuit.objective_[0]


def test_statistics_are_those_of_the_latent_tree():
    table = mixed_table()
    tree = quietly(LatentTree(3, max_iter=6, random_state=0), table)
    circuit = tree.to_circuit()
    evidence, weight = tree.evidence(table), np.random.default_rng(0).uniform(0.5, 2, 200)
    packed = pack(tree.distributions_, evidence)
    own = tree._parameters.expect(EncodedRows(packed, weight))
    roots, pairs = own.latents
    found = circuit.expect(evidence, weight)
    np.testing.assert_allclose(found.log_likelihood, own.log_likelihood, rtol=1e-12)
    expected = np.concatenate([*(pairs[v].ravel() for v in tree.order_[:0:-1]), roots])
    np.testing.assert_allclose(found.latents[0], expected, rtol=1e-8, atol=1e-10)
    for one, other in zip(found.distributions, own.distributions, strict=True):
        np.testing.assert_allclose(one.count, other.count, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(one.second, other.second, rtol=1e-8, atol=1e-10)


def test_warm_start_goes_on():
    table = mixed_table()
    circuit = Circuit(product_nodes(list(table), 3), max_iter=3, random_state=0)
    quietly(circuit, table)
    reached = circuit.objective_[-1]
    quietly(circuit.set_params(warm_start=True), table)
    assert circuit.objective_[0] > reached
    quietly(circuit.set_params(warm_start=False), table)
    assert circuit.objective_[0] < reached


def test_weights_of_a_circuit_from_json_are_learned():
    """Rain on every day: the wet part takes over."""
    circuit = weather().set_params(warm_start=True, strength=0.0)
    quietly(circuit, pd.DataFrame({"rain": ["yes"] * 30, "umbrella": ["yes", "no"] * 15}))
    assert circuit.weights_[-1] > 0.4
    p = np.exp(circuit.score_samples(pd.DataFrame({"rain": ["yes"], "umbrella": [None]})))
    assert p[0] > 0.99


def test_stops_for_lack_of_passes_with_a_warning():
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        Circuit(product_nodes(list(mixed_table()), 3), max_iter=2, tol=0.0).fit(mixed_table())


@pytest.mark.parametrize("options", [{"strength": -1}, {"max_iter": 0}, {"tol": "x"},
                                     {"families": {"colour": "gaussian"}}])  # fmt: skip
def test_parameters_are_checked(options):
    circuit = Circuit(product_nodes(list(mixed_table()), 2), **options)
    with pytest.raises(InvalidInput, match=next(iter(options))):
        circuit.fit(mixed_table())


def test_any_number_of_threads_gives_the_same_bits(monkeypatch):
    table = mixed_table(3000)
    circuit = Circuit(product_nodes(list(table), 3), random_state=0, max_iter=5)
    monkeypatch.setenv("KNOTHOLE_THREADS", "1")
    one = quietly(clone(circuit), table).score_samples(table)
    monkeypatch.setenv("KNOTHOLE_THREADS", "3")
    np.testing.assert_array_equal(quietly(clone(circuit), table).score_samples(table), one)


def test_order_of_columns_and_of_distributions_does_not_matter():
    """The nodes name variables in another order than the table has them."""
    turned = {**WEATHER, "variables": WEATHER["variables"][::-1]}
    circuit = Circuit.from_json(json.dumps(turned))
    assert [variable.name for variable in circuit.variables_] == ["umbrella", "rain"]
    table = pd.DataFrame({"umbrella": ["no"], "rain": ["yes"]})
    plain = weather().score_samples(table[["rain", "umbrella"]])
    np.testing.assert_allclose(circuit.score_samples(table), plain, rtol=1e-12)
    draws = circuit.sample_points(4000, np.random.default_rng(0))
    assert abs(draws[:, 1].mean() - 0.34) < 4.5 * np.sqrt(0.34 * 0.66 / 4000)


# ---- other densities as circuits ----------------------------------------------------------------


def test_mixture_agrees():
    table = mixed_table()
    mixture = quietly(Mixture(3, random_state=0, max_iter=20), table)
    circuit = mixture.to_circuit()
    evidence = mixture.evidence(table)
    np.testing.assert_allclose(
        circuit.log_evidence(evidence), mixture.log_evidence(evidence), rtol=1e-10, atol=1e-10
    )
    within = [Within(0, -1.0, 2.0), Within(2, 3.0, np.inf)]
    incomplete = Evidence(np.where([True, False, True, False], MISSING, evidence.points))
    np.testing.assert_allclose(
        circuit.log_evidence(incomplete, within),
        mixture.log_evidence(incomplete, within),
        rtol=1e-10,
    )
    np.testing.assert_allclose(circuit.score_samples(table), mixture.score_samples(table))


def test_mixture_of_one_variable():
    X = np.random.default_rng(0).normal(size=(50, 1))
    mixture = quietly(Mixture(2, random_state=0), X)
    circuit = mixture.to_circuit()
    np.testing.assert_allclose(circuit.score_samples(X), mixture.score_samples(X), rtol=1e-10)


def test_total_mass_by_enumeration():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (200, 4)).astype(float)
    X[:, 1] = np.where(rng.random(200) < 0.7, X[:, 0], X[:, 1])
    columns = Columns.infer(X, categorical=range(4))
    circuit = quietly(LatentTree(3, random_state=0), X, columns=columns).to_circuit()
    rows = np.array(list(itertools.product(range(3), repeat=4)), dtype=float)
    p = np.exp(circuit.log_evidence(Evidence(rows)))
    np.testing.assert_allclose(p.sum(), 1, rtol=1e-10)
    marginal = np.exp(circuit.log_evidence(Evidence(np.where([1, 0, 1, 0], rows, MISSING))))
    for row, found in zip(rows, marginal, strict=True):
        same = (rows[:, [0, 2]] == row[[0, 2]]).all(axis=1)
        np.testing.assert_allclose(found, p[same].sum(), rtol=1e-10)


# ---- JSON and storage ---------------------------------------------------------------------------


def test_the_documented_form_is_read():
    notes = inspect.getdoc(Circuit).split("learned elsewhere::", 1)[1]
    text = textwrap.dedent(notes.split("Distributions of a categorical", 1)[0])
    circuit = Circuit.from_json(text)
    p = np.exp(circuit.score_samples(pd.DataFrame({"rain": ["yes"], "degrees": [14.0]})))
    expected = 0.6 * 0.1 * norm.pdf(14, 25, 4) + 0.4 * 0.7 * norm.pdf(14, 12, 3)
    np.testing.assert_allclose(p, expected, rtol=1e-12)


@pytest.mark.parametrize("table", ["mixed", "one_hot", "nullable"])
def test_json_loses_nothing(table):
    columns = None
    if table == "mixed":
        X = mixed_table()
    elif table == "one_hot":
        X, columns = made_tables.one_hot_table()
    else:
        X = mixed_table()
        columns = Columns.infer(X).with_nullable([True, False, True, False])
    density = quietly(LatentTree(2, random_state=0, max_iter=4), X, columns=columns)
    circuit = density.to_circuit()
    again = Circuit.from_json(circuit.to_json())
    evidence = circuit.evidence(X)
    np.testing.assert_allclose(
        again.log_evidence(evidence), circuit.log_evidence(evidence), rtol=1e-13
    )
    assert json.loads(again.to_json()) == json.loads(circuit.to_json())


def damaged(**changes):
    return json.dumps({**WEATHER, **changes})


def with_node(position, node):
    nodes = list(WEATHER["nodes"])
    nodes[position] = node
    return damaged(nodes=nodes)


def with_variable(**changes):
    first, second = WEATHER["variables"]
    return damaged(variables=[{**first, **changes}, second])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        (3, "must be JSON"),
        ("[]", "must be a JSON object"),
        (damaged(format="other"), '"format": "knothole circuit"'),
        (damaged(version=2), '"version" must be 1.*got 2'),
        (damaged(nodes=None), "nodes must be a list"),
        (damaged(nodes=WEATHER["nodes"][:-1]), r"nodes\[7\] .*not below|not below the root"),
        (damaged(variables=None), '"variables" must be a list'),
        (damaged(variables=[3]), '"variables" must be a list'),
        (damaged(variables=WEATHER["variables"][:1]), '"variables" must name each'),
        (damaged(variables=WEATHER["variables"] * 2), '"variables" must name each'),
        (with_variable(kind="text"), "'rain': \"kind\" must be one of"),
        (with_variable(levels=[]), "'rain': \"levels\" must be a list"),
        (with_variable(levels="ab"), "'rain': \"levels\" must be a list"),
        (with_variable(levels=["no", "no"]), "given once"),
        (with_variable(levels=[["no"], "yes"]), "plain value"),
        (with_variable(kind="continuous", levels=[]), r"nodes\[0\].*'rain'.*\"mean\""),
        (with_variable(kind="integer", levels=[]), "'rain': an integer or nullable"),
        (with_variable(family="gaussian"), "'gaussian' is no family for it"),
        (with_variable(family="categorical"), '"arrays" do not make a categorical distribution'),
        (with_variable(family="categorical", arrays={"table": [[0, 0, 0]], "marginal": [1]}),
         "must have 2 states"),
        (with_variable(family="categorical", arrays={"table": [[0, 0]], "marginal": [1]}),
         "must have 2 codes"),
        (with_node(0, {"leaf": "rain"}), r"nodes\[0\] .*\"probabilities\": 2 numbers.*got None"),
        (with_node(0, {"leaf": "rain", "probabilities": [0.5, 0.6]}), r"nodes\[0\] .*add up to 1"),
        (with_node(0, {"leaf": "rain", "probabilities": [1.5, -0.5]}), r"nodes\[0\] .*negative"),
        (with_node(0, {"leaf": "rain", "probabilities": "half"}), r"nodes\[0\] .*got 'half'"),
        (with_node(8, {"sum": [2, 7], "weights": [0.6]}), r"nodes\[8\] \(sum\) must have 2"),
    ],
)  # fmt: skip
def test_damaged_json(text, message):
    with pytest.raises(InvalidInput, match=message):
        Circuit.from_json(text)


@pytest.mark.parametrize(("mean", "sd"), [(None, 1), (0, None), (0, 0), (0, -1), ("0", 1),
                                          (True, 1), (float("inf"), 1)])  # fmt: skip
def test_damaged_moments(mean, sd):
    document = {**WEATHER, "variables": [{"name": "x", "kind": "continuous"}],
                "nodes": [{"leaf": "x", "mean": mean, "sd": sd}]}  # fmt: skip
    with pytest.raises(InvalidInput, match=r"nodes\[0\] \(leaf of 'x'\) must have a finite"):
        Circuit.from_json(json.dumps(document))


def test_storage(tmp_path):
    table = mixed_table()
    circuit = quietly(Circuit(product_nodes(list(table), 3), random_state=0), table)
    path = tmp_path / "circuit"
    circuit.save(path)
    again = Circuit.load(path)
    assert again.get_params() == circuit.get_params()
    np.testing.assert_array_equal(again.score_samples(table), circuit.score_samples(table))
    np.testing.assert_array_equal(again.sample(5), circuit.sample(5))
    circuit.weights_ = circuit.weights_[:-1]
    circuit.save(path)
    with pytest.raises(DamagedFile, match="weights do not fit"):
        Circuit.load(path)
