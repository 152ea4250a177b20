"""The served report: who may read which parts, and when its version changes."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as made

from conformance.base.paths import ROOT
from conformance.report import serve as serving
from conformance.report.serve import (
    CONNECT,
    Pages,
    ServeError,
    has_begun,
    reload_script,
    serve,
    version_of,
)
from conformance.results.errors import ResultsError
from conformance.results.reader import read
from conformance.results.writer import Writer


def no_render(paths: Sequence[Path]) -> str:
    raise AssertionError("nothing is to be rendered")


def sizes(paths: Sequence[Path]) -> str:
    """A stand-in for the report: it shows how many results there are."""
    told = ", ".join(f"{len(read(path).results)} results" for path in paths)
    return f"<!DOCTYPE html>\n<html>\n<head>\n<title>{told}</title>\n</head></html>"


@dataclass
class Served:
    """A server in this process, and its messages."""

    port: int = 0
    said: list[str] = field(default_factory=list)

    def ask(
        self, path: str = "/", method: str = "GET", **headers: str
    ) -> tuple[int, http.client.HTTPMessage, str]:
        """Status, headers and body of the answer to one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def raw(self, request: bytes) -> bytes:
        """The whole response to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))


Start = Callable[..., Served]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a server for these files, and ends it."""
    servers: list[Any] = []
    begin = serving._Server.serve_forever

    def remember(self: Any, poll_interval: float = 0.02) -> None:
        servers.append(self)
        begin(self, 0.02)

    monkeypatch.setattr(serving._Server, "serve_forever", remember)
    threads: list[threading.Thread] = []

    def start_(paths: Sequence[Path], render: serving.Render = sizes) -> Served:
        served = Served()
        thread = threading.Thread(
            target=serve, args=(paths, render), kwargs={"say": served.said.append}
        )
        thread.start()
        threads.append(thread)
        wait_for(lambda: len(servers) == len(threads))
        served.port = servers[-1].server_port
        return served

    yield start_
    for server in servers:
        server.shutdown()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def wait_for(there: Callable[[], Any], seconds: float = 15) -> Any:
    """The result of ``there`` as soon as it is true."""
    until = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A results file with one result; its run is still in progress."""
    run = made.write(tmp_path / "a.jsonl", [made.case()], [made.result()])
    lines = run.read_bytes().splitlines(keepends=True)
    run.write_bytes(b"".join(lines[:-1]))
    return run


def test_the_page_is_the_renderers_output(file: Path, start: Start) -> None:
    served = start([file])
    status, headers, body = served.ask()
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<title>1 results</title>" in body
    version = served.ask("/version")
    assert (version[0], version[1]["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert re.fullmatch("[0-9a-f]{16}", version[2])
    assert f'<head>\n<meta name="gqa-version" content="{version[2]}">' in body
    assert served.said == [f"The report is at http://127.0.0.1:{served.port}/ until Ctrl-C."]


def test_no_response_is_cached(file: Path, start: Start) -> None:
    served = start([file])
    for path in ("/", "/version", "/other"):
        _, headers, _ = served.ask(path)
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Python" not in headers["Server"]


def test_head_returns_only_headers(file: Path, start: Start) -> None:
    served = start([file])
    status, headers, body = served.ask(method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) == len(served.ask()[2].encode())


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading_methods_are_allowed(file: Path, start: Start, method: str) -> None:
    status, headers, _ = start([file], no_render).ask(method=method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_an_unknown_method(file: Path, start: Start) -> None:
    assert start([file], no_render).ask(method="BREW")[0] == 501


@pytest.mark.parametrize(
    "path",
    [
        "/a.jsonl",
        "/version/",
        "/Version",
        "//",
        "//version",
        "/?",
        "/..",
        "/../../etc/passwd",
        "/%2e%2e/",
        "/.",
        "/reload.js",
        "/favicon.ico",
        "http://127.0.0.1/",
        "*",
    ],
)
def test_other_paths_are_not_found(file: Path, start: Start, path: str) -> None:
    served = start([file], no_render)
    status, _, body = served.ask(path, Host=f"localhost:{served.port}")
    assert (status, body) == (404, "Not found. The report is at /.\n")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:1",
        "127.0.0.1.evil.example:{port}",
        "0.0.0.0:{port}",
        "[::1]:{port}",
        "localhost.:{port}",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/", "/version", "/other"])
def test_requests_with_another_host_name_are_rejected(
    file: Path, start: Start, host: str, path: str
) -> None:
    served = start([file], no_render)
    status, _, body = served.ask(path, Host=host.format(port=served.port))
    assert (status, body) == (403, "Open the report at the address that gqa printed.\n")


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}"])
def test_requests_with_its_own_host_names_are_answered(file: Path, start: Start, host: str) -> None:
    served = start([file])
    assert served.ask(Host=host.format(port=served.port))[0] == 200


@pytest.mark.parametrize(
    "headers",
    ["", "Host: {own}\r\nHost: {own}\r\n", "Host: {own}\r\nHost: evil.example\r\n"],
    ids=["none", "twice", "two"],
)
def test_the_host_header_must_be_unique(file: Path, start: Start, headers: str) -> None:
    served = start([file], no_render)
    request = f"GET / HTTP/1.1\r\n{headers.format(own=f'127.0.0.1:{served.port}')}\r\n"
    assert served.raw(request.encode()).startswith(b"HTTP/1.0 403 ")


def test_no_page_is_sent_without_headers(file: Path, start: Start) -> None:
    served = start([file], no_render)
    answer = served.raw(f"GET /\r\nHost: localhost:{served.port}\r\n\r\n".encode())
    assert answer == b"Open the report at the address that gqa printed.\n"


@pytest.mark.parametrize(
    "request_",
    [b"", b"\r\n", b"nonsense\r\n\r\n", b"GET /\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\xff" * 99],
)
def test_invalid_requests_are_harmless(
    file: Path, start: Start, request_: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    served = start([file])
    assert b"results</title>" not in served.raw(request_)
    assert served.ask()[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_closed_connection_is_not_reported(
    file: Path, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    asked, gone = threading.Event(), threading.Event()

    def large(paths: Sequence[Path]) -> str:
        asked.set()
        assert gone.wait(10)
        return "<head></head>" + "x" * 30_000_000

    served = start([file], large)
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{served.port}\r\n\r\n".encode())
        assert asked.wait(10)
        linger = b"\x01\0\0\0\0\0\0\0"  # reset instead of an orderly close
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    gone.set()
    assert served.ask("/version")[0] == 200
    wait_for(lambda: threading.active_count() <= 3)
    assert capfd.readouterr() == ("", "")


def test_only_this_machine_reaches_it(file: Path, start: Start) -> None:
    served = start([file])
    listening = Path("/proc/net/tcp")
    if not listening.is_file():
        pytest.skip("there is no /proc/net/tcp to look it up in")
    suffix = f":{served.port:04X}"
    addresses = {
        local
        for line in listening.read_text().splitlines()[1:]
        for local, state in [line.split()[1:4:2]]
        if local.endswith(suffix) and state == "0A"
    }
    assert addresses == {f"0100007F{suffix}"}  # 127.0.0.1, in this machine's order of bytes


def test_a_growing_file_gets_a_new_version(file: Path, start: Start) -> None:
    served = start([file])
    before = served.ask("/version")[2]
    assert served.ask("/version")[2] == before
    with file.open("ab") as more:
        more.write(made.result(verdict="wrong").model_dump_json().encode()[:40])
    after = served.ask("/version")[2]
    assert after != before
    page = served.ask()[2]
    assert f'content="{after}"' in page
    assert "<title>1 results</title>" in page  # half a line is
    with file.open("ab") as more:
        more.write(made.result(verdict="wrong").model_dump_json().encode()[40:] + b"\n")
    assert "<title>2 results</title>" in served.ask()[2]


def test_a_run_appears_with_its_first_result_in_place_of_earlier_ones(
    tmp_path: Path, start: Start
) -> None:
    cases = [made.case(f"a/{n}") for n in range(2)]
    path = made.write(tmp_path / "a.jsonl", cases, [made.result(each.id) for each in cases])
    served = start([path])
    before = served.ask("/version")[2]
    with Writer(path, made.header([made.target()], 2, 2)) as writer:
        writer.case(cases[0])
        assert served.ask("/version")[2] == before
        assert "<title>2 results</title>" in served.ask()[2]
        writer.result(made.result(cases[0].id))
        assert served.ask("/version")[2] != before
        assert "<title>1 results</title>" in served.ask()[2]
        writer.result(made.result(cases[1].id))
        assert "<title>2 results</title>" in served.ask()[2]


def test_versions_differ_by_each_file_and_by_more_than_size(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    seen = {version_of([one, two])}
    for write in (
        lambda: one.touch(),
        lambda: two.touch(),
        lambda: one.write_text("ab"),
        lambda: two.write_text("cd"),
        lambda: os.utime(one, ns=(1, 1)),
        lambda: one.write_text("ba"),
        lambda: one.unlink(),
    ):
        write()
        seen.add(version_of([one, two]))
    assert len(seen) == 8


def test_a_version_is_rendered_once(file: Path, start: Start) -> None:
    rendered: list[int] = []
    both = threading.Barrier(4)

    def slowly(paths: Sequence[Path]) -> str:
        rendered.append(len(paths))
        time.sleep(0.2)
        return sizes(paths)

    served = start([file], slowly)

    def visit() -> None:
        both.wait(10)
        assert served.ask()[0] == 200

    visitors = [threading.Thread(target=visit) for _ in range(4)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join(10)
    assert rendered == [1]
    file.write_bytes(file.read_bytes() + b"\n")
    served.ask()
    served.ask()
    assert rendered == [1, 1]


def test_data_written_while_rendering_is_a_newer_version(file: Path) -> None:
    def meanwhile(paths: Sequence[Path]) -> str:
        page = sizes(paths)
        file.write_bytes(file.read_bytes() + b"\n")
        return page

    pages = Pages([file], meanwhile, no_render)
    page = pages.page().decode()
    assert "gqa-version" in page
    assert pages.version() not in page


@pytest.mark.parametrize("text", [None, b"", b'{"kind":"header","format":"gqa-res'])
def test_a_missing_results_file_is_waited_for(
    tmp_path: Path, file: Path, start: Start, text: bytes | None
) -> None:
    waiting = tmp_path / "<b>later\x1b[31m.jsonl"
    if text is not None:
        waiting.write_bytes(text)
    served = start([waiting], no_render)
    status, _, body = served.ask()
    assert status == 200
    assert "<p>Waiting for results</p>" in body
    assert "&lt;b&gt;later" in body
    assert "\x1b" not in body
    assert reload_script() in body
    assert CONNECT in body
    # A run that has begun is shown, whatever the others do.
    assert "<title>1 results</title>" in start([waiting, file]).ask()[2]


def test_a_run_that_begins_is_shown(tmp_path: Path, file: Path, start: Start) -> None:
    later = tmp_path / "later.jsonl"
    served = start([later])
    before = served.ask("/version")[2]
    later.write_bytes(file.read_bytes())
    assert served.ask("/version")[2] != before
    assert "<title>1 results</title>" in served.ask()[2]


def test_a_file_that_is_not_a_results_file_is_reported(tmp_path: Path, start: Start) -> None:
    other = tmp_path / "other.txt"
    other.write_text("<script>alert(1)</script>\n")
    page = start([other]).ask()[2]
    assert "not a line of JSON" in page
    assert "<script>alert" not in page
    assert reload_script() in page
    folder = start([tmp_path], no_render).ask()[2]
    assert f"Cannot read results from {tmp_path}: Is a directory." in folder


def test_a_pipe_does_not_block_the_server(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ResultsError, match="not a regular file"):
        has_begun(tmp_path / "pipe")


def test_an_impossible_file_name(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"Cannot read results from .*: File name too long\."):
        has_begun(tmp_path / ("x" * 300))


def test_a_failing_renderer_is_reported_and_called_again(file: Path, start: Start) -> None:
    def broken(paths: Sequence[Path]) -> str:
        raise KeyError("<colour>")

    served = start([file], broken)
    page = served.ask()[2]
    sentence = "Cannot render the report: KeyError: '<colour>'"
    assert "Cannot render the report: KeyError: &#x27;&lt;colour&gt;&#x27;" in page
    assert reload_script() in page
    assert served.said[1:] == [sentence]


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServeError) as error:
            serve([tmp_path / "x"], no_render, port=port, say=no_render)  # type: ignore[arg-type]
    assert str(error.value) == (
        f"Cannot serve the report on port {port}: address already in use; "
        "without --port, a free one is used."
    )


def test_an_invalid_port(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="on port 70000: there is no such port;"):
        serve([tmp_path / "x"], no_render, port=70000, say=no_render)  # type: ignore[arg-type]


def test_a_port_can_be_reused_immediately(file: Path) -> None:
    """The system keeps a connection that the server has closed for a minute."""
    pages = Pages([file], sizes, no_render)  # type: ignore[arg-type]
    with serving._Server(0, pages) as server:
        port = server.server_port
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert Served(port).ask()[0] == 200
        thread.join(10)
    with serving._Server(port, pages) as again, pytest.raises(ServeError):
        serve([file], sizes, port=again.server_port, say=no_render)  # type: ignore[arg-type]


SCRIPT = """
import sys
from pathlib import Path
from conformance.report.serve import serve
say = lambda text: print(text, flush=True)
serve([Path(sys.argv[1])], lambda paths: "<head></head>", say=say)
print("ended")
"""


def test_ctrl_c_ends_the_server_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "none.jsonl")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        port = int(first.split(":")[2].split("/")[0])
        assert "Waiting" in Served(port).ask()[2]
        # A client that sends nothing blocks nothing.
        with socket.create_connection(("127.0.0.1", port)):
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "ended\n", "")


# ── In a browser ─────────────────────────────────────────────────────────────────────────────────


def tall(paths: Sequence[Path]) -> str:
    """A page with everything that a reload must keep, generated like the report."""
    (path,) = paths
    script = reload_script()
    digest = serving.digest(script)
    policy = f"default-src 'none'; script-src '{digest}'; style-src 'unsafe-inline'; {CONNECT}"
    return f"""<!DOCTYPE html>
<html><head>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<style>body {{height: 5000px}} #panel {{height: 90px; overflow: auto}}
#panel div {{height: 900px}}</style>
<title>{len(read(path).results)}</title><script>{script}</script></head>
<body><h1 id="top">Top</h1><input id="search"><aside id="panel"><div>long</div></aside>
<p id="text" style="margin-top:1500px">Some text to select</p><p id="a/b">there</p></body></html>"""


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A tab of a Chromium; fails if its page logged an error."""
    page = browser.new_page(viewport={"width": 800, "height": 600})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    yield page
    page.close()
    assert [c for c in complaints if "favicon" not in c and "404" not in c] == []


def grow(file: Path) -> None:
    with file.open("ab") as more:
        more.write(made.result().model_dump_json().encode() + b"\n")


def wait_for_title(tab: Any, title: str) -> None:
    """Waits for the page. Playwright's own waiting is forbidden by the page's policy."""
    for _ in range(200):
        if tab.title() == title:
            return
        tab.wait_for_timeout(100)
    raise AssertionError(f"{tab.title()!r} is the title, not {title!r}")


def test_the_page_updates_and_keeps_its_scroll_position(file: Path, start: Start, tab: Any) -> None:
    served = start([file], tall)
    address = f"http://127.0.0.1:{served.port}/#a/b"
    tab.goto(address)
    tab.fill("#search", "cache")
    tab.evaluate("() => { document.activeElement.blur(); scrollTo(0, 700) }")
    tab.evaluate("() => { document.querySelector('#panel').scrollTop = 333 }")
    grow(file)
    wait_for_title(tab, "2")
    tab.wait_for_load_state("load")
    assert tab.evaluate("scrollY") == 700
    assert tab.url == address
    assert tab.input_value("#search") == "cache"
    assert tab.evaluate("document.querySelector('#panel').scrollTop") == 333


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (
            "getSelection().selectAllChildren(document.querySelector('#text'))",
            "getSelection().removeAllRanges()",
        ),
        ("document.querySelector('#search').focus()", "document.activeElement.blur()"),
    ],
    ids=["selected", "typing"],
)
def test_an_update_does_not_disturb_the_reader(
    file: Path, start: Start, tab: Any, begin: str, end: str
) -> None:
    served = start([file], tall)
    tab.goto(f"http://localhost:{served.port}/")
    tab.evaluate(begin)
    grow(file)
    with tab.expect_response("**/version", timeout=20_000):
        pass
    with tab.expect_response("**/version", timeout=20_000):
        pass
    assert tab.title() == "1"
    tab.evaluate(end)
    wait_for_title(tab, "2")


def test_a_run_that_begins_appears(tmp_path: Path, file: Path, start: Start, tab: Any) -> None:
    later = tmp_path / "later.jsonl"
    served = start([later], tall)
    tab.goto(f"http://127.0.0.1:{served.port}/")
    assert tab.inner_text("p") == "Waiting for results"
    later.write_bytes(file.read_bytes())
    wait_for_title(tab, "1")
    assert json.loads(tab.evaluate("JSON.stringify(sessionStorage)")) == {}
