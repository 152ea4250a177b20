"""Tests the results file: written line by line, read back complete or broken, and joined."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import lzma
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from synthetic_runs import (
    case,
    error,
    expected,
    header,
    of_results,
    realistic,
    result,
    small,
    target,
    write,
)

import conformance.results.reader
import conformance.results.writer
from conformance.base.paths import data_path
from conformance.results.errors import ResultsError
from conformance.results.faults import factor, fault_text
from conformance.results.join import join
from conformance.results.packed import Unpacked
from conformance.results.reader import MOST_BYTES, read
from conformance.results.records import (
    BeyondBudget,
    CallRecord,
    InfrastructureRecord,
    RelationBroken,
    RunsDiffer,
    WrongDtype,
    WrongShape,
    results_schema,
)
from conformance.results.writer import Writer

CUT_OFF = "Its last line is broken off."
PROBLEM = InfrastructureRecord(
    target="cpu@1.31.1", message="The runner would not start.", fix="pip …"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def lines(path: Path) -> list[Any]:
    """Each line, read as strict JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = path.read_bytes().split(b"\n")
    assert text.pop() == b""
    return [json.loads(line, parse_constant=refuse) for line in text]


def edit(path: Path, number: int, **fields: Any) -> None:
    """Change fields of one line."""
    records = lines(path)
    records[number] |= fields
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def selected(cases: int, results: int) -> dict[str, Any]:
    return {"selection": {"text": "", "cases": cases, "results": results}}


def in_another_process(code: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# ── Writing and reading back ────────────────────────────────────────────────────────────────────


def test_written_records_are_read_back(path: Path) -> None:
    cases = [case(), case("decode/one_token")]
    results = [
        result(),
        result("decode/one_token", verdict="wrong", expectation=expected()),
        result("decode/one_token", "webgpu@1.27.0", verdict="crash"),
        result(target="webgpu@1.27.0", verdict="unsupported", vague=True),
    ]
    run = read(write(path, cases, results, problems=[PROBLEM]))
    assert run.header == header([target(), target("webgpu@1.27.0")], 2, 4)
    assert list(run.cases.values()) == cases
    assert run.results == tuple(results)
    assert run.infrastructure == (PROBLEM,)
    assert run.footer is not None
    assert run.footer.complete
    assert run.footer.counts == {
        "cpu@1.31.1": {"wrong": 1, "pass": 1},
        "webgpu@1.27.0": {"crash": 1, "unsupported": 1},
    }
    assert (run.footer.unexpected, run.footer.infrastructure) == (2, 1)
    assert run.footer.end > run.header.start
    assert run.footer.seconds >= 0
    assert run.problems == ()


def test_non_finite_numbers_are_written_as_words(path: Path) -> None:
    numbers = error(got=math.nan, want=math.inf, absolute=-math.inf, relative=math.nan)
    call = CallRecord(inputs=(), outputs=(), attributes={"scale": math.inf, "softcap": math.nan})
    judged = result(verdict="wrong", errors=(numbers,), share=math.inf)
    run = read(write(path, [case(call=call)], [judged]))
    _, written_case, written, _ = lines(path)
    assert [written["errors"][0][k] for k in ("got", "want", "absolute")] == ["nan", "inf", "-inf"]
    assert written["share"] == "inf"
    assert written_case["call"]["attributes"] == {"scale": "inf", "softcap": "nan"}
    assert run.results == (judged,)
    assert math.isnan(run.results[0].errors[0].got or 0)
    assert run.results[0].share == math.inf


@pytest.mark.parametrize("got", ["NaN", "-Infinity", '"Infinity"', '"1.5"', "[]"])
def test_other_spellings_of_numbers_are_rejected(path: Path, got: str) -> None:
    small(path, "wrong")
    text = path.read_text().replace('"got":0.2871', f'"got":{got}')
    path.write_text(text)
    with pytest.raises(ResultsError, match=r"run\.jsonl:3: errors\.0\.got: \w"):
        read(path)


TEXTS = (
    "</script>", "two\nlines\r\n", "NUL \x00 and ESC \x1b[31m", "\u2028 \u2029 \x85 \x0b \x1e",
    "bidi \u202e and astral 😀", "x" * 1_000_000,
)  # fmt: skip


def test_any_text_is_preserved_and_bytes_that_are_none_are_escaped(path: Path) -> None:
    for text in TEXTS:
        (judged,) = small(path, "unsupported", message=text, stderr=text).results
        assert (judged.message, judged.stderr) == (text, text)
        assert len(lines(path)) == 4
    stderr = b"caf\xe9 \xff".decode(errors="surrogateescape")
    assert small(path, "crash", stderr=stderr).results[0].stderr == r"caf\udce9 \udcff"


def test_leaving_without_finishing_marks_the_file_incomplete(path: Path) -> None:
    with Writer(path, header([target()], 1, 2)) as writer:
        writer.case(case())
        writer.result(result())
    run = read(path)
    assert run.footer is not None
    assert not run.footer.complete
    assert "The run was stopped before its end." in run.problems


# ── Writing fails ───────────────────────────────────────────────────────────────────────────────


#: Python's own words for a path that has one.
EMBEDDED_NULL = (
    "embedded null byte" if sys.version_info < (3, 13) else "open: embedded null character in path"
)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("", "Is a directory"),
        ("file/below", "Not a directory"),
        ("missing/run.jsonl", "No such file or directory"),
        ("x" * 300, "File name too long"),
        ("a\0b", EMBEDDED_NULL),
        ("/dev/full", "No space left on device"),
    ],
)
def test_a_path_that_cannot_be_written_gives_one_sentence(
    tmp_path: Path, name: str, cause: str
) -> None:
    if name.startswith("/") and not Path(name).exists():
        pytest.skip("/dev/full is Linux's")
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match=f"^Cannot write results to .*: {cause}\\.$"):
        Writer(tmp_path / name, header([target()], 0, 0))
    assert os.listdir(tmp_path) == ["file"]


@contextlib.contextmanager
def small_disk() -> Iterator[None]:
    """Files may not grow past 6,000 bytes: the write that would exceed that is partial or fails.

    No fixture: pytest itself may be writing to a file between a fixture and its test.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_fills_up_is_reported_once_and_leaves_whole_lines(path: Path) -> None:
    raised = []
    with small_disk(), Writer(path, header([target()], 1, 20)) as writer:
        writer.case(case())
        for _ in range(20):
            try:
                writer.result(result())
            except ResultsError as failure:
                raised.append(failure)
        writer.infrastructure(PROBLEM)
        writer.finish(True)
    assert [str(failure) for failure in raised] == [
        f"Cannot write results to {path}: File too large."
    ]
    assert writer.failure is raised[0]
    written = lines(path)
    assert 2 < len(written) < 20
    assert "It has no footer: the run was cut short." in read(path).problems


def test_a_failing_footer_does_not_hide_what_interrupted_the_run(path: Path) -> None:
    def interrupted() -> None:
        with Writer(path, header([target()], 1, 1)) as writer:
            os.truncate(path, 0)
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )
            raise KeyboardInterrupt
        assert writer

    with small_disk(), pytest.raises(KeyboardInterrupt):
        interrupted()


# ── Reading broken files ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("edit", "problems"),
    [
        (lambda text: text[:-20], [CUT_OFF, "It has no footer: the run was cut short."]),
        (lambda text: text + b"\0" * 512, [CUT_OFF]),
        (lambda text: text + b"\xff\xfe", [CUT_OFF]),
        (lambda text: text + b"{", [CUT_OFF]),
        (lambda text: text + b'"', [CUT_OFF]),
        (lambda text: text.rstrip(b"\n"), []),
        (
            lambda text: text + text.splitlines(keepends=True)[1],
            ["There is more after its footer."],
        ),
    ],
    ids=["truncated", "zeros", "no UTF-8", "a brace", "a quote", "no newline", "more"],
)
def test_what_is_wrong_at_the_end_is_a_problem_and_the_rest_is_read(
    path: Path, edit: Callable[[bytes], bytes], problems: list[str]
) -> None:
    small(path)
    path.write_bytes(edit(path.read_bytes()))
    run = read(path)
    assert len(run.results) == 1
    assert list(run.problems) == problems


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"kind":"result","case"', "not a line of JSON (EOF while parsing an object"),
        ("[1]", "not a record of a results file"),
        ('{"kind":"note"}', "not a record of a results file"),
        ("{}", "not a record of a results file"),
        ('{"kind":"infrastructure","target":"cpu"}', "message: Field required"),
    ],
)
def test_a_broken_line_in_the_middle_is_an_error_with_its_line_number(
    path: Path, line: str, what: str
) -> None:
    small(path)
    good = path.read_text().splitlines()
    path.write_text("\n".join([*good[:2], line, *good[2:]]) + "\n")
    with pytest.raises(ResultsError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


HEADLESS = result().model_dump_json().encode() + b"\n"


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"hello\n", b"{}\n", b"\x89PNG\r\n\x1a\n", HEADLESS]
)
def test_a_file_that_is_not_a_results_file_gives_one_sentence(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    says = "does not begin with a header" if content is HEADLESS else "not a"
    with pytest.raises(ResultsError, match=rf"^.*run\.jsonl[^\n]* {says}[^\n]*$"):
        read(path)


def test_two_concatenated_files_are_rejected(path: Path) -> None:
    small(path)
    path.write_text(path.read_text() * 2)
    with pytest.raises(ResultsError, match=r"run\.jsonl:5: a second header"):
        read(path)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("format", "gqa-results/2", "'gqa-results/2'.*gqa-results/1"),
        ("start", "2026-11-21T10:29:00", "start: .*timezone"),
    ],
)
def test_a_header_that_is_not_understood(path: Path, field: str, value: str, says: str) -> None:
    small(path)
    edit(path, 0, **{field: value})
    with pytest.raises(ResultsError, match=f":1: .*{says}"):
        read(path)


# ── Inconsistent files ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "fields", "problem"),
    [
        (4, {"complete": False}, "The run was stopped before its end."),
        (
            4,
            {"counts": {"cpu@1.31.1": {"pass": 2}}},
            "The footer counts 2 pass on cpu@1.31.1; there are 1.",
        ),
        (
            4,
            {"counts": {"cpu@1.31.1": {"pass": 1, "wrong": 1}, "cuda": {"skip": 3}}},
            "The footer counts 3 skip on cuda; there are 0.",
        ),
        (4, {"unexpected": 0}, "The footer counts 0 unexpected results; there are 1."),
        (4, {"infrastructure": 1}, "The footer counts 1 infrastructure failures; there are 0."),
        (0, selected(1, 5), "3 of 5 results are missing."),
        (0, selected(1, 1), "There are 2 results where 1 were expected."),
        (0, selected(7, 2), "1 cases are described where 7 were selected."),
        (2, {"case": "a/b"}, "Results for cases that are not described: a/b."),
        (2, {"target": "cuda"}, "Results for cuda, which is no target of the run."),
    ],
)
def test_counts_that_do_not_add_up_are_a_problem(
    path: Path, line: int, fields: dict[str, Any], problem: str
) -> None:
    results = [result(), result(target="webgpu@1.27.0", verdict="wrong")]
    assert of_results(path, results).problems == ()
    edit(path, line, **fields)
    assert problem in read(path).problems


def test_a_result_given_twice_is_a_problem(path: Path) -> None:
    run = of_results(path, [result(), result(verdict="wrong")])
    assert run.problems == (
        "More than one result for shared_kv/zero_length_kv[dtype=float16] on cpu@1.31.1.",
    )


def test_a_case_described_in_two_ways_is_a_problem(path: Path) -> None:
    run = read(write(path, [case(), case(why="Another reason.")], [result()]))
    assert "is described twice, differently" in run.problems[0]


# ── Joining ─────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_of_fault_is_read_back(path: Path) -> None:
    place: dict[str, Any] = {
        "output": "output", "index": (0, 1), "got": math.nan, "share": math.inf
    }  # fmt: skip
    faults = (
        RunsDiffer(output="output"),
        WrongDtype(output="output", step=0, got="float32", want="float16"),
        WrongShape(output="present_key", step=2, got=(), want=(1, 2)),
        BeyondBudget(**place, want=1.0, budget=0.0),
        RelationBroken(**place, name="packed_qkv", other=-math.inf, budget=0.5),
        RelationBroken(**place, name="later_one", other=2.0, budget=0.0),
    )
    judged = result(verdict="wrong", faults=faults, of_variant=True, time_limit=2.5)
    assert read(write(path, [case()], [judged])).results == (judged,)
    written = lines(path)[2]["faults"]
    kinds = ["runs_differ", "dtype", "shape", "beyond_budget", "relation", "relation"]
    assert [fault["kind"] for fault in written] == kinds
    assert list(map(fault_text, faults)) == [
        "two runs on the same input differ in output",
        "output in step 0 has dtype float32, not float16",
        "present_key in step 2 has shape (), not (1, 2)",
        "output is nan at [0, 1], not 1 (it must be exact)",
        "the variant (the same call with key and value packed into query) gives other results: "
        "output is nan and -inf at [0, 1] (never allowed); "
        "packing changes only the memory layout",
        "the variant (later_one) gives other results: "
        "output is nan and 2 at [0, 1] (they must be equal)",
    ]


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (1.0, "1"),
        (1.0004, "1.0004"),
        (0.9999, "0.9999"),
        (1234.0, "1230"),
        (2_531_234.0, "2.5e6"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_share_of_the_budget_can_be_read(share: float, shown: str) -> None:
    assert factor(share) == shown
    beyond = BeyondBudget(output="output", index=(3,), got=2.0, want=1.0, budget=0.5, share=share)
    how = f"{shown} times the error budget" if math.isfinite(share) else "never allowed"
    assert fault_text(beyond) == f"output is 2 at [3], not 1 ({how})"


def test_an_older_file_without_adapters_is_read(path: Path) -> None:
    run = small(path)
    text = path.read_text()
    assert text.count('"adapter":null,') == 1
    path.write_text(text.replace('"adapter":null,', ""))
    assert read(path).header == run.header


@pytest.mark.parametrize(
    ("names", "called"),
    [
        (["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"]),
        (["a/run.jsonl", "b/run.jsonl"], ["a/run.jsonl", "b/run.jsonl"]),
        (["run.jsonl", "run.jsonl"], ["run.jsonl #1", "run.jsonl #2"]),
    ],
)
def test_a_target_in_two_files_gets_two_columns(
    tmp_path: Path, names: list[str], called: list[str]
) -> None:
    runs = []
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        runs.append(read(write(tmp_path / name, [case()], [result()], problems=[PROBLEM])))
    joined = join(runs)
    labels = [f"cpu@1.31.1 ({name})" for name in called]
    assert [column.label for column in joined.columns] == labels
    assert [label for label, _ in joined.infrastructure] == labels
    assert len(joined.results) == 2


def test_problems_come_with_their_file(tmp_path: Path) -> None:
    good, cut = small(tmp_path / "good.jsonl"), tmp_path / "cut.jsonl"
    write(cut, [case()], [result()], complete=False)
    assert join([read(cut)]).problems == ("The run was stopped before its end.",)
    assert join([good, read(cut)]).problems == ("cut.jsonl: The run was stopped before its end.",)


def test_a_case_that_changed_between_files_is_a_problem(tmp_path: Path) -> None:
    call = case().call.model_copy(update={"steps": 2})
    old = small(tmp_path / "old.jsonl")
    joined = join([old, of_results(tmp_path / "new.jsonl", [result()], [case(call=call)])])
    assert joined.cases[case().id].call.steps == 1
    (problem,) = joined.problems
    assert problem.startswith("new.jsonl: cases that are others")
    assert case().id in problem
    # The title may differ: an older file has none.
    words = of_results(tmp_path / "words.jsonl", [result()], [case(why="Then.", title="So")])
    assert join([old, words]).problems == ()


def test_columns_never_share_a_label(tmp_path: Path) -> None:
    both = [result(target=name) for name in ("cpu", "cpu (a.jsonl)")]
    first = of_results(tmp_path / "a.jsonl", both)
    other = of_results(tmp_path / "b.jsonl", [result(target="cpu", verdict="crash")])
    joined = join([first, other])
    shown = {one.label: joined.results[case().id, one.label].verdict for one in joined.columns}
    assert shown == {
        "cpu (a.jsonl)": "pass",
        "cpu (a.jsonl) #2": "pass",
        "cpu (b.jsonl)": "crash",
    }


# ── The schema ──────────────────────────────────────────────────────────────────────────────────


def test_the_committed_schema_matches_the_models() -> None:
    committed = json.loads((data_path("reports") / "results.schema.json").read_text())
    assert committed == results_schema(), "run: python -m conformance.maintain.generate"


def test_every_line_fits_the_schema(tmp_path: Path) -> None:
    Draft202012Validator.check_schema(results_schema())
    validator = Draft202012Validator(results_schema())
    cuda = target("cuda", unavailable="No driver.", fix="apt-get …")
    odd = of_results(
        tmp_path / "b.jsonl",
        [result(verdict="wrong", errors=(error(got=math.nan, share=math.inf),))],
        targets=[target("webgpu@1.30.0+lavapipe"), cuda],
        problems=[PROBLEM],
    )
    for run in (realistic(tmp_path / "a.jsonl"), odd):
        for line in lines(run.path)[:400:7] + lines(run.path)[-3:]:
            validator.validate(line)
    line = lines(odd.path)[2]
    for bad in (
        {"verdict": "fine"},
        {"kind": "note"},
        {"flavour": 1},
        {"errors": [line["errors"][0] | {"got": "Infinity"}]},
    ):
        assert not validator.is_valid(line | bad)
    assert not validator.is_valid({k: v for k, v in line.items() if k != "kind"})


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    run = small(tmp_path / "a.jsonl")
    packed = tmp_path / "a.jsonl.xz"
    content = run.path.read_bytes()
    packed.write_bytes(lzma.compress(content[:1000]) + lzma.compress(content[1000:]) + b"\0" * 4)
    assert (read(packed).results, read(packed).problems) == (run.results, ())
    packed.write_bytes(b"no xz at all")
    with pytest.raises(ResultsError, match=r"^Cannot read results from .*a\.jsonl\.xz: "):
        read(packed)
    damaged = bytearray(lzma.compress(content))
    damaged[200] ^= 1
    packed.write_bytes(damaged)
    with pytest.raises(ResultsError, match=r"^Cannot read results from .*a\.jsonl\.xz: Corrupt"):
        read(packed)


@pytest.mark.parametrize("size", [65_528, 65_532, 65_536])
@pytest.mark.parametrize("padding", [0, 4, 65_536])
def test_streams_that_follow_one_another_anywhere_are_read(
    path: Path, size: int, padding: int
) -> None:
    raw = io.BytesIO(_stream_of(size) + bytes(padding) + lzma.compress(b"the second"))
    assert io.BufferedReader(Unpacked(raw)).read().endswith(b"the second")


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        *[
            (rest, "Something else follows the data.")
            for rest in (b"\0", b"\0" * 7, b"garbage", b"\xfd8zXZ\0" * 9)
        ],
        (lzma.compress(b"")[:3], ""),
    ],
)
def test_what_follows_compressed_data_and_is_none_is_told(
    tmp_path: Path, rest: bytes, says: str
) -> None:
    packed = tmp_path / "a.jsonl.xz"
    packed.write_bytes(lzma.compress(small(tmp_path / "a.jsonl").path.read_bytes()) + rest)
    if says:
        with pytest.raises(ResultsError, match=rf"a\.jsonl\.xz: {says}$"):
            read(packed)
    else:
        assert "Its compressed data is broken off." in read(packed).problems


@cache
def _stream_of(size: int) -> bytes:
    """A compressed stream of ``size`` bytes, a multiple of 4."""
    noise = random.Random(0).randbytes(size)
    streams = (lzma.compress(noise[less:], preset=0) for less in range(size))
    return next(stream for stream in streams if len(stream) == size)


def test_of_a_compressed_file_that_is_cut_everything_before_is_read(tmp_path: Path) -> None:
    whole = lzma.compress(
        of_results(tmp_path / "a", [result(f"a/{n}") for n in range(300)]).path.read_bytes()
    )
    packed = tmp_path / "a.jsonl.xz"
    counts = []
    for length in (len(whole) * 2 // 3, len(whole) - 40, len(whole) - 1):
        packed.write_bytes(whole[:length])
        run = read(packed)
        assert "Its compressed data is broken off." in run.problems
        counts.append(len(run.cases) + len(run.results))
    assert 0 < counts[0] < counts[1] <= counts[2] == 600


# ── Bounds ──────────────────────────────────────────────────────────────────────────────────────


def bomb(path: Path, *pieces: tuple[bytes, int]) -> Path:
    """A compressed file: each piece, repeated so often."""
    with lzma.open(path, "wb", preset=0) as file:
        for piece, times in pieces:
            for _ in range(times):
                file.write(piece)
    return path


HEADER = header([target()], 0, 0).model_dump_json().encode() + b"\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([(HEADER, 1), (b" " * (1 << 20), 300)], r":2: longer than 8,388,608 bytes\.$"),
        ([(b"x" * (1 << 20), 300)], r":1: longer than 8,388,608 bytes\.$"),
        ([(HEADER, 1), (b"\n" * (1 << 20), 300)], r": it has more than 500,000 lines\.$"),
        ([(HEADER, 1), (b" " * 1023 + b"\n", 300_000)], r": it has more than 268,435,456 bytes\.$"),
    ],
    ids=["a line", "the first line", "newlines", "bytes"],
)
def test_a_file_larger_than_any_run_is_refused(
    tmp_path: Path, pieces: list[tuple[bytes, int]], says: str
) -> None:
    path = bomb(tmp_path / "bomb.xz", *pieces)
    assert path.stat().st_size < 1_000_000
    begun = time.process_time()
    with pytest.raises(ResultsError, match=says):
        read(path)
    assert time.process_time() - begun < 10


def test_a_sparse_file_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.write(HEADER)
        file.truncate(1 << 40)
    with pytest.raises(ResultsError, match=r":2: longer than"):
        read(path)


def test_a_file_of_a_million_targets_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.write(HEADER)
        for number in range(1_001):
            file.write(result(target=f"t{number}").model_dump_json().encode() + b"\n")
    with pytest.raises(ResultsError, match=r"it has more than 1,000 targets\.$"):
        read(path)


@pytest.mark.parametrize("value", ["[]", "{}", '"x"'])
def test_a_million_errors_in_a_line_take_little_memory(path: Path, value: str) -> None:
    small(path)
    record = json.loads(path.read_bytes().splitlines()[1])
    record["call"]["inputs"][0]["recipe"] = {"kind": "numbers", "numbers": "HERE"}
    wrong = f"[{','.join([value] * 1_000_000)}]"
    line = json.dumps(record).replace('"HERE"', wrong)
    path.write_bytes(HEADER + line.encode() + b"\n" + HEADER)
    done = in_another_process(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        f"from conformance.results.reader import read\nread({str(path)!r})"
    )
    assert "ResultsError" in done.stderr
    assert "numbers.0" in done.stderr


@pytest.mark.slow
def test_the_largest_files_take_the_memory_that_is_documented(tmp_path: Path) -> None:
    """About nine times their size: `MOST_BYTES` of cases, and `MOST_LINES` of results."""
    described, judged = json.loads(case().model_dump_json()), result().model_dump_json().encode()
    for name, lines_ in (
        ("cases", (json.dumps({**described, "id": f"a/{n}"}).encode() for n in range(500_000))),
        ("results", (judged for _ in range(499_999))),
    ):
        path = tmp_path / name
        with path.open("wb") as file:
            file.write(HEADER)
            for line in lines_:
                if file.tell() + len(line) >= MOST_BYTES:
                    break
                file.write(line + b"\n")
        done = in_another_process(
            f"from conformance.results.reader import read\nread({str(path)!r})\n"
            "from memory import peak_kib\nprint(peak_kib())"
        )
        memory = int(done.stdout) * 1024
        print(f"\n{name}: {path.stat().st_size:,} bytes take {memory:,} bytes")
        assert memory < 10 * MOST_BYTES
        path.unlink()


def test_a_record_too_long_to_read_again_is_not_written(path: Path) -> None:
    with (
        pytest.raises(ResultsError, match=r"a record has more than 8,388,608 bytes\.$"),
        Writer(path, header([target()], 1, 1)) as writer,
    ):
        writer.result(result(message="x" * (1 << 23)))
    assert read(path).results == ()


@pytest.mark.parametrize(
    ("limit", "most", "says"),
    [
        ("MOST_BYTES", 8000, r"no file of more than 8,000 bytes can be read\.$"),
        ("MOST_LINES", 5, r"no file of more than 5 lines can be read\.$"),
    ],
)
def test_a_file_that_could_not_be_read_again_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, says: str
) -> None:
    for module in (conformance.results.writer, conformance.results.reader):
        monkeypatch.setattr(module, limit, most)
    written = Writer(path, header([target()], 99, 99))
    with pytest.raises(ResultsError, match=says), written as writer:
        any(writer.result(result(f"a/{number}")) for number in range(99))
    assert len(read(path).results) >= 3


# ── The place of a run ──────────────────────────────────────────────────────────────────────────


def test_an_empty_file_is_written_in_place(path: Path) -> None:
    path.touch(0o600)
    with Writer(path, header([target()], 0, 0)):
        assert [line["kind"] for line in lines(path)] == ["header"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_run_into_the_new_file_of_another_is_left_alone(path: Path) -> None:
    small(path)
    new = path.with_name("run.jsonl.new")
    with Writer(new, header([target()], 2, 2)) as writer:
        writer.result(result())
        with pytest.raises(ResultsError, match=rf"^Another run is writing results to {new}; "):
            Writer(path, header([target()], 1, 1))
        writer.result(result("a/b"))
    before = new.read_bytes()
    assert len(read(new).results) == 2
    with pytest.raises(ResultsError, match=rf"{new} has results; move it elsewhere first\.$"):
        Writer(path, header([target()], 1, 1))
    assert new.read_bytes() == before


def test_a_place_without_locks_or_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = small(path).path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(os, "link", refuse)
    with Writer(path, header([target()], 1, 1)) as writer:
        writer.result(result())
    assert len(read(path).results) == 1
    assert path.with_name("run.jsonl.old").read_bytes() == before
