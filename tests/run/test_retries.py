"""A case is tried again alone; transcripts have the runs of one process (unstable_runs.txt)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from as_user import Desk, Done, Gqa
from case_files import entries, write

from conformance.bundle.prepare import digest_of
from conformance.case.load import load_file
from conformance.harness.tries import FAILED_TWICE
from conformance.results.reader import Run, read

NAMES = [f"c{n}" for n in range(12)]
ALL_RIGHT = dict.fromkeys(NAMES, "pass")

#: A run of twelve small cases with a runner, which fails on ``c4`` or after it.
Bench = Callable[..., tuple[Done, Run]]


@pytest.fixture
def bench(desk: Desk, tmp_path: Path, gqa: Gqa, monkeypatch: pytest.MonkeyPatch) -> Bench:
    each = "\n".join(f"- {{name: {c}, seed: {n}}}" for n, c in enumerate(NAMES))
    file = write(tmp_path, entries(each), "twelve.yaml")
    on = next(digest_of(case.call) for case in load_file(file) if case.name == "c4")
    monkeypatch.setenv("FAULT_ON", on)
    monkeypatch.setenv("FAULT_SHARE", "0.1")

    def run(runner: str, *options: str) -> tuple[Done, Run]:
        marks(desk, runner).unlink(missing_ok=True)
        results = tmp_path / "results.jsonl"
        command = ("run", str(file), "--ep", desk.runner(runner), "--results", str(results))
        done = gqa(*command, "--no-explain", "--no-shrink", *options)
        assert "Traceback" not in done.both
        return done, read(results)

    return run


def marks(desk: Desk, runner: str) -> Path:
    """The file in which a runner that fails at random has a byte for each case."""
    return desk.folder / f"{runner}.mark"


def verdicts(run: Run) -> dict[str, str]:
    """By the case's name; each has one."""
    assert not run.problems
    assert len(run.results) == len(NAMES)
    return {run.cases[result.case].name: result.verdict for result in run.results}


@pytest.mark.parametrize(("answer", "verdict"), [("crashed", "crash"), ("rejected", "unsupported")])
def test_a_failure_of_the_device_is_of_its_case_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answer: str, verdict: str
) -> None:
    monkeypatch.setenv("FAULT_STICKY", answer)
    _, run = bench("poisons_its_context")
    assert verdicts(run) == {**ALL_RIGHT, "c4": verdict}
    assert not run.instability
    failed = next(result for result in run.results if result.verdict == verdict)
    where = failed.message if verdict == "crash" else failed.stderr
    assert FAILED_TWICE in where


@pytest.mark.parametrize(("runner", "kind"), [("dies_at_random", "crash"), ("flips_bits", "wrong")])
def test_random_failures_are_instability(bench: Bench, desk: Desk, runner: str, kind: str) -> None:
    """What comes at random is the target's instability."""
    done, run = bench(runner)
    assert (done.status, verdicts(run)) == (1, ALL_RIGHT)
    assert {record.verdict for record in run.instability} == {kind}
    assert run.footer.instability == len(run.instability) >= 2
    assert f"{len(run.instability)} unstable" in done.out
    assert marks(desk, runner).stat().st_size <= 12 + 2 * len(run.instability)  # each alone


def test_what_many_crashes_cost(bench: Bench, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that always crashes costs no more than its crashes."""
    monkeypatch.setenv("FAULT_SHARE", "1")
    done, run = bench("dies_at_random")
    assert (done.status, verdicts(run)) == (1, dict.fromkeys(NAMES, "crash"))
    assert not run.instability
    assert marks(desk, "dies_at_random").stat().st_size == 2 * 12


def test_only_two_of_alike_run_alone(desk: Desk, gqa: Gqa, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of results that are alike only two are tried alone."""
    text = "- {name: one, matrix: {seed: [1, 2, 3, 4]}}\n- {name: two, matrix: {seed: [5, 6, 7]}}"
    write(desk.folder, entries(text), "alike.yaml")
    starts = desk.folder / "starts"
    program = Path(desk.runner("wrong_alone").partition(":")[2])
    program.write_text(program.read_text().replace("\n", f"\necho >> {starts}\n", 1))
    monkeypatch.setenv("FAULT_ON", "/")
    done = gqa("run", "alike.yaml", "--ep", f"exec:{program}", "--no-explain", "--no-shrink")
    assert "7 results, 7 unexpected" in done.out
    assert len(starts.read_text()) == 1 + 2 + 2
