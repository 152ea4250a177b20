"""``gqa show --values``: the oracle's values of a query, checked with arithmetic of their own."""

from __future__ import annotations

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
from conformance.bundle.values import computation_of
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.case.tensors import attributes_of
from conformance.cli.values import draw_values
from conformance.report.values import (
    Element,
    QueryPlace,
    Returned,
    Values,
    arrays_of,
    values_of,
)
from conformance.results.records import ResultRecord
from conformance.run.records import case_record

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


def shown(case: Case, asked: QueryPlace | None = None, returned: Returned | None = None) -> Values:
    return values_of(case, prepare(case.call), asked or QueryPlace(), returned)


def drawn(case: Case, values: Values, width: int, returned: Returned | None = None) -> str:
    file = io.StringIO()
    draw_values(Console(file=file, width=width, color_system=None), case, values, returned)
    return file.getvalue()


def test_a_query_knows_its_place_and_what_hides_its_keys(tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path, RICH)
    query = shown(case, QueryPlace(batch=1, head=3, token=0)).query
    assert query is not None
    assert (query.place, query.kv_head, query.call.lengths[1]) == (4, 1, 7)
    masks = ["", "", "", "", "", "causal", "causal", "no token", "no token"]
    assert list(query.keys.hidden) == masks
    assert list(query.keys.past_row[:4]) == [0, 1, 2, 3]
    assert list(query.keys.new_token[4:7]) == [0, 1, 2]
    assert query.position == query.keys.position[4]
    later = shown(case, QueryPlace(batch=0, head=0, token=2)).query
    assert later is not None
    assert list(later.keys.hidden) == ["window"] * 4 + [""] * 5


# Every case


def check(case: Case) -> str:
    """Check the values of one query of each step of ``case``; say why, if it has none."""
    bundle = prepare(case.call)
    if bundle.unjudged is not None:
        return bundle.unjudged
    for step in range(len(case.steps)):
        draw = np.random.RandomState(zlib.crc32(f"{case.id}/{step}".encode()))
        call = computation_of(case.call, bundle, step).call
        sizes = (call.batch_size, call.num_heads, call.sequence_length)
        asked = QueryPlace(step, *(draw.randint(size) if size else None for size in sizes))
        values = values_of(case, bundle, asked, None)
        assert (values.query is None) == (0 in sizes)
        _check_query(case, values)
        _check_row(values)
        arrays = arrays_of(case, bundle, step, None) or {}  # none where they are too large
        assert sum(array.nbytes for array in arrays.values()) < 1 << 30
    assert drawn(case, values, draw.choice([40, 80, 120])).startswith(f"{case.id}\n")
    return ""


def _check_query(case: Case, values: Values) -> None:
    query = values.query
    if query is None:
        return
    keys, length = query.keys, query.call.lengths[query.batch]
    # the masks, from the lengths and the attributes alone
    attributes = attributes_of(case.call)
    window = int(attributes.get("local_window_size", -1))
    for j, why in enumerate(keys.hidden):
        seen = j < length and query.place < length
        seen = seen and (j <= query.place or attributes.get("causal") == 0)
        seen = seen and (window < 0 or j > query.place - window)
        assert seen == (why in ("", "bias")), (j, why)
        assert (why == "") == bool(np.isfinite(keys.logit[j])), (j, why)
        assert why == "" or keys.probability[j] == 0.0
    # each number follows from those before it, and the last are the output
    close = {"rtol": 1e-11, "atol": 1e-11}
    np.testing.assert_allclose(
        keys.score, query.call.scale * keys.key @ query.query.rotated, **close
    )
    cap = query.call.softcap
    capped = cap * np.tanh(keys.score / cap) if cap else keys.score
    np.testing.assert_allclose(keys.capped, capped, **close)
    there = np.isfinite(keys.logit)
    biased = capped if keys.bias is None else capped + keys.bias
    np.testing.assert_allclose(keys.logit[there], biased[there], **close)
    sink = -math.inf if query.sink is None else query.sink
    # with a sink of NaN or infinity the row is undefined, and computed as with one of 0
    given = [*keys.logit, sink if sink < math.inf else 0.0]
    exponentials = np.exp(given - np.max(given, initial=-1e300))
    shares = exponentials / (exponentials.sum() or 1.0)
    np.testing.assert_allclose([*keys.probability, query.sink_probability], shares, **close)
    summed = [math.fsum(keys.probability * keys.value[:, d]) for d in range(len(query.output))]
    scale = np.abs(keys.value).max(initial=0.0)
    np.testing.assert_allclose(query.output, summed, rtol=0, atol=1e-13 * max(scale, 1e-300))
    # what is defined, and what is expected there
    if "output" in values.outputs:
        output = values.outputs["output"]
        defined = ~np.isnan(output.budget)
        assert (query.undefined == "") == defined.all() == defined.any()
        if defined.all() or "mask hides" in query.undefined:
            # BLAS rounds by its number of threads, which may have been another for the bundle
            atol = 1e-13 * max(scale, 1e-300)
            np.testing.assert_allclose(output.expected, query.output, rtol=0, atol=atol)
        else:
            assert not output.expected.any()
    if "output_qk" in values.outputs:
        qk = values.outputs["output_qk"]
        defined = ~np.isnan(qk.budget)
        mode = attributes.get("qk_output")  # None: output_qk was not asked for, and is undefined
        told = np.where(keys.logit > -np.inf, keys.logit, 0) if mode == 1 else keys.probability
        np.testing.assert_allclose(qk.expected, np.where(defined, told, 0.0), **close)


def _check_row(values: Values) -> None:
    row = values.row
    if row is None:
        return
    for name, head in (("present_key", row.key), ("present_value", row.value)):
        if name not in values.outputs:
            continue
        expected = values.outputs[name].expected
        stored = head.exact if head.code is None else head.code
        if head.code is not None and values.query is not None:
            keys = values.query.keys
            used = keys.key if name == "present_key" else keys.value
            assert np.array_equal(head.stored, used[row.place])
        if len(expected) != len(stored):
            # two codes of 4 bits in a byte; the last of an odd number is alone in its own
            stored = np.pad(stored, (0, len(stored) % 2))
            stored = stored[::2] + 8 + 16 * (stored[1::2] + 8)
        defined = ~np.isnan(values.outputs[name].budget)
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


def of_file(result: ResultRecord) -> Returned:
    return Returned("cpu@1", "cpu", result, None)


def test_without_an_element_it_is_the_last_token_that_is_not_padding(tmp_path: Path) -> None:
    (case,) = cases_of(
        tmp_path,
        "- {name: x, batch_size: 2, sequence_length: 4, total_sequence_lengths: [2, 4]}",
    )
    query = shown(case).query
    assert query is not None
    assert (query.batch, query.head, query.token) == (0, 0, 1)
    padding = shown(case, QueryPlace(token=3)).query
    assert padding is not None
    assert (padding.undefined, set(padding.keys.hidden)) == ("the token is padding", {"padding"})
    assert "undefined" in drawn(case, shown(case, QueryPlace(token=3)), 80)


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
    returned = of_file(fault(output, index))
    values = shown(case, None, returned)
    query = values.query
    assert query is not None
    assert (query.batch, query.head, query.token) == place
    assert values.element == Element(output, index)
    vector = values.outputs[output]
    (at,) = np.flatnonzero(vector.known)
    assert (*vector.first[:-1], vector.first[-1] + at) == index
    assert vector.got[at] == 5.0
    for name in {*values.outputs} - {output}:
        assert not values.outputs[name].known.any()
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
        assert shown(case, None, of_file(other)).element is None


def test_options_go_before_the_element(tmp_path: Path) -> None:
    (case,) = cases_of(tmp_path, RICH)
    returned = of_file(fault("output", (1, 1, 49)))
    for asked, place in (
        (QueryPlace(head=0), (1, 0, 1)),
        (QueryPlace(token=0), (1, 3, 0)),
        (QueryPlace(batch=0), (0, 3, 2)),
        (QueryPlace(0, 0, 0, 0), (0, 0, 0)),
    ):
        query = shown(case, asked, returned).query
        assert query is not None
        assert (query.batch, query.head, query.token) == place


def test_a_step_of_a_loop() -> None:
    (case,) = find(["loop/chunks[dtype=float16]"]).named
    assert shown(case).step == 4
    assert shown(case, QueryPlace(step=1)).step == 1
    assert "step        1 of 0 … 4" in drawn(case, shown(case, QueryPlace(step=1)), 80)
    returned = of_file(fault("output", (0, 1, 20), step=2))
    values = shown(case, None, returned)
    assert (values.step, values.element) == (2, Element("output", (0, 1, 20)))
    assert shown(case, QueryPlace(step=1), returned).element is None


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_number_is_cut_off_in_any_terminal(tmp_path: Path, width: int) -> None:
    (case,) = cases_of(tmp_path, RICH)
    text = drawn(case, shown(case, None, of_file(fault("output", (1, 2, 49)))), width)
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
    right = shown(case).outputs["output"].expected
    whole = np.zeros((2, 3, 64), np.float32)
    for strange, known in (
        (whole, True),
        (whole.astype("U"), False),
        (whole.astype(np.complex64), False),
        (whole[:, :2], False),
    ):
        returned = Returned("x", "cpu", fault("output", (0, 0, 0)), [{"output": strange}])
        values = shown(case, QueryPlace(0, 0, 0, 2), returned)
        assert values.outputs["output"].known.all() == known
        assert values.outputs["output"].known.any() == known
        assert np.array_equal(values.outputs["output"].expected, right)
        assert not values.outputs["present_key"].known.any()
        drawn(case, values, 80, returned)
        assert ("got_output" in arrays_of(case, prepare(case.call), 0, returned)) == (
            strange.dtype == np.float32
        )
