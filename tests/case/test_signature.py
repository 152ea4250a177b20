"""The operator's signature, compared with the installed ONNX Runtime and the models."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from packaging.version import Version

from conformance.operator.call import CALL_FIELDS
from conformance.operator.signature import (
    ATTRIBUTE_BY_NAME,
    ATTRIBUTES,
    DOMAIN,
    INPUTS,
    OP_TYPE,
    OPSET_VERSION,
    OUTPUTS,
    TYPES,
)

TENSORS = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(float8e4m3fn)": "float8e4m3fn",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


@pytest.fixture(scope="module")
def installed() -> Version:
    """The version of the installed ONNX Runtime, without any suffix after the numbers."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    return Version(Version(onnxruntime.__version__).base_version)


@pytest.fixture(scope="module")
def schema(installed: Version) -> Any:
    """The operator's schema in the installed ONNX Runtime."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    found = [s for s in state.get_all_operator_schema() if (s.domain, s.name) == (DOMAIN, OP_TYPE)]
    assert len(found) == 1
    return found[0]


def had(entries: Any, installed: Version) -> list[Any]:
    return [entry for entry in entries if Version(entry.since) <= installed]


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_parameters_are_those_of_onnxruntime(side: str, schema: Any, installed: Version) -> None:
    """Also fails if a newer ONNX Runtime has one that the table lacks."""
    table = had({"inputs": INPUTS, "outputs": OUTPUTS}[side], installed)
    theirs = getattr(schema, side)
    assert [p.name for p in table] == [p.name for p in theirs]
    cache_type = "T_CACHE" in {constraint.type_param_str for constraint in schema.type_constraints}
    for ours, its in zip(table, theirs, strict=True):
        wanted = TYPES[ours.type] if cache_type or ours.type != "T_CACHE" else TYPES["T"]
        assert {TENSORS[name] for name in its.types} == set(wanted), ours.name


def test_optional_parameters_are_optional(schema: Any, installed: Version) -> None:
    if installed < Version("1.27"):
        pytest.skip("the presents are required by schemas before 1.27")
    for ours, its in zip(
        [*had(INPUTS, installed), *had(OUTPUTS, installed)],
        [*schema.inputs, *schema.outputs],
        strict=True,
    ):
        assert ours.required == (its.option.name == "Single"), ours.name


def test_attributes_are_those_of_the_installed_onnxruntime(schema: Any, installed: Version) -> None:
    table = had(ATTRIBUTES, installed)
    assert {a.name for a in table} == set(schema.attributes), (
        "edit ATTRIBUTES in conformance/operator/signature.py; CONTRIBUTING.md has the steps"
    )
    for ours in table:
        its = schema.attributes[ours.name]
        assert (ours.kind.upper(), ours.required) == (its.type.name, its.required), ours.name
        assert ours.default == pytest.approx(default_of(its)), ours.name


def default_of(attribute: Any) -> Any:
    if not attribute._default_value:
        return None
    value = onnx.helper.get_attribute_value(
        onnx.AttributeProto.FromString(attribute._default_value)
    )
    return value.decode() if isinstance(value, bytes) else value


def test_types_are_those_of_the_installed_onnxruntime(schema: Any) -> None:
    for constraint in schema.type_constraints:
        words = {TENSORS[name] for name in constraint.allowed_type_strs}
        assert words == set(TYPES[constraint.type_param_str])
    assert schema.since_version == OPSET_VERSION


def test_each_attribute_is_a_field_or_follows_from_one() -> None:
    """do_rotary and rotary_interleaved are the field rotary."""
    fields = set(CALL_FIELDS) | {"do_rotary", "rotary_interleaved"}
    missing = set(ATTRIBUTE_BY_NAME) - fields
    assert not missing, f"add a field to Call in conformance/operator/call.py: {sorted(missing)}"
