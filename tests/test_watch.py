"""``gqa report --html FILE --watch``: a page that is rewritten while results come."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from as_user import Desk, wait_for
from synthetic_runs import case, result, write

OPTION = "--watch"

#: ``gqa``, which looks ten times a second whether the results have changed.
OFTEN = """
from conformance.cli import main, report
report._POLL_SECONDS = 0.1
main.main()
"""


def test_a_page_is_rewritten_while_results_come(desk: Desk, tmp_path: Path) -> None:
    results, page = tmp_path / "r.jsonl", tmp_path / "r.html"
    process = desk.start(
        *(sys.executable, "-c", OFTEN, "report", str(results), "--html", str(page), OPTION)
    )
    try:
        write(results, [case("t/a")], [result("t/a")])
        wait_for(page.exists)
        first = page.read_text()
        assert "sessionStorage" in first
        assert "location.reload()" in first
        write(results, [case("t/a")], [result("t/a", verdict="crash")])
        wait_for(lambda: page.read_text() not in ("", first))
        second = page.read_text()  # another run into the same file writes beside it
        write(tmp_path / "r.jsonl.part", [case("t/a")], [result("t/a", verdict="timeout")])
        wait_for(lambda: page.read_text() not in ("", second))
    finally:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "location.reload()" not in page.read_text()
