"""Give knothole files that were changed at random: ``python -m tests.fuzz FORMAT FIRST COUNT``.

Inputs are tried in a child with limits on time and memory; one that ends it is reported, and
another child goes on after it. Crashes, hangs, errors that are none of knothole's, and NaN out of
finite rows all count. So does another answer: of a container of ours though only its bytes were
changed, for a zip has checksums; or though another part of it was changed, that the answer does
not come from; of a library's model than the library's own to the same file.
"""

import re
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from tests.fuzz import models, mutations

from knothole.trees import quarantine

SECONDS = 10
BYTES = 2**30

OWN = ("container", "repacked", "insured", "density", "circuit")
FORMATS = (*OWN, *models.CHANGES)


def sources():
    """A model file, density files and a circuit's text, by format."""
    from sklearn.tree import DecisionTreeRegressor

    import knothole as kh

    rng = np.random.default_rng(0)
    z = rng.normal(size=80)
    table = pd.DataFrame({"a": z, "b": rng.poisson(2.0, 80), "c": np.where(z > 0, "u", "v")})
    numbers = table.assign(c=(table["c"] == "u") * 1.0)
    seeded = {"random_state": 0, "max_iter": 2, "tol": 1e9}
    made = [
        kh.Mixture(2, families={"b": "poisson"}, **seeded).fit(table),
        kh.LatentTree(2, **seeded).fit(table),
        kh.GaussianMixture(2, **seeded).fit(table),
    ]
    model = DecisionTreeRegressor(max_depth=3).fit(numbers, numbers.sum(axis=1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"

        def saved(one):
            one.save(path)
            return path.read_bytes()

        densities = [saved(one) for one in (*made, made[0].to_circuit())]
        models = [
            saved(kh.wrap(model, numbers, density=density))
            for density in (kh.Mixture(2, **seeded), kh.LatentTree(2, **seeded))
        ]
        insured = saved(insured_model(numbers))
    texts = [made[0].to_circuit().to_json()]
    rows = {"model": numbers.head(6).astype(float), "density": table.head(6)}
    for one in rows.values():
        one["b"] = one["b"].astype(float)
        one.iloc[::2, 0] = np.nan
        one.iloc[1::2, 1] = np.nan
    given = {"container": models, "repacked": models, "insured": [insured]}
    return given | {"density": densities, "circuit": texts}, rows


def insured_model(table):
    """A model with a correction and a calibration."""
    from sklearn.tree import DecisionTreeRegressor

    import knothole as kh
    from knothole.inspection.correction import GENERAL, Correction, Part
    from knothole.inspection.dependencies import FunctionalDependencies
    from knothole.robust import Robust
    from knothole.trees.read import read

    y = table.sum(axis=1).to_numpy()
    model = DecisionTreeRegressor(max_depth=3, random_state=0).fit(table, y)
    wrapped = kh.wrap(model, table, density=kh.Mixture(2, random_state=0, max_iter=2, tol=1e9))
    over = table.assign(expectation=y)
    parts = tuple(
        Part(variable, read(DecisionTreeRegressor(max_depth=2, random_state=variable + 1).fit(
            over, y / 10)), np.ones(1))
        for variable in (GENERAL, 0)
    )  # fmt: skip
    corrected = Robust(
        wrapped.expectation_, name=wrapped.model_name_,
        correction=Correction(parts, FunctionalDependencies(np.empty((0, 4)))),
    )  # fmt: skip
    return corrected.conformalize(table, y + 0.1)


def answers_by_part(robust, rows):
    """Answers, each with the parts of the file that it comes from."""
    table, trees = rows["model"], robust.ensemble_
    complete = np.ascontiguousarray(np.nan_to_num(table.to_numpy()))
    exact = ("trees", "density", "draws", "reading")
    conformal = robust.conformal_ is not None
    return {
        ("trees",): [trees.predict(complete)],
        ("density",): [robust.density_.score_samples(table)],
        exact: [robust.margin(table)],
        (*exact, "correction"): [*robust.predict(table, return_std=True, return_error=True)],
        (*exact, "correction", "conformal"): (
            [robust.predict_interval(table, 0.8)] if conformal else []
        ),
    }


def judged(path, source, rows):
    """What is wrong with answers of a container of which some parts were changed."""
    import knothole as kh

    parts = mutations.changed_parts(source, path.read_bytes())
    given = answers_by_part(kh.load(path), rows)
    path.write_bytes(source)
    expected = answers_by_part(kh.load(path), rows)
    for needs, answers in given.items():
        if any(not np.isfinite(np.asarray(answer)).all() for answer in answers):
            return f"not finite: an answer of {needs}"
        if not parts & {*needs, "header"}:
            for answer, own in zip(answers, expected[needs], strict=False):
                if not np.array_equal(np.asarray(answer), np.asarray(own)):
                    return f"another answer of {needs}, though only {parts} were changed"
    return "answered"


def changed(kind, source, number):
    """An input: a file after its number's changes."""
    if kind in models.CHANGES:
        return models.changed(kind, source, number)
    change = {"container": mutations.raw, "circuit": mutations.text}.get(kind, mutations.repacked)
    return change(source, number)


def attempt(kind, source, number, path, rows):
    """One input, or the file as it is: "answered", "refused", or what is wrong."""
    import knothole as kh
    from knothole.densities import storage
    from knothole.densities.circuit.density import Circuit

    given = source if number is None else changed(kind, source, number)
    try:
        if kind == "circuit":
            answer = Circuit.from_json(given).score_samples(rows["density"])
            return "NaN" if np.isnan(answer).any() else "answered"
        path.write_bytes(given)
        if kind in models.CHANGES:
            return models.judge(path, number or 0) or "answered"
        if kind in ("repacked", "insured"):
            return judged(path, source, rows)
        if kind == "density":
            density = storage.load(path)
            answer = density.score_samples(rows["density"])
            drawn = density.complete(rows["density"], draws=2)
            return "NaN" if np.isnan(answer).any() or np.isnan(drawn).any() else "answered"
        found = [np.asarray(kh.load(path).predict(rows["model"]))]
        path.write_bytes(source)
        found.append(np.asarray(kh.load(path).predict(rows["model"])))
        return "answered" if np.array_equal(*found) else "another answer"
    except kh.errors.KnotholeError:
        return "refused"
    except Exception as error:
        return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:200]


def child(kind, first, stop):
    """Try inputs, each named before it is tried."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, models.kept_child():
        path = Path(folder) / "x"
        given, rows = (models.sources(kind, path), None) if kind in models.CHANGES else sources()
        given = given if rows is None else given[kind]
        for source in given:  # all kernels are there before the limits are
            assert attempt(kind, source, None, path, rows) == "answered"
        used = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
        quarantine.TIMEOUT = 0.7 * SECONDS
        for number in range(first, stop):
            print(number, end=" ", flush=True)
            signal.alarm(SECONDS)
            source = given[number // 3 % len(given)]
            print(attempt(kind, source, number, path, rows), flush=True)
        signal.alarm(0)


def fuzz(kind, first, count):
    """What went wrong with these inputs: pairs of a number and a description."""
    wrong, stop = [], first + count
    while first < stop:
        command = [sys.executable, "-m", "tests.fuzz", kind, str(first), str(stop - first), "child"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        last = first - 1
        for line in done.stdout.splitlines():
            number, _, outcome = line.partition(" ")
            last = int(number)
            if outcome not in ("answered", "refused"):
                wrong.append((last, outcome or f"ended the process ({done.returncode})"))
        if done.returncode and last < first:
            raise RuntimeError(f"the child failed before its first input ({done.returncode})")
        first = last + 1
    return wrong


if __name__ == "__main__":
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == ["child"]:
        child(kind, first, first + count)
    else:
        found = fuzz(kind, first, count)
        for number, outcome in found:
            print(f"{kind} {number}: {outcome}")
        print(f"{kind}: {count} inputs, {len(found)} wrong")
        sys.exit(bool(found))
