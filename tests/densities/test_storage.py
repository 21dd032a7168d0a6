"""One file, no pickle: what goes in comes out, and what is not whole is refused."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest

from knothole.columns.columns import Column, Columns, Kind, column_from, describe_column
from knothole.densities import storage
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.errors import DamagedFile, InvalidInput, NotFitted
from knothole.files import read_container, write_container


@pytest.fixture(scope="module")
def density():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), rng.integers(0, 5, 60), rng.integers(0, 2, 60)])
    X[:10, 0] = np.nan
    columns = Columns((
        Column("a", nullable=True),
        Column("n", Kind.INTEGER),
        Column("c", Kind.CATEGORICAL, (0.0, 1.0)),
    ))  # fmt: skip
    return Mixture(2, families={"n": "poisson"}, random_state=3).fit(X, columns=columns)


@pytest.fixture
def path(density, tmp_path):
    path = tmp_path / "density.knothole"
    density.save(path)
    return path


def rewritten(path, change):
    """The file with its header changed."""
    header, arrays = read_container(path, storage.FORMAT, storage.VERSION)
    change(header)
    write_container(path, header, arrays)
    return path


def test_everything_learned_is_kept(density, path):
    again = storage.load(path)
    assert again.get_params() == density.get_params()
    for name in ("weights_", "objective_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(density, name))
    for name in ("n_iter_", "converged_", "strength_", "target_", "variables_", "n_features_in_"):
        assert getattr(again, name) == getattr(density, name)
    assert again.feature_names_in_.tolist() == ["a", "n", "c"]
    again.save(path)  # and can be saved again


def test_levels_of_every_type():
    levels = ("1", 1, 2.5, True, None, "ä", float("inf"), -0.0)
    column = Column("c", Kind.CATEGORICAL, levels, nullable=True)
    description = json.loads(json.dumps(describe_column(column)))
    again = column_from(description)
    assert again == column
    assert [type(level) for level in again.levels] == [type(level) for level in levels]
    numpy_levels = Column("c", Kind.CATEGORICAL, (np.int64(3), np.str_("x")))
    assert column_from(describe_column(numpy_levels)).levels == (3, "x")


def test_levels_that_cannot_be_stored_are_named(tmp_path):
    table = pd.DataFrame({"pair": pd.Categorical.from_codes([0, 1] * 10, [(1, 2), (3, 4)])})
    density = Factorized().fit(table)
    with pytest.raises(InvalidInput, match="'pair' has a level of type tuple"):
        density.save(tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.9, -1])
def test_truncated_files(path, keep):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(DamagedFile, match="truncated, damaged"):
        storage.load(path)


def test_any_flipped_byte_of_the_contents_is_noticed(path):
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    for info in infos:
        # The first byte of the compressed data: after the local header and the name.
        position = info.header_offset + 30 + len(info.filename) + info.compress_size // 2 + 20
        damaged = bytearray(whole)
        damaged[min(position, len(whole) - 1)] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile):
            storage.load(path)


def test_other_files(tmp_path):
    path = tmp_path / "x"
    np.savez(path.with_suffix(".npz"), a=np.arange(3))
    with pytest.raises(DamagedFile):
        storage.load(path.with_suffix(".npz"))
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DamagedFile):
        storage.load(path)
    with pytest.raises(FileNotFoundError):
        storage.load(tmp_path / "nothing")


def test_pickles_are_never_loaded(path):
    header, arrays = read_container(path, storage.FORMAT, storage.VERSION)
    arrays["weights"] = np.array([print], dtype=object)
    write_container(path, header, arrays)
    with pytest.raises(DamagedFile):
        storage.load(path)


def test_newer_files(path):
    rewritten(path, lambda header: header.update(version=storage.VERSION + 1))
    with pytest.raises(DamagedFile, match="newer knothole"):
        storage.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(format="something else"),
        lambda header: header.update({"class": "os.system"}),
        lambda header: header.update(parameters={"unknown": 1}),
        lambda header: header["state"].pop("families"),
        lambda header: header["state"].update(families=["gaussian"]),
        lambda header: header["state"].update(families=["nothing"] * 3),
        lambda header: header["state"]["columns"]["columns"][2].update(levels=[["int", "1"]]),
    ],
)
def test_headers_that_do_not_fit(path, change):
    rewritten(path, change)
    with pytest.raises(DamagedFile):
        storage.load(path)


def test_missing_arrays(path):
    header, arrays = read_container(path, storage.FORMAT, storage.VERSION)
    for name in arrays:
        write_container(path, header, {k: a for k, a in arrays.items() if k != name})
        with pytest.raises(DamagedFile):
            storage.load(path)


def test_a_failed_write_keeps_the_old_file(density, path, monkeypatch):
    before = path.read_bytes()

    def fail(*_args, **_arrays):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        density.save(path)
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1


def test_classes(density, path):
    with pytest.raises(InvalidInput, match="holds a Mixture, not a Factorized"):
        Factorized.load(path)
    with pytest.raises(NotFitted):
        Mixture().save(path)

    class Other(Mixture):
        pass

    with pytest.raises(InvalidInput, match="Other cannot be saved"):
        Other(2).fit(np.eye(4)).save(path)


def test_generators_are_not_kept(tmp_path):
    density = Factorized(random_state=np.random.RandomState(0)).fit(np.eye(4))
    density.save(tmp_path / "x")
    assert storage.load(tmp_path / "x").random_state is None
