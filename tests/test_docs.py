"""The examples of the README and the documentation run, and print what the page says they print.

A page's blocks of Python run one after the other in one namespace. What a block prints is in the
block of text that follows it, to the last character. Pictures that a page's code saves are files of
``docs/pictures``, which ``python -m tools.doc_pictures`` writes. Commands run too.
"""

import contextlib
import io
import re
import shlex
import warnings
from pathlib import Path

import matplotlib as mpl
import pytest
from tools import doc_pictures

ROOT = Path(__file__).parent.parent
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
PAGES = ["README.md", *DOCS]
BLOCK = doc_pictures.BLOCK


def blocks(page):
    """Language, text and first line of each fenced block of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        (found["language"], found["text"], text.count("\n", 0, found.start()) + 2)
        for found in BLOCK.finditer(text)
    ]


def following(page):
    """Each block of code with the output that the page shows directly below it, or None."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    for place, block in enumerate(found):
        shown = None
        if place + 1 < len(found) and found[place + 1]["language"] == "text":
            after = found[place + 1]
            if not text[block.end() : after.start()].strip():
                shown = after["text"]
        line = text.count("\n", 0, block.start()) + 2
        yield block["language"], block["text"], shown, line


def run_python(page, code, line, names):
    """Run a block; what it printed."""
    printed = io.StringIO()
    padded = "\n" * (line - 1) + code  # errors name the page's own line
    with contextlib.redirect_stdout(printed), mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
        exec(compile(padded, page, "exec"), names)
    return printed.getvalue()


def check_page(page, folder):
    """Run a page in a folder of its own, and compare all that it prints."""
    names = {}
    for language, text, shown, line in following(page):
        if language != "python":
            continue
        printed = run_python(page, text, line, names)
        assert printed.rstrip() == (shown or "").rstrip(), f"{page}, line {line}"
    for picture in folder.glob("*.png"):
        assert (ROOT / "docs" / "pictures" / picture.name).exists(), (
            f"{page} draws {picture.name}: run python -m tools.doc_pictures"
        )
        assert f"pictures/{picture.name})" in (ROOT / page).read_text(encoding="utf-8")
    return names


def run_commands(page):
    """Run every line ``knothole ...`` of a page's shell blocks here; all must succeed."""
    from knothole.cli.app import FINE, run

    lines = [
        line
        for language, text, _ in blocks(page)
        if language == "bash"
        for line in text.replace("\\\n", " ").splitlines()
    ]
    done = [shlex.split(line, comments=True) for line in lines if line.startswith("knothole ")]
    for words in done:
        assert run(words[1:]) == FINE, f"{page}: {shlex.join(words)}"
    return done


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(kind == "python" for kind, *_ in blocks(page))]
)
def test_page_runs_and_prints_what_it_shows(page, folder):
    check_page(page, folder)


def test_readme_commands(folder):
    """The files that the commands of the README name are made of its own example."""
    names = check_page("README.md", folder)
    names["model"].save_model("model.json")
    names["X_train"].assign(target=names["y_train"]).to_csv("train.csv", index=False)
    names["rows"].to_csv("today.csv", index=False)
    assert run_commands("README.md")
    import pandas as pd

    answers = pd.read_csv("answers.csv")
    assert len(answers) == len(names["rows"]) and answers["prediction"].notna().all()


def test_tutorial_commands(folder):
    pytest.importorskip("xgboost")
    from xgboost import XGBRegressor

    names = check_page("docs/tutorial.md", folder)
    table, wear = names["table"], names["wear"]
    XGBRegressor(n_estimators=20).fit(table[:1500], wear[:1500]).save_model("model.json")
    table[:1500].assign(wear=wear[:1500]).to_csv("train.csv", index=False)
    table[1500:1750].assign(wear=wear[1500:1750]).to_csv("held_out.csv", index=False)
    names["test"][250:].to_csv("today.csv", index=False)
    assert run_commands("docs/tutorial.md")
    import pandas as pd

    ends = pd.read_csv("intervals.csv")
    assert len(ends) == 250 and (ends["low"] < ends["high"]).all()


def test_questions_commands(folder):
    names = check_page("docs/howto/questions.md", folder)
    names["robust"].save("model.knothole")
    names["rows"].assign(id=["first", "second"]).to_csv("today.csv", index=False)
    assert run_commands("docs/howto/questions.md")
    import pandas as pd

    why, found = pd.read_csv("why.csv"), pd.read_csv("next.csv")
    assert {"id", "base", "value_temperature"} <= set(why) and len(why) == 2
    assert {"id", "best", "plan", "gain_pressure"} <= set(found)


def test_commands_of_other_pages_are_known():
    """Every page with commands has a test above that runs them; whatif would serve for ever."""
    tested = {"README.md", "docs/tutorial.md", "docs/howto/questions.md"}
    having = {
        page
        for page in PAGES
        for kind, text, _ in blocks(page)
        if kind == "bash" and re.search(r"^knothole (?!whatif|demo)", text, re.MULTILINE)
    }
    assert having == tested


def test_a_wrong_output_is_found(folder, monkeypatch):
    """The comparison is live: a number that is off in its last digit fails."""
    page = folder / "page.md"
    monkeypatch.setattr(f"{__name__}.ROOT", folder)
    for shown, right in [("1.25", True), ("1.24", False), (None, False)]:
        output = "" if shown is None else f"\n```text\n{shown}\n```\n"
        page.write_text(f"```python\nprint(1.25)\n```\n{output}")
        if right:
            check_page("page.md", folder)
        else:
            with pytest.raises(AssertionError):
                check_page("page.md", folder)


def test_pictures_of_pages_are_all_used():
    shown = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert f"pictures/{picture.name})" in shown, f"no page shows {picture.name}"


def test_the_tool_writes_what_pages_save(tmp_path):
    page = tmp_path / "page.md"
    drawing = "from pathlib import Path\nPath('drawn.png').write_bytes(b'picture')\n"
    page.write_text(f"```python\n{drawing}```\n")
    assert doc_pictures.draw(page, tmp_path / "pictures") == ["drawn.png"]
    assert (tmp_path / "pictures" / "drawn.png").read_bytes() == b"picture"


def test_links_lead_somewhere():
    for page in ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES]:
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


def test_the_glossary_is_short():
    """Most words need no entry: 20 lines at most."""
    assert len((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()) <= 20


def test_every_public_name_has_its_page():
    """The site (``make docs``) writes a page for what ``docs/api.rst`` lists."""
    import knothole
    from knothole import missingness, report

    listed = re.findall(r"^   (\w+)$", (ROOT / "docs/api.rst").read_text(), re.MULTILINE)
    public = {
        name for name in knothole.__all__ if name not in ("__version__", "errors", "missingness")
    }
    public |= {
        *report.__all__,
        *(name for name in vars(missingness) if is_public(missingness, name)),
    }
    assert sorted(listed) == sorted(public)


def is_public(module, name):
    value = getattr(module, name)
    return (
        not name.startswith("_")
        and callable(value)
        and value.__module__.startswith(module.__name__)
    )
