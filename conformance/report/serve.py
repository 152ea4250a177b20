"""The HTML report of results files that still grow, served to this machine alone.

The page asks for ``/version`` now and then, and loads itself again when that is another one. What
serves it knows two addresses and no files but the results that it was started for.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import socketserver
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from conformance.base.paths import data_path, shown
from conformance.report.text import clean
from conformance.results.errors import ResultsError, cause_of

#: A loopback address: nobody else can reach it.
ADDRESS: Final = "127.0.0.1"

#: What a served page's policy must allow beside its scripts, for the one of `reload_script`.
CONNECT: Final = "connect-src 'self'"

#: Not even a header of a results file is longer, in bytes.
_LONGEST_HEADER: Final = 1 << 24

_HEADERS: Final = {
    "Cache-Control": "no-store",
    # What a policy in the page cannot say: that it is shown in no other page.
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

#: Makes the page of some results files; raises `ResultsError` where they are none.
Render = Callable[[Sequence[Path]], str]


class ServeError(Exception):
    """It cannot be served there: one sentence for the person who asked for it."""


@cache
def reload_script() -> str:
    """The script that loads a served page again, to stand in an element of its own."""
    return (data_path("reports") / "reload.js").read_text(encoding="utf-8")


def version_of(paths: Sequence[Path]) -> str:
    """A word that is another one as soon as one of the files is."""
    return hashlib.sha256(repr([_state(path) for path in paths]).encode()).hexdigest()[:16]


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def has_begun(path: Path) -> bool:
    """Whether the file's first line is there, which a run writes before anything else.

    Raises `ResultsError` for what no run writes: a folder, a pipe.
    """
    try:
        # Without waiting for the other end of a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ResultsError(f"Cannot read results from {path}: it is no file.")
            return path.suffix == ".xz" or file.readline(_LONGEST_HEADER).endswith(b"\n")
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot read results from {path}: {cause_of(error)}.") from None


class Pages:
    """The page of what is in the files by now; made once for each version of them."""

    def __init__(self, paths: Sequence[Path], render: Render, say: Callable[[str], None]) -> None:
        self.paths = tuple(paths)
        self._render = render
        self._say = say
        self._lock = threading.Lock()
        self._made: tuple[str, bytes] | None = None

    def version(self) -> str:
        """The version of the files as they are."""
        return version_of(self.paths)

    def page(self) -> bytes:
        """The page, in UTF-8. It says itself which version it is of."""
        with self._lock:
            # Before they are read: what is written meanwhile is a newer version.
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
        except Exception as error:  # the page must be there to load itself again
            sentence = clean(f"The report could not be made: {type(error).__name__}: {error}")
            self._say(sentence)
            return _small_page(sentence)


def _marked(page: str, version: str) -> str:
    """The page with its version, which its script compares."""
    return page.replace("<head>", f'<head>\n<meta name="gqa-version" content="{version}">', 1)


def _small_page(sentence: str, waiting_for: Sequence[Path] = ()) -> str:
    """A page that says one thing and loads itself again."""
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
    """What a policy calls a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


class _Server(ThreadingHTTPServer):
    """Answers each request in a thread of its own; the end waits for none of them."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # two of them on one port would each get half of the requests

    def __init__(self, port: int, pages: Pages) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.pages = pages

    def server_bind(self) -> None:
        # The one between asks the network for this machine's name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()

    @property
    def hosts(self) -> frozenset[str]:
        """What a browser calls it that was sent here by nobody else's name."""
        names = (ADDRESS, "localhost")
        called = {f"{name}:{self.server_port}" for name in names}
        return frozenset(called | set(names) if self.server_port == 80 else called)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of an answer is nothing to tell of."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "gqa"
    sys_version = ""
    timeout = 30  # seconds, for a client that says nothing

    def do_GET(self) -> None:
        # A page of another site can let a name of its own mean this machine, and would then read
        # what is served here. It cannot choose what its browser writes here.
        if [name.lower() for name in self.headers.get_all("Host", [])] not in [
            [host] for host in self.server.hosts
        ]:
            self._answer(403, b"This is served under its own address alone.\n")
            return
        # As sent: the base class takes // for /.
        match self.requestline.split()[1]:
            case "/":
                self._answer(200, self.server.pages.page(), "text/html; charset=utf-8")
            case "/version":
                self._answer(200, self.server.pages.version().encode())
            case _:
                self._answer(404, b"There is nothing here but the report.\n")

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self._answer(405, b"The report can only be read.\n", allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

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
        """The terminal is not told of each request."""


def serve(
    paths: Sequence[Path], render: Render, *, port: int = 0, say: Callable[[str], None]
) -> None:
    """Show the report of ``paths`` at http://127.0.0.1:PORT/ until Ctrl-C, then return.

    ``port`` 0 is any free one; ``say`` hears the address. ``render`` gets the files that have
    begun; its page must have `reload_script` in it, and `CONNECT` in its policy, to follow them.
    Raises `ServeError` where the port cannot be had.
    """
    try:
        server = _Server(port, Pages(paths, render, say))
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise ServeError(
            f"Cannot serve the report on port {port}: {(why or str(error)).lower()}; "
            "without --port it takes a free one."
        ) from None
    with server:
        try:
            say(f"The report is at http://{ADDRESS}:{server.server_port}/ until Ctrl-C.")
            server.serve_forever()
        except KeyboardInterrupt:
            pass  # the way to end it
