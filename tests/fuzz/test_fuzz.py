"""A few hundred files changed at random; ``make fuzz`` has any number."""

import warnings

import pytest
from tests.fuzz.__main__ import FORMATS, OWN, attempt, fuzz, judged, sources

import knothole as kh
from knothole.files import read_container, write_container


@pytest.mark.parametrize("kind", FORMATS)
def test_files_changed_at_random_are_refused_or_answered(kind):
    assert fuzz(kind, 0, 100 if kind in OWN else 60) == []


@pytest.fixture(scope="module")
def insured():
    """A container with a correction and a calibration, and rows to ask it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two steps of training are few
        given, rows = sources()
    return given["insured"][0], rows


def of_table(header, arrays):
    header["selection"] = None
    header["model"] = "another name"


def of_interval(header, arrays):
    arrays["conformal.residual"] = 2 * arrays["conformal.residual"]


def of_correction(header, arrays):
    arrays["correction.0.value"] = 1 + arrays["correction.0.value"]


def of_density(header, arrays):
    arrays["density.weights"] = arrays["density.weights"][::-1].copy()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "untouched"),
    [
        (of_table, ["predict_interval", "predict", "margin"]),
        (of_interval, ["predict", "margin"]),
        (of_correction, ["margin"]),
        (of_density, []),
    ],
)
def test_other_answers_from_parts_that_were_not_changed_are_noticed(
    insured, tmp_path, monkeypatch, change, untouched
):
    """What is compared is alive: a fault in each answer that the change does not touch is seen."""
    source, rows = insured
    path = tmp_path / "x"

    def outcome():
        path.write_bytes(source)
        header, arrays = read_container(path, "knothole model", 1)
        change(header, arrays)
        write_container(path, header, arrays)
        return judged(path, source, rows)

    assert outcome() == "answered"
    for name in ("predict_interval", "predict", "margin"):
        with monkeypatch.context() as patched:
            calls, honest = [], getattr(kh.Robust, name)

            def false(robust, *arguments, honest=honest, calls=calls, **options):
                calls.append(None)
                found = honest(robust, *arguments, **options)
                if len(calls) > 1:  # the file as it is, loaded second
                    return found
                return (2 * found[0], *found[1:]) if isinstance(found, tuple) else 2 * found

            patched.setattr(kh.Robust, name, false)
            assert (outcome() != "answered") == (name in untouched), name


@pytest.mark.filterwarnings("ignore")
def test_insured_files_are_not_all_refused(insured, tmp_path):
    source, rows = insured
    outcomes = [attempt("insured", source, number, tmp_path / "x", rows) for number in range(40)]
    assert outcomes.count("answered") >= 5
