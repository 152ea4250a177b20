"""``gqa show --values``: the oracle's values of a query, checked with arithmetic of their own."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from as_user import Desk, Gqa
from case_files import cases_of
from rich.console import Console
from shipped import shipped_cases
from synthetic_runs import error, header, result, target, writing

from conformance.bundle.prepare import prepare
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.cli.value_tables import Grid, draw_values, grids
from conformance.operator.tensors import attributes_of
from conformance.oracle.cache import present_places
from conformance.oracle.query_values import query_position, why_undefined
from conformance.report.repro.one_result import OneResult, arrays_of, computed
from conformance.report.shown_query import Element, QueryPlace, ShownQuery, values_of
from conformance.results.descriptions import case_record
from conformance.results.records import ResultRecord

CORPUS = tuple(case for case in shipped_cases() if not case.is_graph)


def _size(case: Case) -> int:
    """About the number of scores and of cached elements."""
    call = case.call
    keys = call.past_sequence_length + call.sequence_length
    return call.batch_size * call.num_heads * keys * (call.head_size + call.sequence_length)


#: The smallest of each theme.
ONE_OF_EACH_THEME = [
    *{case.theme: case for case in sorted(CORPUS, key=_size, reverse=True)}.values()
]

#: A bit of everything: ragged, a past, rotary, a window, softcap, a bias and a sink.
RICH = """
- name: rich
  batch_size: 2
  sequence_length: 3
  past_sequence_length: 6
  total_sequence_lengths: [9, 7]
  rotary: interleaved
  position_ids: true
  local_window_size: 5
  softcap: 3.0
  attention_bias: full
  head_sink: true
"""


def shown(case: Case, asked: QueryPlace | None = None, one: OneResult | None = None) -> ShownQuery:
    return values_of(prepare(case.call), asked or QueryPlace(), one)


def drawn(case: Case, values: ShownQuery, width: int, one: OneResult | None = None) -> str:
    file = io.StringIO()
    draw_values(Console(file=file, width=width, color_system=None), case, values, one)
    return file.getvalue()


def tables(values: ShownQuery, one: OneResult | None = None) -> dict[str, Grid]:
    """The tables by the names of the vectors."""
    return {grid.title.partition("[")[0]: grid for grid in grids(values, one)}


def hidden(values: ShownQuery) -> list[str]:
    """Why the query does not attend to each key; "" if it does."""
    cells = tables(values)["keys"].columns["probability"][: values.work.call.total]
    return [cell.removeprefix("0, ") if isinstance(cell, str) else "" for cell in cells]


def place_of(values: ShownQuery) -> tuple[int, int, int | None]:
    return values.batch, values.head, values.token


def test_a_query_knows_its_place_and_what_hides_its_keys(tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path, RICH)
    values = shown(case, QueryPlace(batch=1, head=3, token=0))
    text = drawn(case, values, 120)
    assert "query       batch 1, head 3 (key/value head 1), token 0\n" in text
    assert re.search(r"(?m)^place +4, rotated by position \d+$", text)
    masks = ["", "", "", "", "", *["later than the query"] * 2, *["beyond the length"] * 2]
    assert hidden(values) == masks
    keys = tables(values)["keys"].columns
    past, new = [f"past {row}" for row in range(4)], [f"new {token}" for token in range(3)]
    assert keys["from"] == [*past, *new, "", "", ""]  # the last is the sink
    assert keys["position"][4] == str(query_position(values.work.call, 1, 0))
    later = shown(case, QueryPlace(batch=0, head=0, token=2))
    assert hidden(later) == ["before the window"] * 4 + [""] * 5


# Every case


def check(case: Case) -> str:
    """Check the values of one query of each legal step of ``case``; say why, if it has none."""
    bundle = prepare(case.call)
    if bundle.unjudged is not None:
        return bundle.unjudged
    for step in (number for number, each in enumerate(case.steps) if not each.refused):
        draw = np.random.RandomState(zlib.crc32(f"{case.id}/{step}".encode()))
        call = computed(bundle, step).call
        sizes = (call.batch_size, call.num_heads, call.sequence_length)
        asked = QueryPlace(step, *(draw.randint(size) if size else None for size in sizes))
        values = values_of(bundle, asked, None)
        assert (values.token is None) == (0 in sizes)
        shown_tables = tables(values)
        if values.token is not None:
            _check_query(case, values, values.token, shown_tables)
        for name in {"present_key", "present_value"} & {*shown_tables}:
            _check_row(values, name, shown_tables)
        arrays = arrays_of(bundle, step, None) or {}  # none where they are too large
        assert sum(array.nbytes for array in arrays.values()) < 1 << 30
    assert drawn(case, values, draw.choice([40, 80, 120])).startswith(f"{case.id}\n")
    return ""


def _expected(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """The expected numbers of a table, and which of them are defined."""
    cells = grid.columns.get("expected") or grid.columns["byte"]
    defined = np.array([not isinstance(cell, str) for cell in cells])
    return np.array([cell if ok else 0.0 for cell, ok in zip(cells, defined, strict=True)]), defined


def _check_query(case: Case, values: ShownQuery, token: int, shown_tables: dict[str, Grid]) -> None:
    work, batch = values.work, values.batch
    call, count = work.call, work.call.total
    attention, row = work.block_of(token)
    kv_head, member = values.head // work.group, values.head % work.group
    key, value = attention.key[batch, kv_head], attention.value[batch, kv_head]
    columns = {name: cells[:count] for name, cells in shown_tables["keys"].columns.items()}
    score = np.array(columns["score"], float)
    logit = np.array(columns.get("logit", score), float)
    probability = np.array([0.0 if isinstance(p, str) else p for p in columns["probability"]])
    place, length = int(call.query_starts[batch]) + token, call.lengths[batch]
    # the masks, from the lengths and the attributes alone
    attributes = attributes_of(case.call)
    window = int(attributes.get("local_window_size", -1))
    for j, why in enumerate(hidden(values)):
        seen = j < length and place < length
        seen = seen and (j <= place or attributes.get("causal") == 0)
        seen = seen and (window < 0 or j > place - window)
        assert seen == (why in ("", "bias is -inf")), (j, why)
        assert "logit" not in columns or (why == "") == bool(np.isfinite(logit[j])), (j, why)
        logit[j] = -math.inf if why else logit[j]
    # each number follows from those before it, and the last are the output
    close = {"rtol": 1e-11, "atol": 1e-11}
    query = attention.query[batch, kv_head, member, row]
    np.testing.assert_allclose(score, call.scale * key @ query, **close)
    cap = call.softcap
    capped = cap * np.tanh(score / cap) if cap else score
    np.testing.assert_allclose(np.array(columns.get("capped", score), float), capped, **close)
    there = np.isfinite(logit)
    biased = capped + np.array(columns["bias"], float) if "bias" in columns else capped
    np.testing.assert_allclose(logit[there], biased[there], **close)
    given, sink_probability = [*logit], []
    if call.sink is not None:
        # with a sink of NaN or infinity the row is undefined, and computed as with one of 0
        sink = call.sink[values.head]
        given.append(sink if sink < math.inf else 0.0)
        sink_probability = [shown_tables["keys"].columns["probability"][count]]
    exponentials = np.exp(np.array(given) - np.max(given, initial=-1e300))
    shares = exponentials / (exponentials.sum() or 1.0)
    np.testing.assert_allclose([*probability, *sink_probability], shares, **close)
    output = attention.output[batch, kv_head, member, row]
    summed = [math.fsum(probability * value[:, d]) for d in range(len(output))]
    atol = 1e-13 * max(np.abs(value).max(initial=0.0), 1e-300)
    np.testing.assert_allclose(output, summed, rtol=0, atol=atol)
    # what is defined, and what is expected there
    expected, defined = _expected(shown_tables["output"])
    assert (why_undefined(work, batch, values.head, token) == "") == defined.all() == defined.any()
    if defined.all():
        np.testing.assert_allclose(expected, output, rtol=0, atol=atol)
    if "output_qk" in shown_tables:
        expected, defined = _expected(shown_tables["output_qk"])
        mode = attributes.get("qk_output")  # None: output_qk was not asked for, and is undefined
        told = np.where(logit > -np.inf, logit, 0) if mode == 1 else probability
        np.testing.assert_allclose(expected, np.where(defined, told, 0.0), **close)


def _check_row(values: ShownQuery, name: str, shown_tables: dict[str, Grid]) -> None:
    columns = shown_tables[name].columns
    expected, defined = _expected(shown_tables[name])
    work, at = values.work, (values.batch, values.head // values.work.group)
    place = present_places(work.call)[values.batch, values.row]
    tokens = work.cache.key if name == "present_key" else work.cache.value
    stored = tokens.exact[(*at, place)]
    if "code" in columns:
        stored = np.array(columns["code"])
        assert np.array_equal(columns["stands for"], tokens.value[(*at, place)])
    if "byte" in columns:  # two codes of 4 bits; the last of an odd number is alone in its own
        pairs = np.pad(stored, (0, len(stored) % 2))
        stored = np.repeat(pairs[::2] + 8 + 16 * (pairs[1::2] + 8), 2)[: len(stored)]
    assert np.array_equal(expected[defined], stored[defined])


@pytest.mark.parametrize("case", ONE_OF_EACH_THEME, ids=lambda case: case.theme)
def test_a_case_of_each_theme_can_be_shown(case: Case) -> None:
    why = check(case)
    assert not why or case.contract.demands != "computes"


# Which query


def fault(output: str, index: Sequence[int], share: float = 9.0, **more: object) -> ResultRecord:
    """A result that is wrong at one element."""
    wrong = error(output=output, index=tuple(index), got=5.0, want=1.0, share=share, **more)
    return result("x", "cpu@1", "wrong", errors=(wrong,))


def of_file(case: Case, result: ResultRecord) -> OneResult:
    return OneResult(case_record(case), result, target("cpu@1"))


def test_without_an_element_it_is_the_last_token_that_is_not_padding(tmp_path: Path) -> None:
    (case,) = cases_of(
        tmp_path,
        "- {name: x, batch_size: 2, sequence_length: 4, total_sequence_lengths: [2, 4]}",
    )
    assert place_of(shown(case)) == (0, 0, 1)
    padding = shown(case, QueryPlace(token=3))
    assert {*hidden(padding)} == {"query is padding"}
    assert "undefined   the token is padding: these elements" in drawn(case, padding, 80)


@pytest.mark.parametrize(
    ("output", "index", "place"),
    [
        ("output", (1, 2, 49), (1, 3, 2)),
        ("present_key", (0, 1, 7, 3), (0, 2, 1)),  # row 7 is the new token 1
        ("present_value", (1, 1, 2, 3), (1, 2, 2)),  # row 2 is of the past: the last token
    ],
)
def test_it_is_the_query_of_the_worst_wrong_element(
    tmp_path: Path, output: str, index: tuple[int, ...], place: tuple[int, int, int]
) -> None:
    (case,) = cases_of(tmp_path, RICH)
    returned = of_file(case, fault(output, index))
    values = shown(case, None, returned)
    assert place_of(values) == place
    assert values.element == Element(output, index)
    vectors = tables(values, returned)
    (got,) = (cell for cell in vectors[output].columns["got"] if cell != "")
    assert got == 5.0
    assert [name for name, grid in vectors.items() if "got" in grid.columns] == [output]
    text = drawn(case, values, 120, returned)
    assert f"element     {output}[{', '.join(map(str, index))}]" in text
    (row,) = (line for line in text.splitlines() if "←" in line)
    assert " 5 " in row
    # what is within its budget, of the variant or not there at all is no reason to look there
    for other in (
        fault(output, index, share=0.5),
        fault(output, index).model_copy(update={"of_variant": True}),
        fault(output, (9, *index[1:])),
        fault("\x1b[31m", index),
        fault(output, index, step=-1),
    ):
        assert shown(case, None, of_file(case, other)).element is None


def test_options_go_before_the_element(tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path, RICH)
    returned = of_file(case, fault("output", (1, 1, 49)))
    for asked, place in (
        (QueryPlace(head=0), (1, 0, 1)),
        (QueryPlace(token=0), (1, 3, 0)),
        (QueryPlace(batch=0), (0, 3, 2)),
        (QueryPlace(0, 0, 0, 0), (0, 0, 0)),
    ):
        assert place_of(shown(case, asked, returned)) == place


def test_a_call_without_its_output_has_the_tables_of_the_presents() -> None:
    (case,) = find(["bounds_shapes/missing[dtype=float32,what=output]"]).named
    titles = [grid.title for grid in grids(values_of(prepare(case.call), QueryPlace(), None))]
    assert any(title.startswith("present_key[") for title in titles)


def test_a_step_of_a_loop() -> None:
    (case,) = find(["loop/chunks[dtype=float16]"]).named
    assert shown(case).step == 4
    assert shown(case, QueryPlace(step=1)).step == 1
    assert "step        1 of 0 … 4" in drawn(case, shown(case, QueryPlace(step=1)), 80)
    returned = of_file(case, fault("output", (0, 1, 20), step=2))
    values = shown(case, None, returned)
    assert (values.step, values.element) == (2, Element("output", (0, 1, 20)))
    assert shown(case, QueryPlace(step=1), returned).element is None


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_number_is_cut_off_in_any_terminal(tmp_path: Path, width: int) -> None:
    (case,) = cases_of(tmp_path, RICH)
    text = drawn(case, shown(case, None, of_file(case, fault("output", (1, 2, 49)))), width)
    tables = text.split("\n\n", 1)[1]
    assert max(map(len, tables.splitlines())) <= width
    assert not re.search(r"\S…", tables)


# The command


def test_a_target_is_run_and_its_whole_output_stands_beside(desk: Desk) -> None:
    runner = desk.runner("wrong_values")
    done = desk.gqa("show", "three.yaml::faulty", "--values", "--ep", runner)
    assert (done.status, done.err) == (0, "")
    assert re.search(r"(?m)^on +miniature@1\.0: wrong$", done.out)
    assert "element     output[0, 0, 63]" in done.out
    head, *rows = done.out.split("output[0, 0, 48 + d]\n")[1].split("\n\n")[0].splitlines()
    assert head.split() == ["d", "expected", "budget", "got", "share"]
    assert len(rows) == 16
    cells = rows[-1].split()
    assert (cells[0], cells[3], cells[5]) == ("15", "1000", "←")


def test_a_result_is_taken_from_a_file(gqa: Gqa, desk: Desk) -> None:
    (case,) = find([str(desk.folder / "three.yaml") + "::one"]).named
    judged = fault("present_key", (0, 1, 0, 7)).model_copy(
        update={"case": case.id, "target": "cpu@1.31.1", "reason": "It \x1b[31mran."}
    )
    file = desk.folder / "taken.jsonl"
    with writing(file, header([target("cpu@1.31.1")], 1, 1)) as writer:
        writer.case(case_record(case))
        writer.result(judged)
        writer.finish(complete=True)
    done = gqa("show", "three.yaml::one", "--values", "--results", "taken.jsonl")
    assert (done.status, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert "element     present_key[0, 1, 0, 7]" in done.out
    assert "has one element of each output" in done.out
    assert re.search(r"(?m)^7 .* 5 .*←$", done.out)
    at = gqa("show", "three.yaml::one", "--values", "--at", "present_value[0,1,0,7]")
    assert "element     present_value[0, 1, 0, 7]" in at.out


def test_an_output_of_another_dtype_or_shape_is_not_compared(tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path, RICH)
    right, _ = _expected(tables(shown(case))["output"])
    whole = np.zeros((2, 3, 64), np.float32)
    for strange, known in (
        (whole, True),
        (whole.astype("U"), False),
        (whole.astype(np.complex64), False),
        (whole[:, :2], False),
    ):
        recorded = of_file(case, fault("output", (0, 0, 0)))
        returned = dataclasses.replace(recorded, outputs=[{"output": strange}])
        values = shown(case, QueryPlace(0, 0, 0, 2), returned)
        vectors = tables(values, returned)
        assert ("got" in vectors["output"].columns) == known
        assert np.array_equal(_expected(vectors["output"])[0], right)
        assert "got" not in vectors["present_key"].columns
        drawn(case, values, 80, returned)
        assert ("got_output" in (arrays_of(prepare(case.call), 0, returned) or {})) == (
            strange.dtype == np.float32
        )
