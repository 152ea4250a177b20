"""``gqa merge``: shards and targets side by side, in flat memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from as_user import Gqa
from synthetic_runs import case, error, expected, realistic, result, target, write

from conformance.base.paths import ROOT
from conformance.results.compare import changes
from conformance.results.merge import merge
from conformance.results.reader import Run, read
from conformance.results.records import CaseRecord, InfrastructureRecord, InstabilityRecord
from conformance.results.table import tabulate

IDS = tuple(f"decode/one_token[seed={number}]" for number in range(7))
CASES = tuple(map(case, IDS))
NEW, OLD = "cpu@1.31.1", "cpu@1.26.0"


def run(path: Path, name: str = NEW, cases: tuple[CaseRecord, ...] = CASES) -> Path:
    return write(path, cases, [result(c.id, name) for c in cases], targets=[target(name)])


def shard(path: Path, number: int, cases: tuple[CaseRecord, ...]) -> Path:
    first, *rest = run(path, NEW, cases).read_text().splitlines(keepends=True)
    shown = {"number": number, "of": 3, "cases": 7, "results": 7}
    path.write_text(json.dumps({**json.loads(first), "shard": shown}) + "\n" + "".join(rest))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [shard(tmp_path / f"{n}.jsonl", n, CASES[n - 1 :: 3]) for n in (1, 2, 3)]


def merge_to(out: Path, *parts: Path, **how: bool) -> Path:
    with out.open("wb") as file:
        merge(list(parts), file, **how)
    return out


def test_everything_is_counted(tmp_path: Path) -> None:
    """Results, instability and infrastructure failures."""
    one = write(
        tmp_path / "one.jsonl",
        CASES[:2],
        [result(IDS[0], verdict="crash"), result(IDS[1])],
        problems=[InfrastructureRecord(target=NEW, message="It failed.")],
        instability=[InstabilityRecord(case=IDS[1], target=NEW, verdict="wrong", message="Once.")],
    )
    merged = read(merge_to(tmp_path / "out.jsonl", one, run(tmp_path / "b", OLD, CASES[:2])))
    assert merged.problems == ()
    footer = merged.footer
    assert footer.counts == {NEW: {"crash": 1, "pass": 1}, OLD: {"pass": 2}}
    assert (footer.unexpected, footer.infrastructure, footer.instability) == (1, 1, 1)
    assert merged.results[0].verdict == "crash"


def refused(gqa: Gqa, *files: Path, says: str) -> None:
    out = files[0].with_name("out.jsonl")
    done = gqa("merge", *map(str, files), "-o", str(out))
    assert (done.status, done.out) == (2, ""), done.both
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not out.exists()


def test_shards_of_several_runs_are_refused(gqa: Gqa, shards: list[Path]) -> None:
    shard(shards[2], 3, CASES[2:3])  # one case too few
    refused(gqa, *shards, says="have 6 of 7 results: they are not parts of one run.")


def test_a_target_is_the_same_on_all_machines(gqa: Gqa, tmp_path: Path) -> None:
    def part(number: int, **fields: Any) -> Path:
        made = target(NEW)
        one = made.model_copy(update={"describe": made.describe.model_copy(update=fields)})
        path, cases = tmp_path / f"{number}.jsonl", CASES[number : number + 1]
        return write(path, cases, [result(IDS[number])], targets=[one])

    versions = {"python": "3.11.7", "numpy": "2.4.6", "platform": "Linux-6.2"}
    parts = [part(0), part(1, device="another processor, 4 cores", versions=versions)]
    out = tmp_path / "out.jsonl"
    assert gqa("merge", *map(str, parts), "-o", str(out)).status == 0
    (both,) = read(out).header.targets
    assert both.describe.device == "AMD EPYC 7R13, 2 cores | another processor, 4 cores"
    out.unlink()
    refused(gqa, parts[0], part(2, threads=4), says=f"{NEW} is another target than in the files")
    refused(gqa, parts[0], part(2, versions={"numpy": "1"}), says="version of")


# ── The smaller form ─────────────────────────────────────────────────────────────────────────────


def compacted(path: Path) -> Run:
    return read(merge_to(path.with_name(f"small-{path.name}"), path, compact=True))


def test_a_compact_file_says_what_it_leaves_out(tmp_path: Path) -> None:
    large = read(run(tmp_path / "r.jsonl"))
    small = compacted(large.path)
    assert small.problems == ()
    assert large.header.left_out == ()
    assert any("times" in words for words in small.header.left_out)
    assert small.path.stat().st_size < 0.9 * large.path.stat().st_size
    for kept in small.results:
        assert (kept.ms, kept.errors, kept.share) == (None, (), None)
        assert kept.reason == "Every defined element is within its budget."


def test_a_compact_file_keeps_all_about_failures(tmp_path: Path) -> None:
    wrong = result(IDS[0], verdict="wrong", stderr="It says why.", errors=(error(),))
    known = result(IDS[1], verdict="wrong", unexpected=False, expectation=expected(), stderr="long")
    file = write(tmp_path / "r.jsonl", CASES[:2], [wrong, known])
    small = compacted(file)
    assert small.results[0] == wrong.model_copy(update={"ms": None})
    assert small.results[1] == known.model_copy(update={"ms": None, "stderr": ""})


def test_a_compact_file_gives_the_same_changes(tmp_path: Path) -> None:
    large = realistic(tmp_path / "r.jsonl")
    small = compacted(large.path)
    assert small.problems == ()
    both = (tabulate([large]), tabulate([small]))
    for old, new in (both, both[::-1]):
        found = changes(new, old)
        assert not found.worse
        assert found.reasons == changes(both[0], both[0]).reasons


# ── Memory ───────────────────────────────────────────────────────────────────────────────────────

_PEAK = """
import sys
from pathlib import Path
from memory import peak_kib
from conformance.results.merge import merge
with open(sys.argv[1], "wb") as out:
    before = peak_kib()
    print(merge(list(map(Path, sys.argv[2:])), out).results, peak_kib() - before)
"""


@pytest.mark.push
def test_merging_takes_no_more_memory_for_more_results(tmp_path: Path) -> None:
    cases = tuple(case(f"theme/{number}") for number in range(4000))
    parts = [run(tmp_path / f"{n}.jsonl", f"cpu@1.{n}.0", cases) for n in range(4)]
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-c", _PEAK, str(out), *map(str, parts)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT / "tests" / "support",
        timeout=100,
        check=True,
    )
    results, kib = map(int, done.stdout.split())
    assert results == 16_000
    assert out.stat().st_size > 11 << 20
    # SQLite keeps 32 MiB of its pages; a run that is read whole takes 9 times its size.
    assert kib < 64 << 10
