"""Densities learned from tables in parts are those of one machine, however they are cut."""

import _thread
import gc
import os
import signal
import threading
import time
from itertools import chain, pairwise
from unittest.mock import MagicMock

import dask
import dask.dataframe as dd
import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.densities.base import go_on
from knothole.densities.em import EncodedRows, train
from knothole.errors import InvalidInput
from knothole.out_of_core import disk, partitions
from knothole.out_of_core.partitions import FAN, Partitions, tree

PARTITIONS = (1, 2, 7, 50)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A sample of 300 rows, so that a table of 1,000 is a large one."""
    monkeypatch.setattr(partitions, "ROWS", 300)


def table(n=1000, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.integers(2, size=n)
    frame = pd.DataFrame(
        {
            "a": rng.normal(3.0 * group, 1.0),
            "b": rng.normal(-2.0 * group, 0.5),
            "c": np.array(["x", "y", "z"])[np.minimum(group + (rng.random(n) < 0.3), 2)],
        }
    )
    for name in frame:
        frame.loc[rng.random(n) < 0.2, name] = None
    frame.loc[n - 1, "c"] = "rare"  # in the last partition alone, and hardly in a sample
    return frame


def cut(frame, partitions):
    """Local parts of nearly the same size; there may be more of them than rows."""
    at = np.linspace(0, len(frame), partitions + 1).astype(int)
    pieces = [frame.iloc[a:b] for a, b in pairwise(at)]
    return Partitions.of(lambda: ((piece, None, None) for piece in pieces))


DENSITIES = {
    "Mixture": lambda: kh.Mixture(3, strength=1.0, random_state=0),
    "GaussianMixture": lambda: kh.GaussianMixture(2, strength=1.0, random_state=0),
    "LatentTree": lambda: kh.LatentTree(4, strength=1.0, random_state=0),
}


def close(one, other, tolerance=1e-8):
    """All arrays of two fitted densities are the same but for rounding."""
    for (name, a), b in zip(one.state()[1].items(), other.state()[1].values(), strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.fixture(scope="module")
def on_one_machine():
    """Each density, learned from one part; the sample is the same for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "ROWS", 300)
        return {name: make().fit(cut(table(), 1)) for name, make in DENSITIES.items()}


@pytest.mark.parametrize("partitions", PARTITIONS)
@pytest.mark.parametrize("name", DENSITIES)
def test_densities_are_those_of_one_machine(on_one_machine, name, partitions):
    lazy = dd.from_pandas(table(), npartitions=partitions)
    with dask.config.set(scheduler="sync"):
        found = DENSITIES[name]().fit(lazy)
    close(found, on_one_machine[name])
    assert "rare" in found.variables_[2].levels
    assert found.n_iter_ == on_one_machine[name].n_iter_ > 1


@pytest.mark.parametrize("share", [0.3, 0.0])
@pytest.mark.parametrize("name", DENSITIES)
def test_a_cluster_learns_what_one_process_does_to_the_last_bit(cluster, name, share, monkeypatch):
    monkeypatch.setattr(partitions, "MEMORY_SHARE", share)  # of memory: on disk otherwise
    lazy = dd.from_pandas(table(), npartitions=7)
    found = DENSITIES[name]().fit(lazy)
    pieces = [lazy.partitions[i].compute() for i in range(7)]
    close(found, DENSITIES[name]().fit(Partitions.of(lambda: ((p, None, None) for p in pieces))), 0)


def test_going_on_is_em_on_all_rows():
    """The slow twin: what the sample gave, and the steps of EM on a table in memory."""
    frame = table()
    found = kh.Mixture(3, strength=1.0, random_state=0).fit(cut(frame, 7))
    drawn = partitions.sample(cut(frame, 1), int(kh.Mixture(random_state=0)._rng().integers(2**31)))
    assert len(drawn.table) == 300 and drawn.total == 1000 and not drawn.whole
    columns = found.columns_
    begun = kh.Mixture(3, strength=1.0, random_state=0)
    begun.fit_matrix(columns.matrix(drawn.table), columns)
    rows = begun.encoded(columns.evidence(columns.matrix(frame)), np.ones(1000))
    assert isinstance(rows, EncodedRows)
    training = begun._training(begun._rng())
    run = train(lambda m: m.stepped(m.expect(rows), 1.0), begun._parameters, 1.0, 1000.0, training)
    assert len(run.objective) == found.n_iter_
    np.testing.assert_allclose(run.objective, found.objective_, rtol=1e-12)
    assert np.diff(found.objective_).min() > 0
    np.testing.assert_allclose(run.parameters.weight, found.weights_, rtol=1e-8)
    assert found.score(frame) > begun.score(frame)


@pytest.mark.parametrize("name", DENSITIES)
def test_a_row_of_weight_two_is_two_rows(name):
    """The slow twin: the rows themselves, repeated, where the sample is the whole table."""
    frame, rng = table(250), np.random.default_rng(1)
    weight = rng.integers(1, 4, size=250)
    lazy = dd.from_pandas(frame.assign(w=weight.astype(float)), npartitions=4)
    begun = DENSITIES[name]().fit(frame, sample_weight=weight)
    with dask.config.set(scheduler="sync"):
        whole = DENSITIES[name]().fit(lazy[["a", "b", "c"]], sample_weight=lazy["w"])
    close(whole, begun, tolerance=0)
    repeated = frame.loc[np.repeat(frame.index, weight)].reset_index(drop=True)
    parts = {
        "weights": Partitions.of(lambda: iter([(frame[:99], None, weight[:99]),
                                               (frame[99:], None, weight[99:])])),
        "rows": Partitions.of(lambda: iter([(repeated, None, None)])),
    }  # fmt: skip
    found = {}
    for how, own in parts.items():
        drawn = partitions.Sample(own, None, None, None, None, 250, float(weight.sum()))
        found[how] = go_on(DENSITIES[name]().fit(frame, sample_weight=weight), drawn)
    close(found["weights"], found["rows"])


def test_progress_is_told_on_request(capsys):
    kh.Mixture(3, strength=1.0, random_state=0, verbose=True).fit(cut(table(), 3))
    told = capsys.readouterr().err
    assert "X has 1,000 rows: 300 of them" in told and told.count("\n") > 2


def test_as_many_rows_as_a_sample_has_are_learned_as_in_memory():
    frame = table(250)
    found = kh.Mixture(2, random_state=0).fit(cut(frame, 5))
    close(found, kh.Mixture(2, random_state=0).fit(frame), tolerance=0)


def test_a_sample_is_drawn_evenly_and_does_not_depend_on_the_parts():
    frame = pd.DataFrame({"row": np.arange(1000.0)})
    drawn = [partitions.sample(cut(frame, n), 5).table for n in PARTITIONS]
    for one in drawn[1:]:
        pd.testing.assert_frame_equal(one, drawn[0])
    count = np.histogram(drawn[0]["row"], bins=4, range=(0, 1000))[0]
    assert count.min() > 45 and len(drawn[0]) == 300
    other = partitions.sample(cut(frame, 1), 6).table
    assert not other.equals(drawn[0])


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("room", [0.0, np.inf])
def test_what_is_larger_than_memory_is_on_disk_or_encoded_again(
    monkeypatch, on_one_machine, room, name
):
    monkeypatch.setattr(partitions, "LOCAL", 0)
    monkeypatch.setattr(partitions, "room", lambda: room)
    passes = []

    pieces = Partitions.of(lambda: ((p, None, None) for p in (table()[:400], table()[400:])))
    counted = Partitions(lambda: passes.append(None) or pieces.passes())
    found = DENSITIES[name]().fit(counted)
    again = found.n_iter_ + (name == "GaussianMixture")  # its prior takes a pass
    assert len(passes) == 2 + (1 if room else again)  # a look, a sample, and the steps
    close(found, on_one_machine[name])
    if room:
        monkeypatch.setattr(partitions, "LOCAL", 2**28)
        close(found, DENSITIES[name]().fit(pieces), tolerance=0)
    assert disk.SpillFile._open == {}


def test_sums_are_added_in_a_tree_of_fixed_shape():
    """The slow twin: groups of eight, of these groups of eight, what is left over last."""
    shape = tree(map(str, range(FAN * FAN + 3)), lambda items: f"({' '.join(items)})")
    full = " ".join(
        f"({' '.join(str(FAN * group + i) for i in range(FAN))})" for group in range(FAN)
    )
    assert shape == f"(({full}) {' '.join(str(FAN * FAN + i) for i in range(3))})"


@pytest.mark.parametrize("partitions", [1, 7])
def test_a_model_is_wrapped_as_on_one_machine(partitions):
    frame = table().astype({"c": "category"})
    y = frame["a"].fillna(0.0) + (frame["c"] == "y")
    model = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1).fit(frame, y)
    density = kh.Mixture(3, strength=1.0, random_state=0)
    lazy = dd.from_pandas(frame.assign(y=y), npartitions=partitions)
    with dask.config.set(scheduler="sync"):
        robust = kh.wrap(model, lazy[["a", "b", "c"]], lazy["y"], density)
    one = cut(frame, 1).passes
    parts = Partitions(lambda: ((i, X, y.to_numpy(), None) for i, X, _, _ in one()))
    alone = kh.wrap(model, parts, density=density)
    close(robust.density_, alone.density_)
    np.testing.assert_allclose(robust.predict(frame), alone.predict(frame), rtol=1e-8)
    assert robust.loss_prior_ == alone.loss_prior_
    full = kh.wrap(model, frame, y, kh.Mixture(3, strength=1.0, random_state=0))
    assert robust.columns_ == full.columns_


def test_wrapping_chooses_the_density_on_a_sample_and_goes_on():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 1)) + 0.3 * rng.normal(size=(900, 3))
    model = DecisionTreeRegressor(max_depth=4, random_state=0).fit(X, X[:, 0])
    candidates = [kh.Factorized(random_state=0), kh.Mixture(4, strength=1.0, random_state=0)]
    lazy = dask.array.from_array(X, chunks=(100, 3))
    with dask.config.set(scheduler="sync"):
        robust = kh.wrap(model, lazy, density=candidates)
    assert robust.selection_["name"][0] == "mixture"
    assert robust.density_.objective_[-1] / 900 > -5
    rows = np.where(rng.random((50, 3)) < 0.3, np.nan, X[:50])
    assert np.corrcoef(robust.predict(rows), X[:50, 0])[0, 1] > 0.9


def slowly(frame):
    time.sleep(0.03)
    return frame


@pytest.fixture(params=["in memory", "on disk"])
def kept(request, monkeypatch):
    """Where encoded rows are."""
    if request.param == "on disk":
        monkeypatch.setattr(partitions, "MEMORY_SHARE", 0.0)
        monkeypatch.setattr(partitions, "_room", asked := MagicMock(return_value=np.inf))
    yield
    assert request.param == "in memory" or asked.called


def test_a_worker_that_is_killed_while_learning_changes_nothing(cluster, on_one_machine, kept):
    lazy = dd.from_pandas(table(), npartitions=20)
    slow = lazy.map_partitions(slowly, meta=lazy._meta)
    killed = []

    def kill():
        killed.append(next(iter(cluster.run(os.getpid).values())))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Timer(0.8, kill)
    killer.start()
    found = DENSITIES["Mixture"]().fit(slow)
    killer.join()
    cluster.wait_for_workers(2, timeout=60)
    assert killed and killed[0] not in cluster.run(os.getpid).values()
    close(found, on_one_machine["Mixture"])
    nothing_is_left(cluster)


def left(dask_scheduler):
    """Tasks that a scheduler still knows."""
    return len(dask_scheduler.tasks)


def files(dask_worker):
    """Files in a worker's directory, or open there without a name."""
    gc.collect()
    place = dask_worker.local_directory
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.lexists(link)]
    named = [name for _, _, names in os.walk(place) for name in names]
    return [*named, *(one for one in opened if one.startswith(f"{place}/"))]


def nothing_is_left(cluster):
    def rest():
        gc.collect()
        return cluster.run_on_scheduler(left), [*chain(*cluster.run(files).values())]

    until = time.monotonic() + 20
    while rest() != (0, []) and time.monotonic() < until:
        time.sleep(0.1)
    assert rest() == (0, [])


def test_nothing_is_left_on_the_workers(cluster, kept):
    lazy = dd.from_pandas(table(), npartitions=5)
    DENSITIES["Mixture"]().fit(lazy)
    bad = lazy.map_partitions(lambda part: part.assign(b=np.inf), meta=lazy._meta)
    with pytest.raises(InvalidInput, match=r"partition \d: column 'b'"):
        DENSITIES["Mixture"]().fit(bad)
    nothing_is_left(cluster)


@pytest.fixture
def can_be_interrupted():
    """Workers of pytest ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_fit_that_is_interrupted_leaves_nothing_behind(
    cluster, can_be_interrupted, kept, monkeypatch
):
    lazy = dd.from_pandas(table(), npartitions=20)
    slow = lazy.map_partitions(slowly, meta=lazy._meta)
    made = partitions.DaskPartitions.made

    def interrupted(*given, **options):
        begun = made(*given, **options)
        _thread.interrupt_main()  # while workers still encode
        return begun

    monkeypatch.setattr(partitions.DaskPartitions, "made", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DENSITIES["Mixture"]().fit(slow)
    nothing_is_left(cluster)


def test_what_cannot_be_learned_is_refused_with_a_way_out():
    frame = table()
    with pytest.raises(InvalidInput, match=r"sample_weight must be None for partitions"):
        kh.Mixture().fit(cut(frame, 2), sample_weight=np.ones(len(frame)))
    with pytest.raises(InvalidInput, match=r"'low-rank' is learned from rows in memory only"):
        kh.GaussianMixture(2, covariance="low-rank", random_state=0).fit(cut(frame, 2))
    with pytest.raises(InvalidInput, match=r"at least one row"):
        kh.Mixture().fit(cut(frame[:0], 2))
    lazy = dd.from_pandas(frame, npartitions=3)
    model = DecisionTreeRegressor().fit([[0.0] * 3], [1.0])
    with pytest.raises(InvalidInput, match=r"y must have the partitions of X; it has 1 and"):
        kh.wrap(model, lazy, dd.from_pandas(frame["a"], npartitions=1))
    with pytest.raises(InvalidInput, match=r"y must be a Dask Series or Array"):
        kh.wrap(model, lazy, frame["a"])
    with pytest.raises(InvalidInput, match=r"sample_weight must be a Dask Series or Array"):
        kh.Mixture().fit(lazy, sample_weight=frame["a"])


def test_a_bad_value_is_an_error_that_names_partition_and_column():
    frame = table()
    frame.loc[990, "b"] = np.inf
    with pytest.raises(InvalidInput, match=r"partition 6: column 'b' must hold finite numbers"):
        kh.Mixture().fit(cut(frame, 7))
