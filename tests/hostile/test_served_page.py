"""Requests to the served page by a client that sends anything: it answers, and stays alive."""

from __future__ import annotations

import random
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from as_user import Desk, wait_for
from synthetic_runs import case, result, write

#: What only the page has.
PAGE: Final = b'<meta name="gqa-version"'

METHODS: Final = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"),
    *("CONNECT", "BREW", "get", "", "G" * 70_000, "\x00", "PROPFIND", "PRI"),
)
PATHS: Final = (
    *("/", "/version", "/..", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"),
    *("/run.jsonl", "/./run.jsonl", "/version/..", "/%00", "/\x00", "/?" + "a" * 60_000, "*", ""),
    *("http://evil.example/", "file:///etc/passwd", "\\..\\..\\", "/a" * 20_000, "/" + "\xff" * 9),
    *("/version?x", "/#", "/%", "/\u202e".encode().decode("latin-1"), "/..;/", "/.git/config"),
)
HOSTS: Final = (
    *("127.0.0.1:{port}", "localhost:{port}", "evil.example", ""),
    *("127.0.0.1:{port}.evil.example", "evil.example:{port}", "[::1]:{port}", "0:{port}"),
    *(
        "127.0.0.1:{port}, evil.example",
        "\x00",
        "x" * 70_000,
        "127.1:{port}",
        "user@localhost:{port}",
    ),
)
VERSIONS: Final = (
    *(
        " HTTP/1.1",
        " HTTP/1.1",
        " HTTP/1.0",
        " HTTP/2.0",
        " HTTP/0.9",
        "",
        " HTTP/1.1 x",
        " HTTP/9",
    ),
    *(" HTTP/-1.1", " HTTP/1." + "1" * 9000, " http/1.1", " HTTP/1.x", " FTP/1.0"),
)
HEADERS: Final = (
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999"),
    *(
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
        "Connection: keep-alive",
        "Range: bytes=0-",
    ),
    *("Upgrade: websocket", "X: " + "y" * 70_000, ": none", "no colon", " folded", "A\x00: b"),
    *("Host: evil.example", "Origin: http://evil.example", "Referer: http://evil.example/"),
    *("X-Forwarded-Host: evil.example", "Cookie: " + "c=1; " * 5000, "\xff: \xff", "X:\r\r\n"),
)
BODIES: Final = (
    *(
        b"",
        b"",
        b"hello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"ffffffffffffffff\r\nx",
        b"-1\r\n",
        b"\x00" * 99,
    ),
    b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50,
)


def request_of(chance: random.Random, port: int) -> bytes:
    """A request of which each part may be an invalid one."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.randrange(3000))

    def part(choices: Sequence[str]) -> str:
        return choices[0] if chance.random() < 0.7 else chance.choice(choices)

    line = f"{part(METHODS)} {part(PATHS)}{part(VERSIONS)}"
    headers = [f"Host: {part(HOSTS).format(port=port)}"] if chance.random() < 0.9 else []
    headers += chance.choices(HEADERS, k=chance.choice((0, 0, 0, 1, 2, 5, 150)))
    end = chance.choice(("\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r"))
    whole = end.join([line, *headers, "", ""]).encode("latin-1") + chance.choice(BODIES)
    whole *= chance.choice((1, 1, 1, 3))
    return whole[: chance.randrange(len(whole))] if chance.random() < 0.1 else whole


def ask(port: int, request: bytes, how: str) -> bytes:
    """The answer to these bytes, from a client that ends as ``how`` says."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        try:
            if how == "slowly":
                for at in range(0, min(len(request), 40), 4):
                    connection.sendall(request[at : at + 4])
                    time.sleep(0.002)
                request = request[40:]
            connection.sendall(request)
            if how == "reset":
                linger = b"\x01\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return b""
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except TimeoutError:
            raise
        except OSError:  # closed: it need not hear out what it refuses
            return b""


VALID: Final = re.compile(
    rb"(GET|HEAD) (/|/version)(\?\S*)? +HTTP/1\.[0-9]+\r?\nHost: (127\.0\.0\.1|localhost):\d+\r?\n"
)


def check_answer(request: bytes, answer: bytes) -> str:
    """Fails unless the answer is one to give; its status."""
    if not answer:
        return "none"
    match = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    status = match[1].decode() if match else "0.9"
    assert status in ("200", "400", "403", "404", "405", "414", "431", "501", "505", "0.9"), answer[
        :200
    ]
    assert b"Traceback" not in answer
    assert b"root:" not in answer
    if PAGE in answer:
        # Only to a request for it, with this server's own name.
        assert status == "200", request[:300]
        assert VALID.search(request), request[:300]
    return status


@pytest.fixture
def port(tmp_path: Path, shared_cache: Path) -> Iterator[int]:
    """Where ``gqa report --serve`` answers. At the end it must have said nothing more."""
    desk = Desk(tmp_path, shared_cache)
    write(tmp_path / "run.jsonl", [case()], [result()])
    process = desk.start(sys.executable, "-m", "conformance", "report", "run.jsonl", "--serve")
    assert process.stdout is not None
    assert process.stderr is not None
    said = process.stdout.readline()
    match = re.search(r":(\d+)/", said)
    assert match, said
    yield int(match[1])
    assert process.poll() is None
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("", "", 0)


def trial(port: int, count: int, first: int) -> Counter[str]:
    """The statuses of the answers to ``count`` requests."""
    seen = Counter[str]()
    for seed in range(first, first + count):
        chance = random.Random(seed)
        request = request_of(chance, port)
        how = chance.choice(("", "", "", "", "slowly", "reset"))
        before = time.monotonic()
        seen[check_answer(request, ask(port, request, how))] += 1
        assert time.monotonic() - before < 10, seed
    good = f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode()
    answer = ask(port, good, "")
    assert PAGE in answer
    assert check_answer(good, answer) == "200"
    return seen


def test_requests_of_every_kind(port: int) -> None:
    seen = trial(port, 150, 0)
    assert seen.total() == 150
    assert len(seen) >= 6, seen
    assert seen["200"] >= 10, seen


def test_silent_clients_do_not_keep_others_waiting(port: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for number, each in enumerate(silent):
        each.sendall(b"GET / HTTP/1.1\r\nHost: localhost"[: number % 33])
    try:
        assert trial(port, 20, 5000).total() == 20
    finally:
        for each in silent:
            each.close()


@pytest.mark.slow
def test_1600_requests_from_four_clients(port: int) -> None:
    seen: list[Counter[str]] = []

    def client(first: int) -> Callable[[], None]:
        return lambda: seen.append(trial(port, 400, first))

    threads = [threading.Thread(target=client(10_000 * n)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    answers = sum(seen, Counter[str]())
    print(f"\n{answers.total()} requests: {dict(answers)}")
    assert answers.total() == 1600
    wait_for(lambda: trial(port, 1, 0))
