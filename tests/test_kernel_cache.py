"""Compiled kernels on disk: renewed after an upgrade, and no error where they cannot be kept."""

import ast
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llvmlite.binding import get_host_cpu_features

import knothole
from knothole.compiled import claims, kept

PACKAGE = Path(knothole.__file__).parent

CALLER = """
from called import SHIFT, one
from knothole.compiled.policy import njit


@njit
def twice(x):
    return 2 * one(x) + SHIFT


print(twice(1), twice(2), sum(twice.stats.cache_hits.values()))
"""

CALLED = """
from knothole.compiled.policy import njit

SHIFT = {shift}


@njit
def one(x):
    return x + {value}
"""

FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
# Both have looked for the kernel, and have not found it, before one of them compiles it.
LOOK = (
    "import os, time\n"
    "from knothole.compiled import kept\n"
    "claim = kept.claim\n"
    "def after_all(folder, kernel):\n"
    "    if not kernel.startswith('caller'): return claim(folder, kernel)\n"
    "    open(os.path.join(folder, f'looked{os.getpid()}'), 'w').close()\n"
    "    while sum(name.startswith('looked') for name in os.listdir(folder)) < 2:\n"
    "        time.sleep(0.01)\n"
    "    claim(folder, kernel)\n"
    "kept.claim = after_all\n"
)
READ_ONLY = (
    "import tempfile\n"
    "def refuse(*_, **__): raise OSError(30, 'Read-only file system')\n"
    "tempfile.TemporaryFile = refuse\n"
)


@pytest.fixture
def folder(tmp_path):
    """A folder with kernels in it, and one to keep them in."""
    (tmp_path / "called.py").write_text(CALLED.format(value=1, shift=0))
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "file").write_text("")
    return tmp_path


def run(folder, before="", **settings):
    """What the kernels say, how many were found on disk, and how often there was a warning."""
    code = before + "import caller"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA")}
    environment |= {"PYTHONPATH": f"{folder}{os.pathsep}{PACKAGE.parent}", **settings}
    environment = {k: v for k, v in environment.items() if v is not None}
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=folder, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, found = map(int, done.stdout.split())
    return (first, second), found, done.stderr.count("compiled kernels are not kept on disk")


def kernels(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc"))


def test_kernels_are_kept(folder):
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    assert run(folder, **settings) == ((4, 6), 0, 0)
    assert run(folder, **settings) == ((4, 6), 1, 0)
    assert len(kernels(folder)) == 4


@pytest.mark.parametrize("change", [{"value": 5, "shift": 0}, {"value": 1, "shift": 7}])
def test_kernels_are_renewed_and_old_ones_are_never_taken_for_new(folder, change):
    """Also where the disk is full just then: numba's index named the old kernel's file again."""
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    run(folder, **settings)
    (folder / "called.py").write_text(CALLED.format(**change))
    expected = tuple(2 * (x + change["value"]) + change["shift"] for x in (1, 2))
    assert run(folder, before=FULL, **settings) == (expected, 0, 1)
    assert run(folder, **settings) == (expected, 0, 0)
    assert run(folder, **settings) == (expected, 1, 0)
    assert len(kernels(folder)) == 4, "old ones are gone"


def in_no_place(folder):
    """Nothing may be written: neither beside the files, nor at home, nor where one says."""
    (folder / "__pycache__").write_text("a file, not a folder")
    return {"NUMBA_CACHE_DIR": str(folder / "file" / "cache"), "HOME": str(folder / "file")}


def test_without_any_folder_kernels_are_compiled_in_memory(folder):
    assert run(folder, **in_no_place(folder)) == ((4, 6), 0, 1)
    assert not kernels(folder)


def test_without_a_home_nothing_is_kept_in_the_current_directory(folder):
    """``~`` stays what it is where there is no home; a kernel there would be run as code."""
    settings = {**in_no_place(folder), "NUMBA_CACHE_DIR": None, "HOME": "~"}
    assert run(folder, **settings) == ((4, 6), 0, 1)
    assert not (folder / "~").exists()


def test_a_full_disk_is_no_error(folder):
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    assert run(folder, before=FULL, **settings) == ((4, 6), 0, 1)


ASKS = "import sys; from knothole.compiled import claims; print(claims._locked(*sys.argv[1:]))"


def is_free(folder, kernel):
    """Whether another process could have a kernel to itself."""
    asked = [sys.executable, "-c", ASKS, str(folder), kernel]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "True\n"


def test_what_one_process_compiles_others_wait_for(tmp_path, monkeypatch):
    folder = str(tmp_path)
    assert is_free(folder, "one")
    claims.claim(folder, "one")
    claims.claim(folder, "one")  # it is ours already
    assert not is_free(folder, "one")
    assert is_free(folder, "another")
    claims.release(folder, "one")
    assert is_free(folder, "one")
    holds = ASKS + "; sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holds, folder, "one"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"True\n"
        monkeypatch.setattr(claims, "LONGEST", 0.1)  # one that was stopped is not waited for
        claims.claim(folder, "one")
        assert not claims._locked(folder, "one")
        other.kill()
        other.wait()
        assert claims._locked(folder, "one"), "a claim ends with its process"
    claims.release(folder, "one")


def test_two_processes_compile_a_kernel_once(folder):
    """Both want it at the same time: one waits for the other, and finds it on disk."""
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, folder, LOOK, **settings) for _ in range(2)]
    assert sorted(found for _, found, _ in (each.result() for each in both)) == [0, 1]


def test_where_there_are_no_claims_everyone_compiles(tmp_path, monkeypatch):
    for folder in (str(tmp_path / "nowhere"), str(tmp_path)):
        claims.claim(folder, "one")
        claims.release(folder, "one")
        monkeypatch.setattr(claims, "locks", None)


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:40], lambda data: b"\xff" * 9]
)
def test_damaged_kernels_are_renewed(folder, suffix, damage):
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    run(folder, **settings)
    for path in kernels(folder):
        if path.suffix == suffix:
            path.write_bytes(damage(path.read_bytes()))
    assert run(folder, **settings) == ((4, 6), 0, 1)
    assert run(folder, **settings) == ((4, 6), 1, 0)


@pytest.mark.parametrize("place", ["cache", None])
def test_kernels_of_an_image_serve_where_nothing_may_be_written(folder, place):
    settings = {"NUMBA_CACHE_DIR": place and str(folder / place)}
    run(folder, **settings)
    assert run(folder, before=READ_ONLY, **settings, HOME=str(folder / "file")) == ((4, 6), 1, 0)


SHIPPED = """
from pathlib import Path
from knothole.compiled import kept
kept.SHIPPED = Path("shipped")
kept.get_host_cpu_features = lambda: dict.fromkeys(kept.FEATURES, {runs})
"""


@pytest.mark.skipif(
    not all(get_host_cpu_features().get(name) for name in kept.FEATURES),
    reason="this processor is not of the kind that wheels with kernels are for",
)
def test_kernels_of_a_wheel_serve_before_others_where_the_processor_can_run_them(folder):
    built = {"NUMBA_CPU_NAME": kept.PROCESSOR, "NUMBA_CPU_FEATURES": ""}
    run(folder, **built, NUMBA_CACHE_DIR=str(folder / "built"))
    (folder / "shipped").mkdir()
    for path in kernels(folder / "built"):
        path.rename(folder / "shipped" / path.name)
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    assert run(folder, before=SHIPPED.format(runs=True), **settings) == ((4, 6), 1, 0)
    assert not kernels(folder / "cache"), "nothing was compiled"
    assert run(folder, before=SHIPPED.format(runs=True), **in_no_place(folder)) == ((4, 6), 1, 0)
    assert run(folder, before=SHIPPED.format(runs=False), **settings) == ((4, 6), 0, 0)
    (folder / "called.py").write_text(CALLED.format(value=5, shift=0))
    assert run(folder, before=SHIPPED.format(runs=True), **settings) == ((12, 14), 0, 0)


def test_all_that_kernels_are_made_of_is_in_their_stamp(monkeypatch):
    """Names that kernels use come from files whose change renews them."""
    stamped = set()
    read = Path.read_bytes

    def noting(path):
        return Source(read(path), path)

    class Source(bytes):
        def __new__(cls, data, path):
            made = super().__new__(cls, data)
            made.path = path
            return made

    class Digest:
        def update(self, source):
            stamped.add(source.path)

        def digest(self):
            return b""

    monkeypatch.setattr(Path, "read_bytes", noting)
    monkeypatch.setattr(kept.hashlib, "sha256", Digest)
    kept._kernels_below.__wrapped__(PACKAGE)
    modules = {module_of(path): path for path in PACKAGE.rglob("*.py")}
    with_kernels = [path for path in modules.values() if kernels_in(path)]
    assert len(with_kernels) > 20
    for path in with_kernels:
        for module in used_by_kernels(path, modules):
            assert modules[module] in stamped, (path, module)


def module_of(path):
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))


def kernels_in(path):
    marks = {"njit", "inlined", "intrinsic", "overload"}
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    return [
        f for f in functions for d in f.decorator_list
        if marks & {n.id for n in ast.walk(d) if isinstance(n, ast.Name)}
    ]  # fmt: skip


def used_by_kernels(path, modules):
    """Modules that the names in a file's kernels come from."""
    home = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                home[name.asname or name.name] = whole if whole in modules else node.module
    for kernel in kernels_in(path):
        for statement in kernel.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id in home:
                    yield home[node.id]


FIT = """
import hashlib, warnings
import numpy as np, knothole as kh
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = rng.normal(size=(600, 1)) + 0.7 * rng.normal(size=(600, 5))
X[rng.random(X.shape) < 0.3] = np.nan
density = kh.LatentTree(8, random_state=0, max_iter=4).fit(X)
digest = hashlib.sha256(density.score_samples(X).tobytes())
for _, array in sorted(density.state()[1].items()):
    digest.update(array.tobytes())
print(digest.hexdigest())
"""


def test_kernels_fresh_or_from_disk_give_the_same_bits(tmp_path):
    """Copies of a called kernel differ in their last bits; which one served depended on that."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run(
            [sys.executable, "-P", "-c", FIT], env=environment, capture_output=True, text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert found[0] == found[1]


@pytest.mark.slow
def test_main_paths_where_nothing_can_be_kept():
    """Files, wrapping, tuning, answers; ``make test-sealed`` runs all."""
    tests = ["golden", "come_back and tuned"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.sealed", "tests/test_robust_io.py", "-k", " or ".join(tests)],
        cwd=PACKAGE.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
