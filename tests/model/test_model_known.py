"""What the corpus knows about the calls of a model: similar defects."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_files import entries, write

from conformance.case.case import Case
from conformance.case.load import load_file
from conformance.judge.expectations import load_pinned
from conformance.model.known import KnownTarget, similar_defect
from conformance.results.records import ResultRecord

CORPUS = """
- {name: plain, past_sequence_length: 9}
- {name: softcap, past_sequence_length: 9, softcap: 2.0}
- {name: window, past_sequence_length: 9, local_window_size: 4}
- {name: window_and_softcap, past_sequence_length: 9, local_window_size: 4, softcap: 2.0}
- {name: borrowed, past_sequence_length: 9, local_window_size: 4, key_value: zero_length}
"""
KNOWN = """
target: cpu
expectations:
  - {cases: "*", features: {softcap: [given]}, versions: ">=1", verdict: unsupported,
     message: No softcap, link: "https://example.org/softcap", why: There is no softcap.}
  - {cases: "*", features: {key_value: [zero_length]}, versions: ">=1", verdict: wrong,
     wrong: output, link: "https://example.org/borrowed", why: The window is ignored.}
"""


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Case]:
    return {case.name: case for case in load_file(write(tmp_path, entries(CORPUS), "corpus.yaml"))}


@pytest.fixture
def target(tmp_path: Path) -> KnownTarget:
    file = tmp_path / "known.yaml"
    file.write_text(KNOWN)
    return KnownTarget("cpu@1.0", "1.0", None, load_pinned([file]))


def result(verdict: str, **more: object) -> ResultRecord:
    usual = {"case": "mine/mine", "target": "cpu@1.0", "unexpected": True, "reason": "r",
             "outcome": "ran", "reproduce": ""}  # fmt: skip
    return ResultRecord.model_validate({**usual, **more, "verdict": verdict})


KNOWN_OF = {
    "corpus/borrowed": ("The window is ignored.", "https://example.org/borrowed"),
    "corpus/softcap": ("There is no softcap.", "https://example.org/softcap"),
}
WRONG = result("wrong", wrong_outputs=["output"])
REFUSED = result("unsupported", outcome="rejected", stage="load", message="No softcap here")


@pytest.mark.parametrize(
    ("fields", "record", "found"),
    [
        ("local_window_size: 8, key_value: zero_length", WRONG, "corpus/borrowed"),
        # The defect of a borrowed cache says nothing about a layer with a cache of its own.
        ("local_window_size: 8", WRONG, None),
        # The runtime says something else.
        (
            "softcap: 3.0",
            result("unsupported", outcome="rejected", stage="load", message="No memory"),
            None,
        ),
        # Another verdict.
        ("softcap: 3.0", WRONG, None),
        # Too different a call.
        (
            "sequence_length: 3, past_sequence_length: 0, softcap: 3.0, key_value: packed,"
            " head_sink: true, attention_bias: full",
            *(REFUSED, None),
        ),
        # A window that hides nothing, and the usual scale, make it no more different.
        (
            "softcap: 3.0, key_value: packed, head_sink: true, attention_bias: full,"
            " local_window_size: 100, head_size: 16, scale: 0.25",
            *(REFUSED, "corpus/softcap"),
        ),
    ],
    ids=["similar", "feature", "message", "verdict", "far", "without effect"],
)
def test_a_known_defect_of_a_similar_call_is_found_and_no_other(
    tmp_path: Path,
    corpus: dict[str, Case],
    target: KnownTarget,
    fields: str,
    record: ResultRecord,
    found: str | None,
) -> None:
    past = "" if "past" in fields else "past_sequence_length: 40, "
    (case,) = load_file(write(tmp_path, entries(f"- {{name: mine, {past}{fields}}}"), "mine.yaml"))
    similar = similar_defect(case, record, target, corpus.values())
    assert (similar and similar[0]) == found
    if similar:
        assert similar[1:] == KNOWN_OF[similar.case]
