"""``python -m tools.site FOLDER``: open every page of the built site in headless Chromium.

A page must show without an error in the console, with all its pictures, without a request to
anywhere else, no wider than a phone, and its links within the site must lead to a page and, where
they name one, to a place on it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

PROBE = """(async () => {
  const broken = await Promise.all([...document.images].map(image => {
    image.loading = "eager";
    return image.decode().then(() => null, () => image.src);
  }));
  return {
    pictures: document.images.length,
    broken: broken.filter(source => source),
    wide: document.documentElement.scrollWidth,
    links: [...document.links].map(link => link.href),
    places: [...document.querySelectorAll("[id]")].map(element => element.id),
  };
})()"""
# Chromium reads from descriptor 3 and writes to 4.
WITH_PIPES = """import fcntl, os, sys
pipes = [fcntl.fcntl(int(own), fcntl.F_DUPFD, 10) for own in sys.argv[1:3]]
for pipe, number in zip(pipes, (3, 4)):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
PHONE = 390  # pixels wide


def main(folder):
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    pages = [page for page in pages if not page.startswith("_static/")]
    if not pages:
        sys.exit(f"{folder} has no pages: run make docs first")
    with served(folder) as origin, Browser() as browser:
        seen = {page: browser.show(f"{origin}/{page}") for page in pages}
    faults = [fault for page, shown in seen.items() for fault in faults_of(page, shown, origin)]
    faults += broken_links(seen, folder, origin)
    for fault in faults:
        print(fault)
    pictures = sum(shown["pictures"] for shown in seen.values())
    links = sum(len(shown["links"]) for shown in seen.values())
    print(f"{len(pages)} pages, {pictures} pictures, {links} links: {len(faults)} faults")
    return 1 if faults else 0


def faults_of(page, shown, origin):
    """What is wrong on one page by itself."""
    for error in shown["errors"]:
        yield f"{page}: {error}"
    for source in shown["broken"]:
        yield f"{page}: the picture {source} does not show"
    for address in shown["requests"]:
        if not address.startswith((origin, "data:", "blob:")):
            yield f"{page}: fetches {address}"
    if shown["wide"] > PHONE:
        yield f"{page}: is {shown['wide']} pixels wide on a phone of {PHONE}"


def broken_links(seen, folder, origin):
    """Links within the site that lead nowhere."""
    for page, shown in seen.items():
        for link in sorted(set(shown["links"])):
            if urlsplit(link).scheme not in ("http", "https"):
                yield f"{page}: links to {link}"
            if not link.startswith(origin):
                continue
            address, place = urldefrag(link)
            target = unquote(urlsplit(address).path).lstrip("/") or "index.html"
            if not (folder / target).is_file():
                yield f"{page}: links to {target}, which is not there"
            elif place and target in seen and unquote(place) not in seen[target]["places"]:
                yield f"{page}: links to {target}#{place}, which has no such place"


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, and no word about it."""

    def log_message(self, *_):
        pass


class served:
    """A folder on a port of this machine."""

    def __init__(self, folder):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def chromium():
    """Where Chromium is, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Browser:
    """Headless Chromium, spoken to through a pair of pipes (its DevTools protocol)."""

    def __enter__(self):
        if chromium() is None:
            sys.exit("no chromium here to look at the site with (Debian: apt-get install chromium)")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WITH_PIPES, str(theirs_in), str(theirs_out), chromium(),
             "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self.rest, self.numbers, self.events = b"", count(1), []
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        found = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self.session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", {}, self.session)
        size = {"width": PHONE, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", size, self.session)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        self.input.close()
        self.output.close()
        self.profile.cleanup()

    def show(self, address):
        """Open a page and wait until it has loaded: what it has, and what went wrong."""
        self.events.clear()
        self.call("Page.navigate", {"url": address}, self.session)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())
        asked = {"expression": PROBE, "awaitPromise": True, "returnByValue": True}
        shown = self.call("Runtime.evaluate", asked, self.session)["result"]["value"]
        shown["requests"] = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        shown["errors"] = [said for said in map(error_in, self.events) if said]
        return shown

    def call(self, method, parameters, session=None):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self.output.write(json.dumps(message).encode() + b"\0")
        self.output.flush()
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        while b"\0" not in self.rest:
            read = os.read(self.input.fileno(), 1 << 20)
            if not read:
                raise RuntimeError("chromium has ended")
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)


def error_in(event):
    """What an event says went wrong, or None."""
    said = event.get("params", {})
    match event.get("method"):
        case "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            return details.get("exception", {}).get("description") or details["text"]
        case "Runtime.consoleAPICalled" if said["type"] in ("error", "assert"):
            return " ".join(str(part.get("value", "")) for part in said["args"])
        case "Log.entryAdded" if said["entry"]["level"] == "error":
            return f"{said['entry']['text']} ({said['entry'].get('url', '')})"
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
