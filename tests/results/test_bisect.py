"""Bisections by ``gqa history``: the release that changed a result, and one commit for git."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from as_user import Gqa
from synthetic_runs import case, result, target

from conformance.cli import bisect as command
from conformance.cli.one_result import NoResult, OneResult
from conformance.results.bisect import CannotBisect, ReleaseChange, Tried, first_change
from conformance.results.records import ResultRecord

CASE = "smoke/borrowed[dtype=float32]"
RELEASES = [f"1.{minor}.0" for minor in range(20, 32)]


class Runtime:
    """What a case comes to in each release from some on; None: it cannot be tried."""

    def __init__(self, since: Mapping[str, ResultRecord | None]) -> None:
        self.since = since
        self.tries: list[str] = []

    def __call__(self, release: str) -> Tried:
        self.tries.append(release)
        *_, found = (what for first, what in self.since.items() if first <= release)
        return Tried(release, found, "" if found else "it has no wheel")


def said(message: str) -> ResultRecord:
    return result("a", verdict="unsupported", outcome="rejected", stage="run", message=message)


PASS = result("a")
REFUSED = said("softcap of 2.5 is not supported")
OTHER = said("no such input")
CRASH = result("a", verdict="crash", outcome="crashed", message="The runner died of SIGSEGV.")


def ends(change: ReleaseChange | None) -> tuple[str, str] | None:
    return change and (change.before.release, change.after.release)


@pytest.mark.parametrize("since", RELEASES[1:])
def test_the_change_is_found_in_few_tries(since: str) -> None:
    runtime = Runtime({"1.20.0": PASS, since: CRASH})
    before = RELEASES[RELEASES.index(since) - 1]
    assert ends(first_change(RELEASES, runtime)) == (before, since)
    assert len(runtime.tries) == len(set(runtime.tries)) <= 6


@pytest.mark.parametrize(
    ("since", "found", "between"),
    [
        # A verdict comes before a message.
        ({"1.20.0": REFUSED, "1.22.0": OTHER, "1.27.0": PASS}, ("1.26.0", "1.27.0"), []),
        ({"1.20.0": REFUSED, "1.22.0": OTHER}, ("1.21.0", "1.22.0"), []),
        # What varies between runs is no change, nor is a known defect.
        ({"1.20.0": REFUSED, "1.25.0": said("softcap of 7.5 is not supported")}, None, []),
        ({"1.20.0": said("no 2"), "1.25.0": said("no 3")}, ("1.24.0", "1.25.0"), []),
        ({"1.20.0": CRASH.model_copy(update={"unexpected": False}), "1.25.0": CRASH}, None, []),
        # What cannot be tried is passed over.
        (
            {"1.20.0": None, "1.21.0": PASS, "1.25.0": None, "1.27.0": CRASH, "1.30.0": None},
            ("1.24.0", "1.27.0"),
            ["1.25.0", "1.26.0"],
        ),
    ],
)
def test_which_change_is_found(
    since: Mapping[str, ResultRecord | None], found: tuple[str, str] | None, between: list[str]
) -> None:
    change = first_change(RELEASES, Runtime(since))
    assert ends(change) == found
    assert [each.release for each in (change.between if change else ())] == between


def test_one_release_is_not_enough() -> None:
    with pytest.raises(CannotBisect, match=r"not two releases .*: 1\.\d+\.0: it has no wheel"):
        first_change(RELEASES, Runtime({"1.20.0": PASS, "1.21.0": None}))


# The command


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A runtime in place of the one that is published and installed."""
    runtime = Runtime({"1.20.0": PASS, "1.24.0": None, "1.25.0": CRASH})

    def run_case(corpus: object, chosen: object, pinned: command.Target) -> OneResult:
        tried = runtime(pinned.release or "")
        if tried.result is None:
            raise NoResult(tried.why)
        named = tried.result.model_copy(update={"target": pinned.label})
        return OneResult(case("a"), named, target(pinned.label))

    monkeypatch.setattr(command, "published", lambda package: RELEASES)
    monkeypatch.setattr(command, "with_releases", list)
    monkeypatch.setattr(command, "run_case", run_case)
    return runtime


def test_the_command_repeats_the_options_of_the_target(gqa: Gqa, runtime: Runtime) -> None:
    on = ("--ep", "cuda", "--device", "1")
    done = gqa("history", CASE, *on, "--good", "1.23.0", "--bad", "1.31.0")
    assert done.status == 0, done.both
    last = done.out.splitlines()[-1]
    assert last.endswith(" --ep cuda@1.23.0 --ep cuda@1.25.0 --device 1")


def test_both_neighbours_are_shown(gqa: Gqa, runtime: Runtime) -> None:
    done = gqa("history", CASE, "--bad", "1.31.0")
    assert done.status == 0, done.both
    assert "cpu@1.24.0               cannot be tried: it has no wheel" in done.out
    assert done.out.partition("\n\n")[2].splitlines() == [
        "The verdict changed in 1.25.0:",
        "  cpu@1.23.0: pass",
        f"    {PASS.reason}",
        "  cpu@1.25.0: crash",
        f"    {CRASH.reason}",
        "    The runner died of SIGSEGV.",
        "  cpu@1.24.0 could not be tried: it has no wheel",
        "  So the change may be in one of those instead.",
        f"  reproduce  gqa run '{CASE}' --ep cpu@1.23.0 --ep cpu@1.25.0",
    ]


@pytest.mark.parametrize(
    ("good", "bad", "status", "told"),
    [
        ("1.31", "1.26.0", 1, "1.26.0 and 1.31.0 agree."),
        ("1.19.2", "1.31", 2, "is older than 1.20.0"),
        ("1.30", "1.30", 2, "name one release"),
    ],
)
def test_two_ends(gqa: Gqa, runtime: Runtime, good: str, bad: str, status: int, told: str) -> None:
    """The ends can be named."""
    done = gqa("history", CASE, "--good", good, "--bad", bad)
    assert (done.status, told in done.both) == (status, True)
    assert "1.25.0" not in runtime.tries
