"""Made-up runs for the tests of the results file and the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from tables import tables

from conformance.case.contract import Contract
from conformance.harness.protocol import DescribedAnswer
from conformance.results.place import OutputFile
from conformance.results.reader import Run, read
from conformance.results.records import (
    OF_SOME,
    AnyCaseRecord,
    BeyondBudget,
    CaseRecord,
    ExpectationRecord,
    Header,
    InfrastructureRecord,
    InstabilityRecord,
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

TABLES = tables(__file__)
ISSUE = TABLES["case"]["contract"]["source"]


def target(name: str = "cpu@1.31.1", **fields: Any) -> TargetRecord:
    """An available target; ``unavailable=…`` makes it unavailable.

    The part of its name after a + is its adapter.
    """
    ep, _, rest = name.partition("@")
    version, _, adapter = rest.partition("+")
    own = {"version": version or "1.31.1", "adapter": adapter or None}
    describe = TargetDescription.model_validate(TABLES["target"] | own)
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
    selection = Selection(text="the shipped corpus", cases=cases, results=results)
    return Header(selection=selection, targets=tuple(targets), start=START, **TABLES["header"])


def case(
    id: str = "shared_kv/zero_length_kv[dtype=float16]",
    question: str = "May a layer borrow another layer's cache?",
    **fields: Any,
) -> CaseRecord:
    """A case with this id; all other fields are invented."""
    theme, _, rest = id.partition("/")
    name, _, axes = rest.rstrip("]").partition("[")
    labels = dict(axis.split("=", 1) for axis in axes.split(",") if "=" in axis)
    invented = deepcopy(TABLES["case"]) | {"file": f"cases/{theme}.yaml"}
    for tensor in (*invented["call"]["inputs"], *invented["call"]["outputs"]):
        if tensor["state"] == "connected":
            tensor["dtype"] = labels.get("dtype", "float32")
    told = {"id": id, "theme": theme, "question": question, "name": name, "axes": labels}
    return CaseRecord(**invented | told | fields)


def result(
    case: str = "shared_kv/zero_length_kv[dtype=float16]",
    target: str = "cpu@1.31.1",
    verdict: str = "pass",
    **fields: Any,
) -> ResultRecord:
    """A result with the fields that its verdict requires, and of ``fields`` those it can have."""
    about = TABLES["result"] | TABLES["differing"].get(verdict, {})
    right = error(share=0.03, got=0.25, absolute=1e-9, needed=1e-9)
    about["errors"] = (error() if verdict == "wrong" else right,)
    about["reproduce"] = f"gqa run --ep {target} -k '{case}'"
    if verdict == "pass" and fields.keys() & {"message", "stage", "vague"}:
        about |= {"outcome": "rejected", "stage": "run", "message": "no"}
    about |= fields
    for name in [*OF_SOME & about.keys()]:
        if not can_have(about["outcome"], verdict, name):  # type: ignore[arg-type]
            del about[name]
        elif name in ("message", "stage") and about[name] is None:
            about[name] = {"message": "", "stage": "run"}[name]
    return ResultRecord(kind="result", case=case, target=target, verdict=verdict, **about)


def error(**fields: Any) -> OutputErrorRecord:
    """The worst element of an output that is wrong."""
    return OutputErrorRecord(**TABLES["error"] | fields)


def beyond(output: str = "output", got: float = 2.0, want: float = 1.0) -> BeyondBudget:
    """An element that is ten times its error budget away."""
    return BeyondBudget(output=output, index=(0,), got=got, want=want, budget=0.1, share=10.0)


def expected(verdict: str = "wrong", **fields: Any) -> ExpectationRecord:
    """A known defect."""
    return ExpectationRecord(**TABLES["expected"] | {"verdict": verdict} | fields)


@contextmanager
def writing(path: Path, first: Header) -> Iterator[Writer]:
    """Writes a results file with this header."""
    with OutputFile(path) as place, Writer(place, first) as writer:
        yield writer


def write(
    path: Path,
    cases: Sequence[AnyCaseRecord],
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
    with writing(path, header(targets, len({one.id for one in cases}), number)) as writer:
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


def _entries() -> Iterator[CaseRecord]:
    for theme, (question, entries) in TABLES["corpus"].items():
        for name, others in entries.items():
            contract = Contract(
                demands="rejects" if name == "omitted_with_past_and_new_kv" else "computes",
                basis="requested" if name.startswith("omitted_kv") else "specified",
                source=ISSUE if theme == "shared_kv" else "ContribOperators.md, GQA",
                mentions=("present_key", "present_value", "past_key"),
            )
            axes = {} if others is None else {"dtype": "float32 float16", **others}
            for labels in product(*map(str.split, axes.values())):
                inside = ",".join(map("=".join, zip(axes, labels, strict=True)))
                id = f"{theme}/{name}[{inside}]" if inside else f"{theme}/{name}"
                yield case(id, question, contract=contract)


def _judged(case: CaseRecord, target: str) -> ResultRecord:
    def judged(verdict: str = "pass", **fields: Any) -> ResultRecord:
        return result(case.id, target, verdict, **fields)

    old, axes = "1.26" in target, case.axes
    known: dict[str, Any] = {"unexpected": False}
    match case.name:
        case "zero_length_kv" if old:
            message = "Input 'key' has an unexpected sequence length of 0."
            return judged("unsupported", message=message, stage="run")
        case "zero_length_kv_presents_omitted" if old:
            return judged("crash", **known, expectation=expected("crash"))
        case "omitted_kv_with_past":
            return judged("unsupported", vague=axes["heads"] == "8:1")
        case "several_tokens" if axes["sequence_length"] == "33" and axes["dtype"] == "float16":
            return judged("wrong")
        case "several_tokens" if axes["sequence_length"] == "5" and old:
            return judged("timeout")
        case "omitted_with_past_and_new_kv":
            reason = "It ran, and the contract asks for a refusal; its values were wrong."
            return judged("accepted", **known, expectation=expected("accepted"), reason=reason)
        case "head_sink" if axes["dtype"] == "float16":
            return judged("skip")
        case "five_step_loop" if old:
            return judged("fallback", unexpected=True)
    return judged()


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
