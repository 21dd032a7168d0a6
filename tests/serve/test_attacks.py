"""A server that is attacked answers, or refuses clearly, and goes on."""

import json
import resource
import socket
import threading
import time

import httpx2 as httpx
import pytest
from starlette.testclient import TestClient

from knothole.errors import InvalidInput
from knothole.serve import app as serving
from knothole.serve import protocol, whatif
from knothole.serve.app import HEADERS, MOST_BYTES, application
from knothole.serve.questions import Questions

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"NaN", b"nul", b'"rows"',
        b"1e999", b'{"rows":[{"rooms":NaN}]}', b'{"rows":[{"rooms":1e999}]}',
        b'{"rows":[],"rows":[]}', b'{"rows":[{"rooms":1,"rooms":2}]}',
        b'{"rows":[' + b"1" * 5000 + b"]}",
        b'{"rows":[{"__proto__":1}]}', b'{"rows":[{"<script>":1}]}', b'{"rows":[null]}',
    ],
)  # fmt: skip
def test_malformed_bodies_are_refused(client, body):
    for path in ("/predict", "/explain", "/acquire"):
        answer = client.post(path, content=body, headers=JSON)
        assert answer.status_code == 422
        assert 0 < len(answer.json()["error"]) < 500


def test_bodies_are_bounded(client):
    large = b'{"rows":[' + b" " * MOST_BYTES + b"]}"
    assert client.post("/predict", content=large, headers=JSON).status_code == 413
    parts = (b" " * 1000 for _ in range(MOST_BYTES // 500))
    assert client.post("/predict", content=parts, headers=JSON).status_code == 413


def test_other_hosts_and_other_types_are_refused(client):
    question = {"rows": []}
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        answer = client.post("/predict", json=question, headers={"host": host})
        assert answer.status_code == 421
    for host in ("localhost:8765", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert client.post("/predict", json=question, headers={"host": host}).status_code == 200
    plain = client.post("/predict", content=b"{}", headers={"content-type": "text/plain"})
    assert plain.status_code == 415


def test_every_answer_has_the_headers_and_no_other_origin_is_allowed(client):
    asked = {"origin": "http://evil.example"}
    for answer in (client.get("/", headers=asked), client.get("/nothing"), client.get("/form")):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert not [name for name in answer.headers if name.startswith("access-control")]
    preflight = client.options("/predict", headers=asked)
    assert preflight.status_code == 405 and preflight.json()["error"]


def test_a_token_is_asked_for(robust):
    client = TestClient(application(Questions(robust), token="open"), base_url="http://[::1]")
    for path in ("/form", "/openapi.json"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer ope"}).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer open"}).status_code == 200
    assert client.post("/predict", json={"rows": []}).status_code == 401
    assert client.get("/").status_code == client.get("/health").status_code == 200


def test_only_loopback_goes_without_names_and_token(robust):
    with pytest.raises(InvalidInput, match="names"):
        whatif(robust, host="0.0.0.0")
    with whatif(robust, host="0.0.0.0", names=["here.example"]) as serving_:
        assert "#token=" in serving_.url and "here.example" in serving_.url
    with whatif(robust) as first, pytest.raises(InvalidInput, match="taken"):
        whatif(robust, port=int(first.url.rsplit(":", 1)[1].strip("/")))
    with pytest.raises(InvalidInput, match="cost"):
        whatif(robust, cost={"floor": 1.0})


def test_a_slow_or_failing_answer_is_a_refusal(robust, monkeypatch):
    questions = Questions(robust)
    client = TestClient(application(questions), base_url="http://localhost")

    def broken(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(type(questions), "form", broken)
    failing = TestClient(application(questions), base_url="http://localhost")
    answer = failing.get("/form")
    assert answer.status_code == 500 and "secret" not in answer.text
    monkeypatch.setattr(serving, "SECONDS", 0.05)
    monkeypatch.setattr(type(questions), "form", lambda _: time.sleep(0.5))
    slow = TestClient(application(questions), base_url="http://localhost").get("/form")
    assert slow.status_code == 503
    monkeypatch.setattr(serving, "WAITING", 0)
    assert client.post("/predict", json={"rows": []}).status_code == 503


def test_two_hundred_at_once_are_all_answered_the_same(robust):
    row = {"rows": [{"rooms": 3}], "std": True}
    found = []
    with whatif(robust).start() as server, httpx.Client(base_url=server.url, timeout=60) as warm:
        _until_ready(warm)
        expected = warm.post("/predict", json=row).json()

        def ask():
            answer = httpx.post(f"{server.url}predict", json=row, timeout=60)
            found.append((answer.status_code, answer.json()))

        threads = [threading.Thread(target=ask) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert warm.get("/health").json() == {"status": "ok"}
    refused = [answer for status, answer in found if status == 503]
    assert len(found) == 200
    answers = [answer for status, answer in found if status == 200]
    assert answers == [expected] * (200 - len(refused))
    assert not [status for status, _ in found if status not in (200, 503)]


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/explain", {"rows": []}),
        ("/acquire", {"rows": []}),
        ("/predict", {"rows": [{}], "interval": 1e-9}),
        ("/predict", {"rows": [{}], "interval": 1e-300}),
    ],
)
def test_what_is_small_is_answered(client, path, question):
    """No rows, and next to no coverage, were errors of the server's."""
    answer = client.post(path, json=question)
    assert answer.status_code == 200
    [found] = answer.json().values()
    assert len(found) == len(question["rows"])


def test_an_empty_token_is_refused(robust):
    with pytest.raises(InvalidInput, match="token must not be empty"):
        whatif(robust, token="")
    with pytest.raises(InvalidInput, match="token must not be empty"):
        whatif(robust, host="0.0.0.0", names=["here.example"], token="")


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def drip(connection, seconds):
    """Send a byte now and then."""
    for _ in range(10 * seconds):
        connection.sendall(b"a")
        time.sleep(0.1)


@pytest.mark.parametrize("begin", [b"", HEAD, HEAD + b"Content-Length: 1000\r\n\r\n"])
def test_slow_requests_are_cut_off(robust, monkeypatch, begin):
    """A few bytes now and then kept a connection open for ever, in headers and in bodies."""
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 1.0)
    with whatif(robust).start() as server:
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
            slow.sendall(begin)
            with pytest.raises(OSError, match=r"reset|pipe|closed"):
                drip(slow, 15)
        assert httpx.get(f"{server.url}health").json() == {"status": "ok"}


def test_connections_beyond_the_limit_shut_nobody_out(robust, monkeypatch, caplog):
    """58 of them took all descriptors, and the log grew to 17 MB."""
    monkeypatch.setattr(protocol, "most_connections", lambda: 10)
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 1.0)
    with whatif(robust).start() as server:
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        open_ones = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(58)]
        time.sleep(0.5)
        closed = 0
        for one in open_ones:
            one.setblocking(False)
            try:
                closed += one.recv(1) == b""
            except BlockingIOError:
                pass
            except ConnectionResetError:
                closed += 1
        assert closed == 48
        time.sleep(1.0)
        assert httpx.get(f"{server.url}health").json() == {"status": "ok"}
        for one in open_ones:
            one.close()
    assert not caplog.records


def test_what_is_no_http_is_refused_and_not_logged(robust, capfd):
    """Each connection wrote a line into the log."""
    with whatif(robust).start() as server:
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
                one.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
                assert one.recv(100).startswith(b"HTTP/1.1 400")
        assert httpx.get(f"{server.url}health").json() == {"status": "ok"}
    assert capfd.readouterr().err == ""


def test_the_limit_leaves_files_to_open():
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, most))
        assert protocol.most_connections() == 30
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    assert protocol.most_connections() <= protocol.MOST_CONNECTIONS


def _until_ready(client):
    for _ in range(100):
        try:
            return client.get("/health")
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")


def test_names_and_levels_never_become_markup(client):
    page = client.get("/").text
    assert "<b>Linz" not in page and "onclick" not in page and "<style" not in page
    form = client.get("/form")
    assert form.headers["content-type"] == "application/json"
    assert "<b>Linz</b>" in json.dumps(form.json())


def test_no_answer_waits_for_word_of_its_head(robust):
    """Connections inherit it from the socket that listens: it is 40 ms of every answer."""
    with whatif(robust) as serving_:
        listening = serving_._listening
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
