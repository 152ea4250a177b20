"""Made-up runs for the tests of the results file and the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from conformance.case.contract import Contract
from conformance.harness.protocol import DescribedAnswer
from conformance.results.place import Place
from conformance.results.reader import Run, read
from conformance.results.records import (
    OF_SOME,
    BeyondBudget,
    CallInput,
    CallOutput,
    CallRecord,
    CaseRecord,
    ExpectationRecord,
    Header,
    InfrastructureRecord,
    InstabilityRecord,
    Milliseconds,
    OutputErrorRecord,
    ResultRecord,
    Selection,
    TargetDescription,
    TargetRecord,
    can_have,
)
from conformance.results.writer import Writer
from conformance.run.target import DescribedTarget
from conformance.targets.registry import target_for

START = datetime(2026, 11, 21, 10, 29, tzinfo=UTC)
ISSUE = "https://github.com/microsoft/onnxruntime/issues/28318"


def target(name: str = "cpu@1.31.1", **fields: Any) -> TargetRecord:
    """An available target; ``unavailable=…`` makes it unavailable.

    The part of its name after a + is its adapter.
    """
    ep, _, rest = name.partition("@")
    version, _, adapter = rest.partition("+")
    describe = TargetDescription(
        runtime="onnxruntime",
        version=version or "1.31.1",
        execution_provider="CPUExecutionProvider",
        device="AMD EPYC 7R13, 2 cores",
        adapter=adapter or None,
        dtypes=("float32", "float16"),
        features=("shared_buffer",),
        versions={"python": "3.11.7", "numpy": "2.4.6"},
    )
    defaults = {"ep": ep, "describe": None if fields.get("unavailable") else describe}
    return TargetRecord(name=name, **defaults | fields)


def described() -> DescribedTarget:
    """The target cpu, which has described itself."""
    answer = DescribedAnswer(
        id=1,
        outcome="described",
        runtime="onnxruntime",
        version="1.31.1",
        execution_provider="CPUExecutionProvider",
        device="a CPU",
        dtypes=("float32", "int32"),
    )
    return DescribedTarget(target_for("cpu"), answer, None, None)


def header(targets: Sequence[TargetRecord], cases: int, results: int) -> Header:
    """The first line of a run over ``targets``."""
    return Header(
        suite="0.1.0",
        corpus="sha256:4be1c0ffee",
        selection=Selection(text="the shipped corpus", cases=cases, results=results),
        targets=tuple(targets),
        machine={"system": "Linux 6.1 x86_64", "processor": "AMD EPYC 7R13, 2 cores"},
        start=START,
    )


def case(
    id: str = "shared_kv/zero_length_kv[dtype=float16]",
    question: str = "May a layer borrow another layer's cache?",
    **fields: Any,
) -> CaseRecord:
    """A case with this id; all other fields are invented."""
    theme, _, rest = id.partition("/")
    name, _, axes = rest.rstrip("]").partition("[")
    labels = dict(axis.split("=", 1) for axis in axes.split(",") if "=" in axis)
    dtype = labels.get("dtype", "float32")
    defaults: dict[str, Any] = {
        "file": f"cases/{theme}.yaml",
        "why": "Key and value of length 0 mean: attend to the cache as it is.",
        "tags": ("decode",),
        "links": (ISSUE,),
        "contract": Contract(source=ISSUE, why="Released in 1.27.0.", mentions=("key", "value")),
        "call": CallRecord(
            inputs=(
                CallInput(
                    name="query",
                    state="connected",
                    shape=(1, 1, 256),
                    dtype=dtype,
                    values="uniform in [-1, 1], seed 0",
                ),
                CallInput(name="key", state="connected", shape=(1, 0, 128), dtype=dtype),
                CallInput(name="position_ids", state="omitted"),
                CallInput(name="head_sink", state="trailing"),
            ),
            outputs=(
                CallOutput(name="output", state="connected", shape=(1, 1, 256), dtype=dtype),
                CallOutput(name="present_key", state="omitted"),
            ),
            attributes={"num_heads": 8, "kv_num_heads": 4, "scale": 0.125},
        ),
    }
    told = {"id": id, "theme": theme, "question": question, "name": name, "axes": labels}
    return CaseRecord(**defaults | told | fields)


def result(
    case: str = "shared_kv/zero_length_kv[dtype=float16]",
    target: str = "cpu@1.31.1",
    verdict: str = "pass",
    **fields: Any,
) -> ResultRecord:
    """A result with the fields that its verdict requires, and of ``fields`` those it can have."""
    about: dict[str, Any] = {
        "outcome": "ran",
        "reason": "Every defined element is within its budget.",
        "placement": "CPUExecutionProvider",
        "ms": Milliseconds(load=0.31, run=0.09, total=1.2),
        "share": 0.03,
        "errors": (error(share=0.03, got=0.25, absolute=1e-9, needed=1e-9),),
        "unexpected": False,
        "reproduce": f"gqa run --ep {target} -k '{case}'",
    }
    differing: dict[str, dict[str, Any]] = {
        "wrong": {
            "reason": "output differs from the oracle by 37 times its error budget.",
            "share": 37.0,
            "errors": (error(),),
            "unexpected": True,
        },
        "accepted": {
            "reason": "It ran, and the contract asks for a refusal.",
            "values_right": False,
        },
        "fallback": {"reason": "It ran on another provider.", "placement": "CPUExecutionProvider"},
        "unsupported": {
            "outcome": "rejected",
            "stage": "run",
            "code": "INVALID_ARGUMENT",
            "message": "Input 'key' and 'value' shall be both present, or both absent.",
            "reason": "It refused a call that nobody promised.",
        },
        "crash": {
            "outcome": "crashed",
            "reason": "The process died of SIGSEGV.",
            "message": "The process died of SIGSEGV.",
            "stderr": "Segmentation fault (core dumped)\n",
            "unexpected": True,
        },
        "timeout": {
            "outcome": "timed_out",
            "reason": "No answer within 30 s.",
            "time_limit": 30.0,
            "unexpected": True,
        },
        "skip": {"outcome": "unavailable", "reason": "This adapter has no float16."},
    }
    about |= differing.get(verdict, {})
    if verdict == "pass" and fields.keys() & {"message", "stage", "vague"}:
        about |= {"outcome": "rejected", "stage": "run", "message": "no"}
    about |= fields
    for name in [*OF_SOME & about.keys()]:
        if not can_have(about["outcome"], verdict, name):  # type: ignore[arg-type]
            del about[name]
        elif name in ("message", "stage") and about[name] is None:
            about[name] = {"message": "", "stage": "run"}[name]
    return ResultRecord(case=case, target=target, verdict=verdict, **about)


def error(**fields: Any) -> OutputErrorRecord:
    """The worst element of an output that is wrong."""
    defaults: dict[str, Any] = {
        "output": "output",
        "index": (0, 0, 17),
        "got": 0.2871,
        "want": 0.25,
        "absolute": 0.0371,
        "relative": 0.148,
        "budget": 0.001,
        "share": 37.0,
        "needed": 0.0371,
        "compared": 256,
        "undefined": 0,
    }
    return OutputErrorRecord(**defaults | fields)


def beyond(output: str = "output", got: float = 2.0, want: float = 1.0) -> BeyondBudget:
    """An element that is ten times its error budget away."""
    return BeyondBudget(output=output, index=(0,), got=got, want=want, budget=0.1, share=10.0)


def expected(verdict: str = "wrong", **fields: Any) -> ExpectationRecord:
    """A known defect."""
    defaults: dict[str, Any] = {
        "file": "expectations/cpu.yaml",
        "line": 12,
        "verdict": verdict,
        "link": "https://github.com/microsoft/onnxruntime/pull/28242",
        "why": "Reads past the end of the cache.",
    }
    return ExpectationRecord(**defaults | fields)


@contextmanager
def writing(path: Path, first: Header) -> Iterator[Writer]:
    """Writes a results file with this header."""
    with Place(path) as place, Writer(place, first) as writer:
        yield writer


def write(
    path: Path,
    cases: Sequence[CaseRecord],
    results: Sequence[ResultRecord],
    *,
    targets: Sequence[TargetRecord] = (),
    problems: Sequence[InfrastructureRecord] = (),
    instability: Sequence[InstabilityRecord] = (),
    complete: bool = True,
) -> Path:
    """A results file of these records, whose header matches them."""
    path.unlink(missing_ok=True)  # a run without a result would keep it
    targets = targets or [target(name) for name in dict.fromkeys(r.target for r in results)]
    number = len(results)
    with writing(path, header(targets, len(cases), number)) as writer:
        for record in cases:
            writer.case(record)
        for judged in results:
            writer.result(judged)
        for problem in problems:
            writer.infrastructure(problem)
        for one in instability:
            writer.instability(one)
        writer.finish(complete)
    return path


def of_results(
    path: Path,
    results: Sequence[ResultRecord],
    cases: Sequence[CaseRecord] | None = None,
    **fields: Any,
) -> Run:
    """A run with these results; its cases are theirs, unless others are given."""
    if cases is None:
        cases = [case(id) for id in dict.fromkeys(judged.case for judged in results)]
    return read(write(path, cases, results, **fields))


def small(path: Path, verdict: str = "pass", **fields: Any) -> Run:
    """A run of one case on one target."""
    return read(write(path, [case()], [result(verdict=verdict, **fields)]))


#: The shape of a run over the themes of the corpus: questions, and the entries with their axes
#: beside the dtype. None is a single case.
_CORPUS: dict[str, tuple[str, dict[str, dict[str, str] | None]]] = {
    "shared_kv": (
        "May a layer borrow another layer's cache, as Gemma's shared layers do?",
        {
            "zero_length_kv": {"batch_size": "1 2", "past_sequence_length": "7 64 300"},
            "zero_length_kv_presents_omitted": {
                "sequence_length": "1 5",
                "rotary": "none half_split",
            },
            "omitted_kv_with_past": {"batch_size": "1 2", "heads": "8:2 4:4 8:1"},
        },
    ),
    "decode": (
        "Does a step on a cache give what one long prefill would?",
        {
            "one_token": {"batch_size": "1 2", "heads": "8:2 4:4", "local_window_size": "-1 16"},
            "several_tokens": {"sequence_length": "2 5 33", "rotary": "none yes"},
            "five_step_loop": {},
            "borrowed_full_length_kv": None,
        },
    ),
    "presents": (
        "Which presents may be left out?",
        {
            "only_key": {"which": "key value"},
            "omitted_with_past_and_new_kv": {"past_sequence_length": "7 64", "batch_size": "1 2"},
        },
    ),
    "ground": (
        "Does the plain ground hold: prefill, rotary, window, softcap, bias, sink?",
        {
            "prefill": {"heads": "8:8 8:2 8:1", "sequence_length": "1 17"},
            "softcap": {"softcap": "20 50"},
            "head_sink": {},
        },
    ),
}


def _entries() -> Iterator[CaseRecord]:
    for theme, (question, entries) in _CORPUS.items():
        for name, others in entries.items():
            axes = {} if others is None else {"dtype": "float32 float16", **others}
            for labels in product(*map(str.split, axes.values())):
                inside = ",".join(map("=".join, zip(axes, labels, strict=True)))
                yield case(
                    f"{theme}/{name}[{inside}]" if inside else f"{theme}/{name}",
                    question,
                    contract=Contract(
                        demands="rejects" if name == "omitted_with_past_and_new_kv" else "computes",
                        basis="requested" if name.startswith("omitted_kv") else "specified",
                        source=ISSUE if theme == "shared_kv" else "ContribOperators.md, GQA",
                        mentions=("present_key", "present_value", "past_key"),
                    ),
                )


def _judged(case: CaseRecord, target: str) -> ResultRecord:
    old = "1.26" in target
    axes = case.axes
    match case.name:
        case "zero_length_kv" if old:
            return result(
                case.id,
                target,
                "unsupported",
                message="Input 'key' has an unexpected sequence length of 0.",
                stage="run",
            )
        case "zero_length_kv_presents_omitted" if old:
            return result(case.id, target, "crash", unexpected=False, expectation=expected("crash"))
        case "omitted_kv_with_past":
            return result(case.id, target, "unsupported", vague=axes["heads"] == "8:1")
        case "several_tokens" if axes["sequence_length"] == "33" and axes["dtype"] == "float16":
            return result(case.id, target, "wrong")
        case "several_tokens" if axes["sequence_length"] == "5" and old:
            return result(case.id, target, "timeout")
        case "omitted_with_past_and_new_kv":
            return result(
                case.id,
                target,
                "accepted",
                unexpected=False,
                expectation=expected("accepted"),
                reason="It ran, and the contract asks for a refusal; its values were wrong.",
            )
        case "head_sink" if axes["dtype"] == "float16":
            return result(case.id, target, "skip")
        case "five_step_loop" if old:
            return result(case.id, target, "fallback", unexpected=True)
    return result(case.id, target)


def realistic(path: Path) -> Run:
    """Cases on two versions, with every verdict and mark."""
    cases = list(_entries())
    names = ("cpu@1.31.1", "cuda@1.26.0")
    results = [_judged(case, name) for case in cases for name in names]
    return read(write(path, cases, results))


HOSTILE = (
    "@somebody and #1, microsoft/onnxruntime#2",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "[a](javascript:alert(1)) ![b](https://example.org/x.png)",
    "`@somebody` ``<b>`` ```",
    "`" * 300 + " @somebody " + "`" * 299,
    "| a | b |\n| --- | --- |\n\n# heading\n\n- @somebody\n\n```\n<b>",
    "a\\|b\\` @somebody https://x> <b>",
    "\x00\x1b[31mred\x1b[0m\u202eevil\ud800\ufffe\uffff",
    "]]> &amp; <!-- --> <![CDATA[ @somebody",
    '=HYPERLINK("https://example.org")\t+1\t-1\t@x',
    "https://example.org/@somebody www.example.org a@example.org",
    "\r\n\r\n@somebody\r\n",
    "é" * 3_000 + " @somebody",
    "",
)
"""What a runtime might write, to get out of where it is put."""

_OWN = re.compile(r"<https://[A-Za-z0-9._~/?=&%+#:-]+>")


def only_own_markup(page: str) -> None:
    """Fails if any text but Markdown's own syntax is outside code spans.

    Code spans are read as CommonMark does: a run of backticks up to the next one of equal length.
    """
    for line in page.splitlines():
        outside = ""
        rest = line
        while match := re.search("`+", rest):
            outside += rest[: match.start()]
            fence = match[0]
            assert len(fence) <= 80, line
            end = re.search(f"(?<!`){fence}(?!`)", rest[match.end() :])
            assert end is not None, f"a fence that nothing closes: {line}"
            inside = rest[match.end() :][: end.start()]
            assert "|" not in inside
            outside += "\N{BULLET}"
            rest = rest[match.end() :][end.end() :]
        outside = _OWN.sub("", outside + rest)
        assert not re.search(r"[<>@&\[\]\\!]|https?:|www\.|somebody", outside), line
        if outside.startswith("#"):
            assert re.fullmatch(r"#{1,2} [A-Za-z,→ ]+(: [\d,]+(, of [\d,]+ causes)?)?", outside)
