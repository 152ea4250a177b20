"""Tests the results file: written line by line, read back complete or broken, and joined."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import lzma
import math
import resource
import signal
from collections.abc import Callable, Iterator
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
    writing,
)

from conformance.results.faults import fault_text
from conformance.results.reader import read
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
from conformance.results.results_error import ResultsError
from conformance.results.table import tabulate

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
    assert run.infrastructure == [PROBLEM]
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


# ── Writing fails ───────────────────────────────────────────────────────────────────────────────


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


def test_a_disk_that_fills_up_is_reported_once(path: Path) -> None:
    raised = []
    with small_disk(), writing(path, header([target()], 1, 20)) as writer:
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
    run = read(path)
    assert run.results
    assert {CUT_OFF, "It has no footer: the run was cut short."} <= {*run.problems}


# ── Reading broken files ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("edit", "problems"),
    [
        (lambda text: text[:-20], [CUT_OFF, "It has no footer: the run was cut short."]),
        (lambda text: text + b"\0" * 512, [CUT_OFF]),
        (lambda text: text.rstrip(b"\n"), []),
        (
            lambda text: text + text.splitlines(keepends=True)[1],
            ["There is more after its footer."],
        ),
    ],
    ids=["truncated", "zeros", "no newline", "more"],
)
def test_a_wrong_end(path: Path, edit: Callable[[bytes], bytes], problems: list[str]) -> None:
    """What is wrong at the end is a problem and the rest is read."""
    small(path)
    path.write_bytes(edit(path.read_bytes()))
    run = read(path)
    assert len(run.results) == 1
    assert list(run.problems) == problems


def changed(of: str, **fields: object) -> str:
    """The line of a result that no run writes."""
    return json.dumps(json.loads(result(verdict=of).model_dump_json()) | fields)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"kind":"result","case"', "not a line of JSON (EOF while parsing an object"),
        ('{"kind":"note"}', "not a record of a results file"),
        ('{"kind":"infrastructure","target":"cpu"}', "message: Field required"),
        (result(verdict="wrong").model_dump_json().replace('"got":', '"got":NaN,"x":'), "JSON"),
        (header([target()], 0, 0).model_dump_json(), "a second header"),
        (changed("crash", verdict="pass"), "what crashed cannot be 'pass'"),
        (changed("wrong", hazard="It leaks."), "a result 'wrong' cannot have 'hazard'"),
        (changed("timeout", time_limit=None), "a result 'timeout' must have 'time_limit'"),
    ],
)
def test_a_broken_line_is_an_error_with_its_number(path: Path, line: str, what: str) -> None:
    """A broken line in the middle is an error with its line number."""
    small(path)
    good = path.read_text().splitlines()
    path.write_text("\n".join([*good[:2], line, *good[2:]]) + "\n")
    with pytest.raises(ResultsError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


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
        (4, {"complete": False}, "The run was stopped."),
        (
            4,
            {"counts": {"cpu@1.31.1": {"pass": 2}}},
            "The footer counts 2 pass on cpu@1.31.1; there are 1.",
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
def test_wrong_counts_are_told(path: Path, line: int, fields: dict[str, Any], problem: str) -> None:
    """Counts that do not add up are a problem."""
    results = [result(), result(target="webgpu@1.27.0", verdict="wrong")]
    assert of_results(path, results).problems == ()
    edit(path, line, **fields)
    assert problem in read(path).problems


def test_what_is_given_twice_is_a_problem(path: Path) -> None:
    other = case().contract.model_copy(update={"demands": "either"})
    described = [case(), case(contract=other)]
    problems = read(write(path, described, [result(), result(verdict="wrong")])).problems
    assert "is described twice, differently" in problems[0]
    wanted = "More than one result for shared_kv/zero_length_kv[dtype=float16] on cpu@1.31.1."
    assert wanted in problems


def test_a_file_without_a_header_gives_one_sentence(path: Path) -> None:
    headless = result().model_dump_json().encode() + b"\n"
    for content, says in ((b"", "not a"), (headless, "does not begin with a header")):
        path.write_bytes(content)
        with pytest.raises(ResultsError, match=rf"^.*run\.jsonl[^\n]* {says}[^\n]*$"):
            read(path)


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
    ("names", "called"),
    [
        (["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"]),
        (["a/run.jsonl", "b/run.jsonl"], ["a/run.jsonl", "b/run.jsonl"]),
        (["run.jsonl", "run.jsonl"], ["run.jsonl #1", "run.jsonl #2"]),
    ],
)
def test_two_files_give_two_columns(tmp_path: Path, names: list[str], called: list[str]) -> None:
    """A target in two files gets two columns."""
    runs = []
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        runs.append(read(write(tmp_path / name, [case()], [result()], problems=[PROBLEM])))
    joined = tabulate(runs)
    labels = [f"cpu@1.31.1 ({name})" for name in called]
    assert [column.label for column in joined.columns] == labels
    assert [label for label, _ in joined.infrastructure] == labels
    assert len(joined.results) == 2


def test_problems_come_with_their_file(tmp_path: Path) -> None:
    good, cut = small(tmp_path / "good.jsonl"), tmp_path / "cut.jsonl"
    write(cut, [case()], [result()], complete=False)
    assert tabulate([read(cut)]).problems == ("The run was stopped.",)
    assert tabulate([good, read(cut)]).problems == ("cut.jsonl: The run was stopped.",)


def test_a_case_that_changed_between_files_is_a_problem(tmp_path: Path) -> None:
    call = case().call.model_copy(update={"steps": 2})
    old = small(tmp_path / "old.jsonl")
    joined = tabulate([old, of_results(tmp_path / "new.jsonl", [result()], [case(call=call)])])
    assert joined.cases[case().id].call.steps == 1
    (problem,) = joined.problems
    assert problem.startswith("new.jsonl: cases that are others")
    assert case().id in problem
    # The title may differ: an older file has none.
    words = of_results(tmp_path / "words.jsonl", [result()], [case(why="Then.", title="So")])
    assert tabulate([old, words]).problems == ()
    # The operator of an older file has fewer inputs.
    fewer = case().call.model_copy(update={"inputs": case().call.inputs[:-1]})
    assert (
        tabulate([old, of_results(tmp_path / "fewer", [result()], [case(call=fewer)])]).problems
        == ()
    )


def test_columns_never_share_a_label(tmp_path: Path) -> None:
    both = [result(target=name) for name in ("cpu", "cpu (a.jsonl)")]
    first = of_results(tmp_path / "a.jsonl", both)
    other = of_results(tmp_path / "b.jsonl", [result(target="cpu", verdict="crash")])
    joined = tabulate([first, other])
    shown = {one.label: joined.results[case().id, one.label].verdict for one in joined.columns}
    assert shown == {"cpu (a.jsonl)": "pass", "cpu (a.jsonl) #2": "pass", "cpu (b.jsonl)": "crash"}


# ── The schema ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.push
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
    packed.write_bytes(lzma.compress(content[:1000]) + lzma.compress(content[1000:]))
    assert (read(packed).results, read(packed).problems) == (run.results, ())
    packed.write_bytes(b"no xz at all")
    with pytest.raises(ResultsError, match=r"^Cannot read results from .*a\.jsonl\.xz: "):
        read(packed)
    damaged = bytearray(lzma.compress(content))
    damaged[200] ^= 1
    packed.write_bytes(damaged)
    with pytest.raises(ResultsError, match=r"^Cannot read results from .*a\.jsonl\.xz: Corrupt"):
        read(packed)


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b" " * (1 << 23) + b"\n", r":2: longer than 8,388,608 bytes\.$"),
        (
            b"\n".join(result(target=f"t{n}").model_dump_json().encode() for n in range(1_001)),
            r": it has more than 1,000 targets\.$",
        ),
    ],
    ids=["a line", "targets"],
)
def test_a_file_larger_than_any_run_is_refused(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(header([target()], 0, 0).model_dump_json().encode() + b"\n" + content)
    with pytest.raises(ResultsError, match=says):
        read(path)


def test_only_a_packed_file_is_refused_for_its_lines(path: Path) -> None:
    """A file is as large as it is, but a small packed one can have any number of lines."""
    small(path)
    content = path.read_bytes() + b"\n" * 500_000
    path.write_bytes(content)
    assert len(read(path).results) == 1
    packed = path.with_suffix(".xz")
    packed.write_bytes(lzma.compress(content))
    assert packed.stat().st_size < 5_000
    with pytest.raises(ResultsError, match=r": it has more than 500,000 lines or .* first\.$"):
        read(packed)
    assert len(read(packed, bounded=False).results) == 1


def test_a_record_too_long_to_read_again_is_not_written(path: Path) -> None:
    with (
        pytest.raises(ResultsError, match=r"a record has more than 8,388,608 bytes\.$"),
        writing(path, header([target()], 1, 1)) as writer,
    ):
        writer.result(result(message="x" * (1 << 23)))
    assert read(path).results == ()


# ── The place of a run ──────────────────────────────────────────────────────────────────────────


def test_a_place_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = small(path).path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with writing(path, header([target()], 1, 1)) as writer:
        writer.result(result())
    assert len(read(path.with_name("run.jsonl.part")).results) == 1
    assert path.read_bytes() == before
