"""The page: well formed, self-contained, safe, and legible in a real browser."""

import base64
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

import knothole as kh
from knothole.errors import MissingExtra
from knothole.report.page import duration, number, render
from knothole.robust import say_missing

VOID = {"meta", "link", "img", "source", "br"}


@pytest.fixture(scope="module")
def html(evaluation) -> str:
    return render(evaluation, "A <script>alert(1)</script> title", "A lead & more")


class Checker(HTMLParser):
    """Every element is closed, in order; collects where things would be fetched from."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.fetched += [found[key] for key in ("src", "href", "srcset") if key in found]
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "img":
            self.images.append(found)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def checked(html) -> Checker:
    checker = Checker()
    checker.feed(html)
    return checker


def test_every_element_is_closed_and_no_id_is_there_twice(checked):
    assert checked.open == []
    assert len(checked.ids) == len(set(checked.ids))


def test_nothing_is_fetched_from_anywhere(html, checked):
    assert checked.fetched
    assert all(place.startswith("data:") for place in checked.fetched)
    assert "url(" not in html and "@import" not in html and "<script" not in html
    for place in checked.fetched:
        svg = base64.b64decode(place.partition(",")[2]).decode()
        used = re.findall(r'(?:xlink:href|href|src)="([^"]*)"', svg)
        assert all(target.startswith("#") for target in used)


def test_text_from_outside_is_escaped(html):
    assert "A &lt;script&gt;alert(1)&lt;/script&gt; title" in html
    assert "<b>pressure</b>" not in html


def test_pictures_have_words_for_those_who_cannot_see_them(checked):
    assert len(checked.images) == 7
    assert all(len(image["alt"] or "") > 20 for image in checked.images)


def test_numbers_are_in_the_tables(html, evaluation):
    mean = evaluation.robustness.errors["RMSE"]["knothole"][1].mean()
    assert f"<td>{number(mean)}</td>" in html
    assert "52 %" in html
    assert "&lt;b&gt;pressure&lt;/b&gt;</th><td>0.500</td><td>0.125</td>" in html
    assert "100 ms" in html and "&lt; 1 ms" in html


def test_the_same_evaluation_makes_the_same_bytes(evaluation, html):
    again = render(evaluation, "A <script>alert(1)</script> title", "A lead & more")
    assert again == html


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.34, "12.3"), (1.2, "1.20"), (np.nan, "–")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text
    assert duration(float("nan")) == "–"


def test_without_jinja2_the_extra_is_named(evaluation, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"pip install 'knothole\[report\]'"):
        render(evaluation, "title")


# ---- in a browser -------------------------------------------------------------------------------


def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if found is None:
        pytest.skip("no chromium here to look at the page with (Debian: apt-get install chromium)")
    return found


def chromium(folder: Path, page: str, *flags: str) -> str:
    """Show a page in headless Chromium, in a profile that is thrown away."""
    place = folder / "page.html"
    place.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--hide-scrollbars", "--virtual-time-budget=3000",
            f"--user-data-dir={folder / 'profile'}", *flags, place.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


PROBE = """
<script>
addEventListener("load", () => {
  const broken = [...document.images].filter(i => !i.complete || !i.naturalWidth).length;
  const small = [...document.querySelectorAll("p, li, td")]
    .filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length;
  const out = document.createElement("output");
  out.id = "probe";
  out.textContent = [document.documentElement.scrollWidth, innerWidth, document.images.length,
                     broken, small].join(" ");
  document.body.append(out);
});
</script></body>
"""


@pytest.mark.parametrize("width", [500, 1200])
def test_in_a_browser_all_pictures_show_and_nothing_sticks_out(html, tmp_path, width):
    page = html.replace("</body>", PROBE)
    dom = chromium(tmp_path, page, f"--window-size={width},900", "--dump-dom")
    found = re.search(r'id="probe">([\d ]+)<', dom)
    assert found is not None
    content, window, images, broken, small = map(int, found[1].split())
    assert window == width
    assert content <= width
    assert (images, broken, small) == (7, 0, 0)


def test_a_screenshot_of_a_phone_shows_the_page(html, tmp_path):
    """390 pixels wide, which Chromium has only for a frame; blue of ours, hardly any scrolling."""
    pytest.importorskip("PIL")
    from PIL import Image

    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    frame = (
        "<body style='margin:0'><iframe src='report.html' width='390' height='1500' frameborder=0>"
    )
    picture = tmp_path / "phone.png"
    chromium(tmp_path, frame, "--window-size=500,1500", f"--screenshot={picture}")
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)[:, :390]
    assert pixels.shape == (1500, 390, 3)
    blue = (abs(pixels - [0, 114, 178]).max(axis=2) < 12).any(axis=1)
    assert blue[:400].any() and blue[600:].any()  # the name above, our line in the plot below
    ink = (pixels.sum(axis=2) < 300).mean()
    assert 0.005 < ink < 0.2


@pytest.mark.filterwarnings("ignore::knothole.errors.FewRows")
def test_the_page_says_what_missing_values_mean():
    X = np.arange(200.0).reshape(100, 2)
    X[::5, 1] = np.nan
    model = HistGradientBoostingRegressor(max_iter=2).fit(X, X[:, 0])
    sentences = [
        say_missing(kh.wrap(model, rows, density=kh.Factorized(), nan_policy=policy))
        for rows, policy in ((X, "infer"), (X, "native"), (X, "lost"), (X[1:5], "infer"))
    ]
    assert "inferred row by row" in sentences[0] and "Beta(" in sentences[0]
    assert "as it learned to" in sentences[1]
    assert sentences[2:] == [None, None]
