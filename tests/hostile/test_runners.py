"""Faulty runners: none ends, hangs or deceives a run.

Each runs the three cases of ``three.yaml`` beside a runner that is correct, and lies on one of them
or when it starts. Counted are tracebacks, hangs, lost results (any but the one lied about) and
misattributions (a verdict or a name that the lie does not deserve). All must be 0.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from as_user import Desk, Done, Gqa, in_this_process
from endings import check_ending

from conformance.base.paths import CACHE_VARIABLE
from conformance.results.reader import Run, read

FAULTY: Final = Path(__file__).parent.parent / "faulty"

#: A run that takes longer hangs; the time limit of the case with the lie is 1.5 s.
SECONDS: Final = 60
#: The writable memory of a run, in KiB; it needs a fifth of that.
MOST_MEMORY: Final = 1_500_000


def _all(outcome: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), outcome)


#: What becomes of the case that is lied about: a verdict, or ``infrastructure``. ``never``: the
#: target does not start. ``stopped``: it crashes, does not start again
#: and is given up. ``skips``: it takes no case.
#: A line after the answer is noticed with the answer, or too late.
LIES: Final = {
    **_all(
        "infrastructure",
        """
        sparse three_gigabytes empty fifo link_to_zeros link_to_nothing folder
        socket grows folder_is_a_link folder_is_gone negative_dimension name_of_another_output
        name_of_no_output float_data int32_data int64_data double_data external_data segment
        too_few_bytes too_many_bytes huge_dimensions overflowing_product a_million_dimensions
        unknown_dtype text endless_groups noise nan_in_json infinity_in_json
        negative_time duplicate_keys deep_json deep_message true_id float_id huge_id huge_step
        byte_order_mark invalid_utf8 lone_surrogate verdict_in_answer a_list no_runs utf_16
        no_output another_output output_with_escapes file_with_escapes file_with_slash
        file_without_name file_with_long_name swapped_outputs
        answers_twice closes_stdout compiles_after_its_answer compiles_another
        compiles_twice_at_once floods_lines
        floods_stdout is_ended links no_file no_placement not_json one_file other_id prints_from_c
        short_file wrong_count wrong_type
        """,
    ),
    **_all(
        "pass",
        """
        writes_afterwards litter rewrites_its_inputs forges_its_case
        duplicate_id device_with_escapes runtime_with_escapes many_versions operator_with_escapes
        dies_after_another exits_after_another floods_stderr future_schema hangs_after_another
        last_bit one_shot reports_a_crash_once breaks_heap dies_in_the_end spoils
        """,
    ),
    **_all("wrong", "nan another_shape other_dtype wrong_alone"),
    **_all(
        "unsupported",
        "nul_in_message escapes_in_message escapes_in_code carriage_returns hungry long_message",
    ),
    **_all("fallback", "escapes_in_placement huge_placement"),
    **_all(
        "crash",
        """
        escapes_in_crash last_words kills_its_group dies gives_up leaves_child leaves_litter
        dies_at_length
        """,
    ),
    # It dies after its answer, and only now and then before the next case.
    "dies_while_idle": "pass or crash",
    **_all("skip", "escapes_in_reason compiles_at_once skips"),
    **_all(
        "pass or infrastructure",
        "compiles_afterwards speaks_unasked",
    ),
    "stops_itself": "timeout",
    **_all(
        "stopped",
        """
        version_later device_later adapter_later dtypes_later provider_later name_later
        runtime_later features_later versions_later threads_later operator_later
        """,
    ),
    **_all(
        "never",
        """
        built_in_name built_in_name_of_a_gpu name_with_escapes name_with_version long_name
        huge_version version_with_escapes version_of_two_lines version_without_ascii huge_device
        adapter_with_escapes no_threads unknown_field many_attributes attributes_beyond_a_line
        not_described
        """,
    ),
    "no_dtypes": "skips",
}

#: The same of the other runners of ``tests/faulty``.
FAULTS: Final = {
    **_all("infrastructure", "exits half_line"),
    **_all(
        "pass",
        """
        compiles correct dies_at_random flips_bits floods_when_idle poisons_the_next slow_and_broken
        slow_start waits
        """,
    ),
    "poisons_its_context": "crash",
    "rejects": "unsupported",
    "hangs": "timeout",
    "unavailable_later": "stopped",
    **_all("never", "compiles_at_start no_module"),
    "unavailable": "skips",
}

#: What says more than what becomes of the case.
SPECIAL: Final = frozenset({"never", "stopped", "skips"})

#: Not here, since each case or start runs into its time limit: tests/test_harness.py has them.
TOO_SLOW: Final = frozenset({"deaf", "never_described"})

#: Of each kind, one that once ended, hung or deceived a run.
SHORT: Final = (
    "three_gigabytes",
    "fifo",
    "float_data",
    "forges_its_case",
    "version_later",
    "built_in_name",
)


def test_every_lie_is_tried() -> None:
    modules = {file.stem for file in FAULTY.glob("*.py")} - {"miniature", "lies"}
    assert FAULTS.keys() == modules - TOO_SLOW
    said = {*LIES, "version_of_each_process"}  # which needs several processes: test_harness.py
    code = f"import sys; sys.path.insert(0, {str(FAULTY)!r}); import lies; print(*lies.all_lies())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert said == set(done.stdout.split()), done.stderr
    assert len(LIES) + len(FAULTS) >= 60


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A desk whose cache has the bundles of the three cases, made by an earlier run."""
    folder = tmp_path_factory.mktemp("desk")
    desk = Desk(folder, folder / "cache")
    desk.gqa("run", "three.yaml", "--ep", desk.runner("correct"))
    return desk


class Trial:
    """One run with a faulty runner and a correct one; everything that it changes is its own."""

    def __init__(self, desk: Desk, folder: Path, name: str) -> None:
        self.expected = LIES.get(name) or FAULTS[name]
        shutil.copytree(desk.folder / "cache", folder / "cache")
        self.faulty = desk.runner("lies" if name in LIES else name)
        shutil.copy(self.faulty.removeprefix("exec:"), folder / "correct")
        program = (folder / "correct").read_text().replace(self.faulty.split("/")[-1], "correct")
        (folder / "correct").write_text(program)
        self.correct = f"exec:{folder / 'correct'}"
        self.results = folder / "results.jsonl"
        self.environment = {
            "LIE": name,
            "FAULT_ON": desk.faulty,
            "FAULT_MARK": str(folder / "mark"),
            CACHE_VARIABLE: str(folder / "cache"),
        }
        self.arguments = ("run", str(desk.folder / "three.yaml"), "--ep", self.faulty)
        self.arguments += ("--ep", self.correct, "--results", str(self.results))

    def check(self, done: Done) -> None:
        """Fails for a traceback, a lost result or a misattribution."""
        check_ending(done)
        run = read(self.results)
        faulty, correct = (target.name for target in run.header.targets)
        assert correct.partition("#")[0] == "miniature@1.0"
        dead = self.expected == "never" or not run.header.targets[0].describe
        program = self.faulty.split("/")[-1]  # a results file has paths without the current folder
        assert faulty.split("/")[-1] == program if dead else faulty.endswith("@1.0")
        assert {result.target for result in run.results} <= {faulty, correct}
        assert outcomes(run, correct) == dict.fromkeys(("one", "faulty", "fine"), "pass")
        found = outcomes(run, faulty)
        lied_about = found.get("faulty", "")
        assert found == {
            "never": {},
            "stopped": {"one": "pass", "faulty": "infrastructure"},
            "skips": dict.fromkeys(("one", "faulty", "fine"), "skip"),
        }.get(self.expected, {"one": "pass", "faulty": lied_about, "fine": "pass"})
        assert self.expected in SPECIAL or lied_about in self.expected.split(" or ")
        whole = [record for record in run.infrastructure if record.case is None]
        given_up = self.expected in ("never", "stopped")
        assert len(whole) == given_up
        assert all("results are missing" in p or given_up for p in run.problems), run.problems
        assert all(record.target == faulty and record.message for record in run.infrastructure)


def outcomes(run: Run, target: str) -> dict[str, str]:
    """By the case's name, its verdict or ``infrastructure``; each case is there once."""
    found = [(r.case, r.verdict) for r in run.results if r.target == target]
    failed = [i.case for i in run.infrastructure if i.target == target and i.case is not None]
    found += [(case, "infrastructure") for case in failed]
    assert len(dict(found)) == len(found)
    return {case.partition("/")[2]: what for case, what in found}


@pytest.mark.parametrize("name", SHORT)
def test_a_lie_changes_nothing_but_its_own_case(
    desk: Desk,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial = Trial(desk, tmp_path, name)
    for variable, value in trial.environment.items():
        monkeypatch.setenv(variable, value)
    gqa: Gqa
    with in_this_process(monkeypatch, capsys) as gqa:
        trial.check(gqa(*trial.arguments))


def test_a_second_try_that_succeeds_is_told_in_the_results(desk: Desk, tmp_path: Path) -> None:
    """It is no infrastructure failure, so only the result itself says what failed before."""
    done = desk.gqa(
        *("run", "three.yaml", "--ep", desk.runner("exits_after_another")),
        *("-j", "1", "--results", str(tmp_path / "results.jsonl")),
    )
    assert done.status == 0, done.err
    run = read(tmp_path / "results.jsonl")
    assert not run.infrastructure
    told = {r.case.partition("/")[2]: r.stderr for r in run.results}
    assert told["one"] == told["fine"] == ""
    assert told["faulty"].startswith("[The runner ended with status 1 during the case")
    assert "no more handles" in told["faulty"]
    assert "This is the outcome of a second try, in a fresh process.]" in told["faulty"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LIES, *FAULTS])
def test_no_lie_ends_hangs_or_deceives_a_run(desk: Desk, tmp_path: Path, name: str) -> None:
    trial = Trial(desk, tmp_path, name)
    limited = ("sh", "-c", f'ulimit -d {MOST_MEMORY}; exec "$@"', "sh", sys.executable)
    process = desk.start(
        *limited, "-m", "conformance", *trial.arguments, environment=trial.environment
    )
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    trial.check(Done(process.returncode, out, err))
