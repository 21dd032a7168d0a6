"""The page in a real browser shows what ``predict``, ``explain`` and ``acquire`` return."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from tests.serve.conftest import MARKUP
from tests.serve.test_answers import as_table

import knothole as kh
from knothole.serve import whatif

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium here to open the page with (Debian: apt-get install chromium)")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(robust):
    with whatif(robust, cost={"rooms": 2.0}).start() as server:
        yield server


@pytest.fixture
def page(browser, server):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    faults = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(server.url)
    page.wait_for_selector("#prediction-0")
    yield page
    page.close()
    assert faults == []


def settle(page):
    """Wait until nothing is asked any more."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(200)
    page.wait_for_load_state("networkidle")


def shown(page, place):
    return json.loads(page.locator(place).get_attribute("data-value"))


def test_an_empty_form_is_the_prior(page, robust):
    settle(page)
    assert shown(page, "#prediction-0") == robust.predict(as_table())[0]
    assert page.locator("#v1-unknown").is_checked()
    assert page.locator("#why").inner_text() == "No value is known yet."


def test_moving_a_slider_choosing_a_level_and_marking_unknown(page, robust):
    page.locator("#v1-slider").fill("4")
    page.locator("#v2-level").select_option(MARKUP)
    settle(page)
    table = as_table(rooms=4.0, city=MARKUP)
    assert shown(page, "#prediction-0") == robust.predict(table)[0]
    interval = robust.predict_interval(table, 0.9)
    assert shown(page, "#interval-0") == interval.to_numpy()[0].tolist()
    assert page.locator("#curve-title").inner_text() == "Prediction by city"
    page.locator("#v2-unknown").check()
    settle(page)
    assert shown(page, "#prediction-0") == robust.predict(as_table(rooms=4.0))[0]
    page.locator("#v1-number").fill("2")
    settle(page)
    chance = robust.lost_probability(as_table(rooms=2.0))["income"][0]
    assert page.locator("#v4-chance").inner_text() == f"lost with probability {chance:.4g}"
    assert page.locator("#v0-chance").inner_text() == ""  # never missing in training
    page.locator("#v4-lost").check()
    settle(page)
    mask = np.array([[False] * 6 + [True]])
    assert shown(page, "#prediction-0") == robust.predict(as_table(rooms=2.0), mask)[0]
    assert page.locator("#v4-chance").inner_text() == ""
    page.locator("#v4-not-recorded").check()
    settle(page)
    assert '"income":"(not recorded)"' in page.evaluate("decodeURIComponent(location.hash)")
    page.locator("#empty").click()
    settle(page)
    assert shown(page, "#prediction-0") == robust.predict(as_table())[0]


def test_the_curve_is_that_of_predict(page, robust):
    page.locator("#v1-slider").fill("3")
    settle(page)
    table = pd.concat([as_table(rooms=float(rooms)) for rooms in range(1, 6)])
    assert shown(page, "#curve") == [robust.predict(table).tolist()]


def test_comparing_and_links(page, browser, robust):
    page.locator("#v1-slider").fill("2")
    page.locator("#compare").click()
    page.locator("#v1-slider").fill("5")
    settle(page)
    values = [shown(page, f"#prediction-{side}") for side in (0, 1)]
    expected = robust.predict(pd.concat([as_table(rooms=2.0), as_table(rooms=5.0)]))
    assert values == expected.tolist()
    other = browser.new_page()
    other.goto(page.url)
    other.wait_for_selector("#prediction-1")
    assert [shown(other, f"#prediction-{side}") for side in (0, 1)] == values
    other.close()
    page.locator("#compare").click()
    settle(page)
    assert page.locator("#prediction-1").count() == 0


def test_exporting_and_loading(page, robust):
    page.locator("#v1-slider").fill("3")
    page.locator("#v2-level").select_option(MARKUP)
    page.locator("#export").click()
    assert json.loads(page.locator("#as-json").input_value()) == {"rooms": 3, "city": MARKUP}
    names = {}
    exec(page.locator("#as-python").input_value(), names)
    assert names["row"] == {"rooms": 3, "city": MARKUP}
    csv = page.locator("#as-csv").input_value()
    page.locator("#close-exported").click()
    page.locator("#empty").click()
    page.locator("#load").click()
    page.locator("#row-text").fill(csv)
    page.locator("#take-row").click()
    settle(page)
    table = as_table(rooms=3.0, city=MARKUP)
    assert shown(page, "#prediction-0") == robust.predict(table)[0]
    page.locator("#load").click()
    page.locator("#row-text").fill("{")
    page.locator("#take-row").click()
    assert page.locator("#load-trouble").inner_text()
    page.locator("#close-loading").click()


def test_the_keyboard_alone_serves(page):
    page.locator("#v1-slider").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert not page.locator("#v1-unknown").is_checked()
    page.locator("#v1-unknown").focus()
    page.keyboard.press("Space")
    assert page.locator("#v1-unknown").is_checked()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_accessibility(browser, server, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe here").Axe()
    page = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 800})
    page.goto(f"{server.url}#rows=%5B%7B%22rooms%22%3A3%7D%2C%7B%7D%5D")
    page.wait_for_selector("#prediction-1")
    settle(page)
    found = axe.run(page).response["violations"]
    serious = [(each["id"], each["nodes"][0]["html"]) for each in found
               if each["impact"] in ("serious", "critical")]  # fmt: skip
    assert serious == []
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
    page.close()


def test_auxiliary_columns_have_a_group_of_their_own(browser):
    rng = np.random.default_rng(0)
    size = rng.normal(60, 20, 300)
    place = np.where(size > 60, "Graz", "Linz")
    table = pd.DataFrame({"size": size, "age": rng.normal(size=300), "place": place})
    model = HistGradientBoostingRegressor(max_iter=10, random_state=0)
    model.fit(table[["size", "age"]], size + table["age"])
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), auxiliary=["place"])
    with whatif(robust).start() as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("#prediction-0")
        assert page.locator("#auxiliary fieldset legend").all_inner_texts() == ["place"]
        assert page.locator("fieldset[data-name=size]").count() == 1
        assert page.locator("#auxiliary fieldset[data-name=size]").count() == 0
        settle(page)
        unknown = shown(page, "#prediction-0")
        page.locator("#auxiliary select").select_option("Graz")
        settle(page)
        nothing = {"size": [np.nan], "age": [np.nan]}
        told = robust.predict(pd.DataFrame({**nothing, "place": ["Graz"]}))[0]
        assert shown(page, "#prediction-0") == told > unknown + 5
        page.close()


def test_a_classifier_of_two_classes(browser):
    """Quantiles are for regressors: the page must not ask for them."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["u", "v"])
    labels = np.where(X["u"] > 0, "yes", "no")
    model = HistGradientBoostingClassifier(max_iter=5).fit(X, labels)
    robust = kh.wrap(model, X, density=kh.Mixture(2, random_state=0)).conformalize(X, labels)
    with whatif(robust).start() as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("#prediction-0")
        settle(page)
        assert page.locator("#trouble").is_hidden()
        found = shown(page, "#probabilities-0")
        assert list(found.values()) == robust.predict_proba([[np.nan, np.nan]])[0].tolist()
        assert set(shown(page, "#set-0")) <= {"yes", "no"}
        page.close()
