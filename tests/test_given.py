"""Cases whose input values a file gives (``values_from``)."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from as_user import Gqa
from case_files import cases_of, complaints, entries

from conformance.base.array_types import NUMPY
from conformance.bundle.inputs import draw_inputs
from conformance.bundle.prepare import digest_of, prepare
from conformance.bundle.sensitivity import effects
from conformance.case.call import Call, GivenCall
from conformance.case.case import Case
from conformance.case.given import GivenError, given_inputs, write_given
from conformance.case.tensors import steps_of
from conformance.run import recipes
from conformance.run.records import case_record, corpus_digest

ENTRY = """\
  - name: given
    sequence_length: 3
    past_sequence_length: 2
    contract: {demands: computes, source: a document}
    values_from: values.npz
"""


def values(**fields: Any) -> dict[str, np.ndarray]:
    """The inputs of such a call, with other values than it would have drawn."""
    call = Call(sequence_length=3, past_sequence_length=2, seed=7, **fields)
    return draw_inputs(call, steps_of(call)[0])


def given(folder: Path, arrays: dict[str, np.ndarray], entry: str = ENTRY) -> Case:
    write_given(folder / "values.npz", arrays)
    (case,) = cases_of(folder, entry)
    return case


def test_the_values_are_those_of_the_file(tmp_path: Path) -> None:
    arrays = values()
    case = given(tmp_path, arrays)
    assert isinstance(case.call, GivenCall)
    found = draw_inputs(case.call, case.steps[0])
    assert found.keys() == arrays.keys()
    assert all((found[name] == arrays[name]).all() for name in arrays)
    bundle = prepare(case.call)
    assert bundle.unjudged is None
    assert effects(case.call) == {}  # nobody chose the values so that a fault shows
    assert bundle.expected[0]["present_key"].value[0, 0, 0, 0] == arrays["past_key"][0, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cache", ["int8", "float8e4m3fn"])
def test_every_dtype(tmp_path: Path, dtype: str, cache: str) -> None:
    fields = {"dtype": dtype, "cache_dtype": cache}
    scales = "k_quant_type: PER_TENSOR, v_quant_type: PER_TENSOR"
    arrays = values(**fields, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")
    more = f"    dtype: {dtype}\n    cache_dtype: {cache}\n"
    more += "".join(f"    {each.strip()}\n" for each in scales.split(","))
    case = given(tmp_path, arrays, ENTRY + more)
    assert isinstance(case.call, GivenCall)
    found = given_inputs(case.call, case.steps[0])
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes()
    assert found["past_key"].dtype == NUMPY[cache]


def test_other_values_are_another_case(tmp_path: Path) -> None:
    """The name of the bundle, and of a run, does not depend on where the file is."""
    (tmp_path / "elsewhere").mkdir()
    one, other = given(tmp_path, values()), given(tmp_path / "elsewhere", values())
    assert digest_of(one.call) == digest_of(other.call)
    changed = values()
    changed["query"][0, 0, 0] += 1
    third = given(tmp_path, changed)
    assert digest_of(third.call) != digest_of(one.call)
    assert corpus_digest([third]) != corpus_digest([one])


def test_a_file_that_changes_after_loading_is_not_used(tmp_path: Path) -> None:
    arrays = values()
    case = given(tmp_path, {**arrays, "query": arrays["query"] / 3})
    write_given(tmp_path / "values.npz", {**values(), "query": values()["query"] + 1})
    with pytest.raises(GivenError, match=r"has changed since the case was loaded; run it again"):
        prepare(case.call)


def test_the_record_says_where_the_values_are_from(tmp_path: Path) -> None:
    record = case_record(given(tmp_path, values()))
    for tensor in record.call.inputs:
        if tensor.state == "connected":
            assert str(tensor.values).startswith("from the file values.npz (SHA-256 ")


def test_few_values_are_listed_and_many_are_in_the_bundle(
    gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-alone program can only have those that are listed."""
    case = given(tmp_path, values())
    recipe = case_record(case).call.inputs[0].recipe
    assert recipe is not None
    assert recipe.numbers == tuple(values()["query"].astype(float).ravel().tolist())
    monkeypatch.setattr(recipes, "MOST_NUMBERS", 10)
    assert case_record(case).call.inputs[0].recipe is None
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("needs onnxruntime")
    done = gqa("export", f"{case.file}::given", str(tmp_path / "out"), "--ep", "cpu")
    assert done.status == 0, done.both
    assert (
        "Program: there is none. Its input values are those of a file: the bundle has" in done.out
    )


def test_the_case_is_shown(gqa: Gqa, tmp_path: Path) -> None:
    arrays = values()
    arrays["query"][...] = 0.25
    case = given(tmp_path, arrays)
    done = gqa("show", f"{case.file}::given")
    assert done.status == 0, done.both
    assert "0.25 … 0.25" in done.out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": np.zeros((1, 4, 64), np.float32)}, "query has the shape (1, 4, 64); the fields"),
        ({"query": np.zeros((1, 3, 64), np.float16)}, "query is float16; the fields of the case s"),
        ({"query": np.zeros((1, 3, 64), object)}, "query is object; the fields of the case say f"),
        ({"query": np.zeros((1, 3, 64), "f4", "F")}, "query is stored column by column; save a"),
        ({"head_sink": np.zeros(4, np.float32)}, "has head_sink, key, past_key, past_value, query"),
        ({"query": None}, "total_sequence_length and value; the call has the inputs"),
    ],
    ids=[str(number) for number in range(6)],
)
def test_arrays_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in {**values(), **change}.items() if array is not None}
    np.savez(tmp_path / "values.npz", **arrays)
    (complaint,) = complaints(tmp_path, entries(ENTRY))
    assert message in complaint


def header(shape: tuple[int, ...], version: tuple[int, int] = (1, 0)) -> bytes:
    written = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, described)
    return b"\x93NUMPY" + bytes(version) + written.getvalue()[8:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a"),
        (b"nonsense", "query "),
        (header((1, 3, 64)), "query has not the 768 bytes that its shape needs"),
        (header((10**6, 10**6, 10**6)), "query has the shape (1000000, 1000000, 1000000); the"),
        (header((1, 3, 64), (3, 0)), "query is in version (3, 0) of NumPy's format; 1.0 and 2.0"),
        (header((1, 3, 64)) + b"\0" * 10**8, "query has not the 768 bytes that its shape needs"),
    ],
    ids=["empty", "nonsense", "cut", "huge", "version", "bomb"],
)
def test_damaged_and_hostile_files(tmp_path: Path, content: bytes, message: str) -> None:
    """None takes memory or time, and none ends in a traceback."""
    write_given(tmp_path / "values.npz", values())
    with zipfile.ZipFile(tmp_path / "values.npz") as archive:
        whole = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "values.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in whole.items():
            archive.writestr(name, content if name == "query.npy" else array)
    (complaint,) = complaints(tmp_path, entries(ENTRY))
    assert "values.npz" in complaint
    assert message in complaint or content == b""


@pytest.mark.parametrize("content", [None, b"", b"PK\3\4 and more", b"\0" * 1000])
def test_files_that_are_no_archives(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "values.npz").write_bytes(content)
    (complaint,) = complaints(tmp_path, entries(ENTRY))
    wanted = "cannot be read: No such file" if content is None else "is not an .npz file, or a dam"
    assert wanted in complaint
    assert complaint.startswith("10:18: ")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("seed: 3", "seed cannot stand beside values_from: the values are not drawn"),
        ("loop: [3, 1]", "loop cannot stand beside values_from: a file has the values of one call"),
        (
            "relation: packed_qkv",
            "relation cannot stand beside values_from: a variant needs values",
        ),
        ("inputs: {query: {values: {kind: constant}}}", "query has its values from the file that"),
    ],
)
def test_what_cannot_stand_beside_it(tmp_path: Path, field: str, message: str) -> None:
    write_given(tmp_path / "values.npz", values())
    found = complaints(tmp_path, entries(f"{ENTRY}    {field}\n"))
    assert any(message in complaint.replace("'", "") for complaint in found), found


def test_a_missing_file_is_told_when_it_is_read(tmp_path: Path) -> None:
    case = given(tmp_path, values())
    (tmp_path / "values.npz").unlink()
    assert isinstance(case.call, GivenCall)
    with pytest.raises(GivenError, match="cannot be read: No such file"):
        given_inputs(case.call, case.steps[0])
