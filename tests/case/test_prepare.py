"""What is made of a call: its files, what is expected of it, and that both are always the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_files import cases_of
from onnx import numpy_helper
from shipped import shipped_cases
from tables import tables

from conformance.base.array_types import NUMPY
from conformance.base.files import write_files
from conformance.bundle.prepare import Prepared, digest_of, prepare
from conformance.case.steps import steps_of
from conformance.operator.call import Call, checked_call
from conformance.run.assessment import job_for

TABLES = tables(__file__)

CALLS: dict[str, dict[str, Any]] = TABLES["calls"]

#: Digests of what runners read of these calls. A change here changes every case: new numbers, a
#: new model or a new oracle. That may be intended; then earlier results belong to other bundles.
DIGESTS = TABLES["digests"]

each_call = pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)


def written(call: Call, folder: Path) -> Prepared:
    """The call, whose files are in ``folder``."""
    made = prepare(call)
    write_files(folder, made.files)
    return made


def digests(call: Call) -> dict[str, str]:
    """The SHA-256 of each file, by its name."""
    return {name: sha256(content).hexdigest() for name, content in prepare(call).files.items()}


# What runners and other tools read


@each_call
def test_onnx_reads_each_file_as_the_graph_declares(fields: dict[str, Any], tmp_path: Path) -> None:
    made = written(checked_call(fields), tmp_path)
    model = onnx.load(str(tmp_path / "model.onnx"))
    onnx.checker.check_model(model)
    for step in steps_of(checked_call(fields)):
        folder = tmp_path / f"test_data_set_{step.index}"
        sides = {"input": model.graph.input, "output": model.graph.output}
        if made.unjudged is not None:
            sides["output"] = []  # type: ignore[assignment]
        assert len(list(folder.iterdir())) == sum(map(len, sides.values()))
        for side, values in sides.items():
            for position, value in enumerate(values):
                tensor = onnx.load_tensor(str(folder / f"{side}_{position}.pb"))
                declared = value.type.tensor_type
                assert tensor.name == value.name
                assert tensor.data_type == declared.elem_type
                assert len(tensor.dims) == len(declared.shape.dim), value.name
                for dim, size in zip(declared.shape.dim, tensor.dims, strict=True):
                    assert dim.WhichOneof("value") != "dim_value" or dim.dim_value == size
                assert tensor.HasField("raw_data")


def test_outputs_are_the_oracles_values_rounded_and_zero_where_undefined(tmp_path: Path) -> None:
    call = Call(sequence_length=4, batch_size=2, total_sequence_lengths=(4, 2), dtype="float16")
    made = written(call, tmp_path)
    (expected,) = made.expected
    assert list(expected) == ["output", "present_key", "present_value"]
    for position, (name, wanted) in enumerate(expected.items()):
        file = tmp_path / f"test_data_set_0/output_{position}.pb"
        array = numpy_helper.to_array(onnx.load_tensor(str(file)))
        undefined = np.isnan(wanted.unit)
        assert wanted.dtype == "float16"
        assert array.dtype == np.float16
        assert array.shape == wanted.value.shape == wanted.unit.shape
        assert undefined.any()
        assert not array[undefined].any(), name
        exact = wanted.value[~undefined].astype(np.float16)
        assert np.array_equal(array[~undefined], exact)


def test_the_past_of_a_later_call_is_the_oracles_present_of_the_one_before(tmp_path: Path) -> None:
    """For other tools; a run uses the runtime's own."""
    written(Call(loop=(2, 1), key_value="packed"), tmp_path)
    past = onnx.load_tensor(str(tmp_path / "test_data_set_1/input_1.pb"))
    present = onnx.load_tensor(str(tmp_path / "test_data_set_0/output_1.pb"))
    assert (past.name, present.name) == ("past_key", "present_key")
    assert past.raw_data == present.raw_data


def test_a_loop_is_judged_with_the_errors_of_its_own_presents() -> None:
    """Rows that a step carries over from the one before have the errors of that one."""
    first, second = prepare(Call(loop=(3, 1), rotary="half_split")).expected
    before, after = first["present_key"].unit, second["present_key"].unit
    assert (before > 0).all()
    assert np.array_equal(after[:, :, :3], before)


def test_steps_list_what_is_read_carried_and_shared() -> None:
    first, second = prepare(checked_call(CALLS["bfloat16 loop in a shared buffer"])).steps[:2]
    carry = {"past_key": "present_key", "past_value": "present_value"}
    share = {"present_key": "past_key", "present_value": "past_value"}
    assert (first.carry, second.carry) == ({}, carry)
    assert first.share == second.share == share
    assert first.files.keys() - second.files.keys() == {"past_key", "past_value"}
    assert second.files["query"] == "test_data_set_1/input_0.pb"
    plain = prepare(Call()).steps[0]
    assert (plain.carry, plain.share) == ({}, {})


def test_an_undefined_call_has_no_values_and_a_reason(tmp_path: Path) -> None:
    made = written(Call(num_heads=3), tmp_path)
    assert made.expected == ({},)
    assert made.unjudged.startswith("num_heads 3 must be a positive multiple of kv_num_heads 2")
    assert not list(tmp_path.rglob("output_*.pb"))


def test_an_output_is_bound_to_an_input_that_no_node_reads(tmp_path: Path) -> None:
    shape = [1, 2, "total_sequence_length", 16]
    fields = {"past_sequence_length": 3, "max_sequence_length": 8, "cache_dtype": "int8"}
    call = checked_call({**fields, "outputs": {"present_key": {"buffer": shape}}})
    made = written(call, tmp_path)
    (step,) = made.steps
    assert step.share == {"present_key": "present_key_buffer"}
    buffer = onnx.load_tensor(str(tmp_path / step.files["present_key_buffer"]))
    assert not numpy_helper.to_array(buffer).any()
    declared = made.script.model.graph.input[-1]
    assert declared.name == buffer.name == "present_key_buffer"
    dims = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
    assert dims == list(buffer.dims) == [1, 2, 4, 16]
    assert declared.type.tensor_type.elem_type == buffer.data_type == onnx.TensorProto.INT8
    assert buffer.name not in made.script.model.graph.node[0].input


def test_a_loop_carries_codes_and_their_errors() -> None:
    """A key that may have either of two codes stays uncertain in the later steps."""
    kinds: dict[str, Any] = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    call = checked_call(
        {
            "dtype": "float16",
            "cache_dtype": "int8",
            "rotary": "half_split",
            "loop": (8, 1),
            "seed": 5,
            **kinds,
        }
    )
    first, second = (step["present_key"] for step in prepare(call).expected)
    np.testing.assert_array_equal(second.value[:, :, :8], first.value)
    np.testing.assert_allclose(second.unit[:, :, :8], first.unit)
    assert set(np.unique(first.unit)) == {0.0, 1.0}


def test_a_loop_that_becomes_undefined_has_no_values(tmp_path: Path) -> None:
    """The second step is beyond the buffer: the first is not judged either."""
    made = written(Call(loop=(4, 4, 1), max_sequence_length=6), tmp_path)
    assert made.unjudged is not None
    assert made.expected == ({}, {}, {})
    assert not list(tmp_path.rglob("output_*.pb"))
    assert not (tmp_path / "test_data_set_2/input_3.pb").exists()  # no past for the first step


# Reproducibility


@pytest.mark.parametrize("name", CALLS)
def test_what_is_prepared_never_changes(name: str) -> None:
    digest = sha256()
    for file, content in sorted(prepare(checked_call(CALLS[name])).files.items()):
        if file.endswith((".onnx", ".pb")):
            digest.update(f"{file}\n".encode() + content)
    assert digest.hexdigest() == DIGESTS[name]


def test_another_process_makes_the_same_bytes() -> None:
    """In another order, with another hash seed, locale, time zone and number of threads."""
    code = (
        "import json, sys; from test_prepare import checked_call, digests\n"
        "print(json.dumps([digests(checked_call(json.loads(text))) for text in sys.argv[1:]]))\n"
    )
    calls = [checked_call(fields) for fields in CALLS.values()]
    other = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Asia/Kathmandu", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), *sys.path])
    said = subprocess.check_output(
        [sys.executable, "-c", code, *(call.json() for call in reversed(calls))],
        env={**os.environ, **other, "PYTHONPATH": path},
        timeout=60,
    )
    here = [digests(call) for call in calls]
    assert json.loads(said) == here[::-1]


ODD = (0.0, -0.0, float("inf"), float("-inf"), float("nan"))


@pytest.mark.parametrize(
    "others",
    [
        [{}, {"dtype": "float16"}, {"seed": 1}, {"loop": (1, 1)}, {"softcap": 0.5}],
        [{}, {"inputs": {"k_norm_weight": "omitted"}}, {"outputs": {"output_qk": "omitted"}}],
        [{"attributes": {"scale": scale}} for scale in (None, 1, 1.0, *ODD)],
        [{"softcap": value} for value in ODD],
        [{"inputs": {"query": {"data": [value]}}} for value in ODD],
        [{"inputs": {"query": {"values": {"kind": "constant", "value": v}}}} for v in ODD],
    ],
    ids=["fields", "inputs and outputs", "attribute", "float", "data", "constant"],
)
def test_every_field_infinity_and_nan_change_the_digest(others: list[dict[str, Any]]) -> None:
    """Every field changes the digest and infinities and NaN differ."""
    calls = [checked_call(fields) for fields in others]
    assert len({digest_of(call) for call in calls}) == len(others)
    for call in calls:
        text = call.json()
        json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_every_shipped_case_has_a_digest_of_its_own() -> None:
    cases = shipped_cases()
    assert len({digest_of(case.call, case.relation) for case in cases}) == len(cases)


# What is asked of the oracle, and when


BODY = """
- {name: plain}
- {name: loop, loop: [2, 1, 1], max_sequence_length: 9}
- {name: scores, qk_output: 1, sequence_length: 40, head_size: 8}
- {name: variant, relation: scale_in_query, scale: 0.25}
- {name: bound, sequence_length: 3, past_sequence_length: 2, query_seqlens: [1],
   total_sequence_length: 900}
"""


def test_only_the_suites_own_runners_get_no_outputs(tmp_path: Path) -> None:
    for case in cases_of(tmp_path, BODY):
        made = prepare(case.call)
        for only_inputs in (True, False):
            files = job_for(case, made, only_inputs=only_inputs).files
            assert ("test_data_set_0/output_0.pb" in files) is not only_inputs


def test_outputs_have_the_room_that_runners_are_promised(tmp_path: Path) -> None:
    """runners/README.md; before it is known how large the expected outputs are."""
    for case in (*cases_of(tmp_path, BODY), *shipped_cases()[::97]):
        made = prepare(case.call)
        inputs = sum(len(made.inputs[name]) for name in made.inputs if name.endswith(".pb"))
        outputs = sum(
            each.value.size * NUMPY[each.dtype].itemsize
            for step in made.expected
            for each in step.values()
        )
        job = job_for(case, made, only_inputs=True)
        assert job.most_output_bytes >= (16 << 20) + 32 * (inputs + outputs), case.id
