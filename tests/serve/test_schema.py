"""Requests that schemathesis makes of the page's OpenAPI: none is an error of the server's.

``KNOTHOLE_REQUESTS=2000 pytest tests/serve/test_schema.py`` makes more than the few of CI.
"""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.generation import GenerationMode  # noqa: E402

REQUESTS = int(os.environ.get("KNOTHOLE_REQUESTS", "60"))
NO_REPLY = (405, 413, 415, 421, 422)


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name)
def test_no_request_is_an_error_of_the_servers(client, mode):
    loaded = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    statuses = Counter()
    operations = [operation.ok() for operation in loaded.get_all_operations()]
    posts = [operation for operation in operations if operation.method == "post"]
    assert {operation.path for operation in posts} == {"/predict", "/explain", "/acquire"}
    each = -(-REQUESTS // (len(list(GenerationMode)) * len(posts)))
    for operation in posts:

        @settings(
            max_examples=each, deadline=None, database=None, derandomize=True,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case):
            body = case.as_transport_kwargs(base_url="http://127.0.0.1")
            known = {k: v for k, v in body.items() if k in ("headers", "params", "json", "data")}
            data = known.pop("data", None)
            if data is not None:
                known["content"] = data if isinstance(data, str | bytes) else str(data)
            answer = client.request(case.method, case.operation.path, **known)
            statuses[answer.status_code] += 1
            assert answer.status_code == 200 or answer.status_code in NO_REPLY, answer.text

        ask()
    print(mode.name, dict(statuses))
    assert statuses.total() >= 0.5 * each * len(posts) and statuses[422] + statuses[200] > 0
