"""Cases whose input values a file gives (``values_from``)."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import cases_of, write_given

from conformance.base.array_types import NUMPY
from conformance.base.yaml_source import InputError
from conformance.bundle.effects import effects
from conformance.bundle.inputs import draw_inputs
from conformance.bundle.prepare import digest_of, prepare
from conformance.case.case import Case
from conformance.case.given import GivenError, given_inputs
from conformance.case.steps import steps_of
from conformance.operator.call import GivenCall, checked_call
from conformance.run.recording import corpus_digest

ENTRY = """\
  - name: given
    sequence_length: 3
    past_sequence_length: 2
    contract: {demands: computes, source: a document}
    values_from: values.npz
"""


def values(**fields: Any) -> dict[str, np.ndarray]:
    """The inputs of such a call, with other values than it would have drawn."""
    call = checked_call({"sequence_length": 3, "past_sequence_length": 2, "seed": 7, **fields})
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


def test_another_version_of_the_format_is_not_read(tmp_path: Path) -> None:
    arrays = values()
    with zipfile.ZipFile(tmp_path / "values.npz", "w") as archive:
        for name in arrays:
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(99))
    with pytest.raises(InputError, match=r"query is in version \(2, 0\) of NumPy's format"):
        cases_of(tmp_path, ENTRY)
