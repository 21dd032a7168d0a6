"""``python -m tools.whatif_pictures``: the pictures of docs/whatif.md, from a real page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split

import knothole as kh

DOCS = Path(__file__).parents[1] / "docs"
ROWS = ([{"age": 59, "bmi": 32.1, "bp": 101}], [{"bmi": 32.1}, {"bmi": 22.0, "s5": 4.5}])


def main() -> None:
    table, target = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    train, rest, y, y_rest = train_test_split(table, target, test_size=0.4, random_state=0)
    model = HistGradientBoostingRegressor(max_iter=100, max_depth=3, random_state=0).fit(train, y)
    robust = kh.wrap(model, train, density=kh.Mixture(8, random_state=0))
    robust = robust.conformalize(rest, y_rest)
    with robust.whatif(cost={"s5": 3.0}) as serving, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme, rows in zip(("light", "dark"), ROWS, strict=True):
            page = browser.new_page(viewport={"width": 1200, "height": 700}, color_scheme=scheme)
            page.goto(f"{serving.url}#rows={quote(json.dumps(rows))}&focus=bmi")
            page.wait_for_selector("#next svg", timeout=120_000)
            page.wait_for_selector("#why svg", timeout=120_000)
            page.wait_for_load_state("networkidle")
            page.screenshot(path=DOCS / f"whatif_{scheme}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
