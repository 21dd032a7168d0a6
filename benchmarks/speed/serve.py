"""The server of single rows beside ``predict`` in a loop: 64 connections for a minute."""

import asyncio
import multiprocessing
import time
from functools import partial

import httpx2 as httpx
import numpy as np
import pandas as pd

from benchmarks.speed.setting import COLUMNS, Ratio, table, wall, with_missing, xgboost_model
from knothole.densities.mixture.density import Mixture
from knothole.serve import whatif
from knothole.wrapping import wrap

CONNECTIONS, SECONDS = 64, 60.0
NAMES = [f"x{i}" for i in range(COLUMNS)]


def run():
    X, y = table(10_000)
    frame = pd.DataFrame(X, columns=NAMES)
    robust = wrap(xgboost_model(frame, y), frame, density=Mixture(32, random_state=0))
    rows = pd.DataFrame(with_missing(X[:256], 0.3), columns=NAMES)
    alone = wall(lambda: [robust.predict(rows[i : i + 1]) for i in range(256)]) / 256
    questions = [{"rows": [row.dropna().to_dict()]} for _, row in rows.iterrows()]
    with whatif(robust).start() as serving:
        took = np.array(_load(serving.url, questions))
    yield Ratio(
        "serve", f"one row over HTTP, {CONNECTIONS} connections for {SECONDS:.0f} s: an answer",
        SECONDS / len(took), alone, "predict of one row in a loop", None,
        f"{len(took):,} answers, no error; {len(took) / SECONDS:,.0f} a second, median "
        f"{1e3 * np.median(took):.0f} ms, p99 {1e3 * np.quantile(took, 0.99):.0f} ms",
    )  # fmt: skip
    update = {"rows": questions[0]["rows"], "std": True, "usual": True}
    update["quantiles"] = [i / 40 for i in range(41)]
    along = {"rows": [questions[0]["rows"][0] | {"x0": x} for x in np.linspace(-3, 3, 33)]}
    for what, path, asked, limit in (
        ("an update of the page: answer and spread", "predict", update, 50),
        ("an update of the page: the curve", "predict", along, 50),
        ("why", "explain", {"rows": questions[0]["rows"]}, 300),
        ("what to find out next", "acquire", {"rows": questions[0]["rows"]}, 300),
    ):
        with whatif(robust).start() as serving, httpx.Client(base_url=serving.url) as client:
            ask = partial(client.post, path, json=asked)
            seconds = wall(lambda ask=ask: ask().raise_for_status(), 20)
        yield Ratio("serve", f"{what}, 20 variables", 1e3 * seconds, 1.0, "1 ms", limit)


def _load(url, questions):
    """Seconds that every answer took; asked by another process, as clients are."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_asked_by_all, (url, questions))


def _asked_by_all(url, questions):
    return asyncio.run(_all(url, questions))


async def _all(url, questions):
    took, end = [], time.perf_counter() + SECONDS
    limits = httpx.Limits(max_connections=CONNECTIONS)

    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:

        async def one(number):
            while (start := time.perf_counter()) < end:
                asked = questions[(number + len(took)) % len(questions)]
                (await client.post("predict", json=asked)).raise_for_status()
                took.append(time.perf_counter() - start)

        await asyncio.gather(*(one(number) for number in range(CONNECTIONS)))
    return took
