"""A local server for the HTML report of results files that are still being written.

The page polls ``/version`` and reloads when it changes. The server has two addresses and reads only
the results files that it was started with.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from conformance.base.files import open_plain
from conformance.base.paths import data_path, shown
from conformance.report.text import clean
from conformance.results.errors import ResultsError, cause_of

#: A loopback address, which other machines cannot reach.
ADDRESS: Final = "127.0.0.1"

#: What the policy of a served page must also allow, for `reload_script`.
CONNECT: Final = "connect-src 'self'"

#: The longest header of a results file, in bytes.
_LONGEST_HEADER: Final = 1 << 24

_HEADERS: Final = {
    "Cache-Control": "no-store",
    # A policy inside the page cannot forbid that another page frames it.
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:44rem;margin:4rem auto;padding:0 1rem}"
    "li,p{overflow-wrap:anywhere;white-space:pre-wrap}"
)

#: Renders the page of some results files; raises `ResultsError` for other files.
Render = Callable[[Sequence[Path]], str]


class ServeError(Exception):
    """The report cannot be served; the message is one sentence."""


@cache
def reload_script() -> str:
    """The script that reloads a served page, for a script element of its own."""
    return (data_path("reports") / "reload.js").read_text(encoding="utf-8")


def version_of(paths: Sequence[Path]) -> str:
    """A text that changes when one of the files does."""
    return hashlib.sha256(repr([_state(path) for path in paths]).encode()).hexdigest()[:16]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def has_begun(path: Path) -> bool:
    """Whether the file has its first line, which a run writes before anything else.

    Raises `ResultsError` for anything but a file, such as a folder or a pipe.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return path.suffix == ".xz" or file.readline(_LONGEST_HEADER).endswith(b"\n")
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot read results from {path}: {cause_of(error)}.") from None


class Pages:
    """The page of the files' present content, rendered once for each version."""

    def __init__(self, paths: Sequence[Path], render: Render, say: Callable[[str], None]) -> None:
        self.paths = tuple(paths)
        self._render = render
        self._say = say
        self._lock = threading.Lock()
        self._made: tuple[str, bytes] | None = None

    def version(self) -> str:
        """The version of the files now."""
        return version_of(self.paths)

    def page(self) -> bytes:
        """The page, in UTF-8, with its version in a meta element."""
        with self._lock:
            # Taken before reading: what is written meanwhile belongs to a newer version.
            version = self.version()
            if self._made is None or self._made[0] != version:
                self._made = version, _marked(self._make(), version).encode("utf-8", "replace")
            return self._made[1]

    def _make(self) -> str:
        try:
            begun = [path for path in self.paths if has_begun(path)]
            if not begun:
                return _small_page("Waiting for results", self.paths)
            return self._render(begun)
        except ResultsError as error:
            return _small_page(str(error))
        except Exception as error:  # there must be a page, which reloads itself
            sentence = clean(f"Cannot render the report: {type(error).__name__}: {error}")
            self._say(sentence)
            return _small_page(sentence)


def _marked(page: str, version: str) -> str:
    """The page with its version, for its script to compare."""
    return page.replace("<head>", f'<head>\n<meta name="gqa-version" content="{version}">', 1)


def _small_page(sentence: str, waiting_for: Sequence[Path] = ()) -> str:
    """A page with one sentence, which reloads itself."""
    script = reload_script()
    policy = (
        f"default-src 'none'; style-src '{digest(_STYLE)}'; script-src '{digest(script)}'; "
        f"{CONNECT}; base-uri 'none'; form-action 'none'"
    )
    text = html.escape(clean(sentence))
    files = "".join(f"<li>{html.escape(clean(shown(path)))}</li>" for path in waiting_for)
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{"Waiting for results" if waiting_for else "No report"}</title>
<style>{_STYLE}</style>
<script>{script}</script>
</head>
<body>
<p>{text}{"</p><ul>" + files + "</ul>" if files else "</p>"}
</body>
</html>
"""


def digest(text: str) -> str:
    """The digest by which a policy allows a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


class _Server(ThreadingHTTPServer):
    """Answers each request in its own thread, and does not wait for them at the end."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with 5, connections beyond are answered seconds later
    allow_reuse_port = False  # two servers on one port would each get half of the requests

    def __init__(self, port: int, pages: Pages) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.pages = pages

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look up this machine's name in the network.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()

    @property
    def hosts(self) -> frozenset[str]:
        """The values of the Host header of a browser that opened the server's own address."""
        names = (ADDRESS, "localhost")
        called = {f"{name}:{self.server_port}" for name in names}
        return frozenset(called | set(names) if self.server_port == 80 else called)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that the browser closed during an answer."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "gqa"
    sys_version = ""
    timeout = 30  # seconds until a silent client is disconnected

    def do_GET(self) -> None:
        # Against DNS rebinding: another site can resolve its own name to this machine, but cannot
        # choose the Host header that the browser sends.
        # An answer in HTTP/0.9 would have no headers, and no browser asks for one.
        hosts = [name.lower() for name in self.headers.get_all("Host", [])]
        if hosts not in [[host] for host in self.server.hosts] or (
            self.request_version == "HTTP/0.9"
        ):
            self._answer(403, b"Open the report at the address that gqa printed.\n")
            return
        # As sent: the base class replaces // by /.
        match self.requestline.split()[1]:
            case "/":
                self._answer(200, self.server.pages.page(), "text/html; charset=utf-8")
            case "/version":
                self._answer(200, self.server.pages.version().encode())
            case _:
                self._answer(404, b"Not found. The report is at /.\n")

    do_HEAD = do_GET

    def _reject(self) -> None:
        self._answer(405, b"The report is read-only.\n", allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _reject

    def _answer(
        self,
        status: int,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        allow: str | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if allow is not None:
            self.send_header("Allow", allow)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Logs no requests."""


def serve(
    paths: Sequence[Path], render: Render, *, port: int = 0, say: Callable[[str], None]
) -> None:
    """Serve the report of ``paths`` at http://127.0.0.1:PORT/ until Ctrl-C, then return.

    ``port`` 0 takes a free one; ``say`` is called with the address. ``render`` gets the files that
    have a header; its page must contain `reload_script` and allow `CONNECT` in its policy.
    Raises `ServeError` if the port cannot be used.
    """
    try:
        server = _Server(port, Pages(paths, render, say))
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise ServeError(
            f"Cannot serve the report on port {port}: {(why or str(error)).lower()}; "
            "without --port, a free one is used."
        ) from None
    with server:
        try:
            say(f"The report is at http://{ADDRESS}:{server.server_port}/ until Ctrl-C.")
            server.serve_forever()
        except KeyboardInterrupt:
            pass  # how the user ends it
