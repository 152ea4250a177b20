"""What is expected of a call is computed once it ran, and not where it did not."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from case_files import cases_of
from shipped import shipped_cases

from conformance.base.paths import CACHE_VARIABLE
from conformance.bundle import cache
from conformance.bundle.cache import (
    Bundle,
    RunnerFiles,
    bundle_for,
    guard,
    inputs_for,
    intact,
)
from conformance.bundle.expected import Expected
from conformance.case.call import Call
from conformance.harness.outcomes import Crashed, Rejected
from conformance.judge.verdict import judge
from conformance.run.assessment import jobs_for
from conformance.run.bundles import Bundles

CALL = Call(sequence_length=3, past_sequence_length=2)
LOOP = Call(loop=(2, 1), qk_output=1)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The scripts that the oracle was asked about."""
    asked, answers_to = list[object](), cache.answers_to
    monkeypatch.setattr(
        cache, "answers_to", lambda script: asked.append(script) or answers_to(script)
    )
    return asked


def same(one: Bundle, other: Bundle) -> bool:
    """Whether two bundles expect the same, by each reading."""
    return (one.unjudged, told(one.expected)) == (other.unjudged, told(other.expected)) and {
        name: told(steps) for name, steps in one.readings.items()
    } == {name: told(steps) for name, steps in other.readings.items()}


def told(steps: Sequence[Mapping[str, Expected]]) -> list[dict[str, object]]:
    """Everything that is expected of each output, in a form that can be compared."""
    return [
        {
            name: (
                each.dtype,
                each.value.tobytes(),
                each.unit.tobytes(),
                None if each.arithmetic is None else each.arithmetic.tobytes(),
                {why: units.tobytes() for why, units in each.watched.items()},
            )
            for name, each in step.items()
        }
        for step in steps
    ]


@pytest.mark.parametrize("call", [CALL, LOOP], ids=["one", "loop"])
def test_a_runner_gets_the_same_inputs_and_no_outputs(
    tmp_path: Path, computed: list[object], call: Call
) -> None:
    files = inputs_for(call, tmp_path / "parts")
    assert not computed
    assert not [*(tmp_path / "parts").rglob("output_*")]
    assert not (tmp_path / "parts" / "expected").exists()
    whole = bundle_for(call, tmp_path / "whole")
    assert files.steps == whole.steps
    for name in ("model.onnx", *(name for step in files.steps for name in step.files.values())):
        assert (files.path / name).read_bytes() == (whole.path / name).read_bytes()
        assert files.files[name] == whole.files[name]


@pytest.mark.parametrize("call", [CALL, LOOP], ids=["one", "loop"])
def test_what_is_expected_is_that_of_the_whole_bundle(
    tmp_path: Path, computed: list[object], call: Call
) -> None:
    files = inputs_for(call, tmp_path / "parts")
    answered = files.answered()
    assert len(computed) == 1
    assert same(answered, bundle_for(call, tmp_path / "whole"))
    assert (answered.path, answered.steps) == (files.path, files.steps)
    room = answered.tensor_bytes - files.tensor_bytes
    assert room == sum(
        file.stat().st_size for file in (tmp_path / "parts" / "expected").rglob("*.pb")
    )
    assert intact(answered)
    assert files.answered() is answered
    computed.clear()
    again = inputs_for(call, tmp_path / "parts").answered()  # from the cache
    assert not computed
    assert same(again, answered)


def test_readings_and_calls_without_a_meaning(tmp_path: Path) -> None:
    case = next(case for case in shipped_cases() if case.contract.readings)
    call, readings = case.call, case.contract.readings
    parts = inputs_for(call, tmp_path / "parts", readings).answered()
    whole = bundle_for(call, tmp_path / "whole", readings=readings)
    assert parts.readings
    assert same(parts, whole)
    none = Call(key_value="zero_length")  # neither new keys nor a past
    unjudged = bundle_for(none, tmp_path / "whole").unjudged
    assert unjudged is not None
    assert inputs_for(none, tmp_path / "parts").answered().unjudged == unjudged


@pytest.mark.parametrize(
    "outcome",
    [
        Rejected(stage="load", step=0, message="no", code=None),
        Crashed(signal="SIGSEGV", message="It died.", repeated=True),
    ],
    ids=["rejected", "crashed"],
)
def test_the_verdict_on_a_call_that_did_not_run_needs_no_oracle(
    tmp_path: Path, computed: list[object], outcome: Rejected | Crashed
) -> None:
    (case,) = cases_of(tmp_path, "- {name: one}")
    files = inputs_for(case.call, tmp_path)
    judge(case, files, outcome, execution_provider=None, target_class="cpu")
    assert not computed


def damaged(place: Path, how: str) -> None:
    """Change what is expected at ``place``, with digests that fit where that is asked for."""
    if how == "gone":
        shutil.rmtree(place)
        return
    zeros = bytes((place / "oracle.f64").stat().st_size)
    (place / "oracle.f64").write_bytes(zeros)
    if how == "forged":
        manifest = json.loads((place / "manifest.json").read_bytes())
        del manifest["sha256"]
        listed = [len(zeros), hashlib.sha256(zeros).hexdigest()]
        manifest["files"]["oracle.f64"] = listed
        (place / "manifest.json").write_bytes(cache._sealed(manifest))


@pytest.mark.parametrize("how", ["gone", "changed", "forged"])
def test_a_runner_cannot_change_what_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is read after the runner ran, and is then what it was before the runner started."""
    good = inputs_for(CALL, tmp_path).answered()
    monkeypatch.setattr(cache, "_own", {})
    time.sleep(0.02)  # more than a tick of the clock of files
    guard(tmp_path)
    files = inputs_for(CALL, tmp_path)
    (place,) = (tmp_path / "expected").glob("*/*")
    damaged(place, how)
    assert same(files.answered(), good)


BODY = """
- {name: plain}
- {name: loop, loop: [2, 1, 1], max_sequence_length: 9}
- {name: scores, qk_output: 1, sequence_length: 40, head_size: 8}
- {name: variant, relation: scale_in_query, scale: 0.25}
"""


def test_only_the_suites_own_runners_get_no_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    def with_outputs(files: Sequence[RunnerFiles]) -> list[bool]:
        return [(each.path / "test_data_set_0" / "output_0.pb").exists() for each in files]

    cases, bundles = cases_of(tmp_path, BODY), Bundles(again=True)
    later = [bundles.of(case, later=True) for case in cases]
    assert with_outputs(later) == [False, False, False, True]
    assert with_outputs([bundles.of(case) for case in cases]) == [True] * 4
    assert [bundles.of(case, later=True) for case in cases] == later


def test_outputs_have_the_room_that_runners_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """runners/README.md; before it is known how large the expected outputs are."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    for case in (*cases_of(tmp_path, BODY), *shipped_cases()[::97]):
        job = next(jobs_for(case, later=True))
        promised = (16 << 20) + 32 * job.prepared.answered().tensor_bytes
        headers = 32 * 100 * len(job.prepared.files)  # what a file has beside its numbers
        assert job.most_output_bytes + headers >= promised, case.id
