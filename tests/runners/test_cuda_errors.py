"""How the runner for ONNX Runtime tells an error of the device from a rejection."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from spoken_runner import ANSWERS, Modules, importing, step
from tables import tables

TABLES = tables(__file__)

CUDA = "CUDAExecutionProvider"
PLACE = (
    "GPU=0 ; hostname=box-17.example ; "
    "file=/onnxruntime_src/onnxruntime/core/providers/cuda/gpu_data_transfer.cc ; line=63 ; "
    "expr=cudaMemcpyAsync(dst_data, src_data, bytes, cudaMemcpyDeviceToHost, stream);"
)
NODE = "Non-zero status code returned while running GroupQueryAttention node. Name:'' "

#: What ONNX Runtime says, and the error in it: its name, and whether the process is lost.
MESSAGES = {
    text.replace("PLACE", PLACE).replace("NODE", NODE): (error, is_sticky)
    for text, error, is_sticky in TABLES["errors"]
}


module = importing("onnxruntime")


@pytest.mark.parametrize("message", MESSAGES)
def test_an_error_of_the_device_is_recognised(module: Modules, message: str) -> None:
    assert module("cuda_errors").classify(message) == MESSAGES[message]


@pytest.mark.parametrize("message", TABLES["rejections"])
def test_a_rejection_is_no_error_of_the_device(module: Modules, message: str) -> None:
    rejected = {"outcome": "rejected", "stage": "run", "step": 0, "code": "FAIL"}
    rejected["message"] = message
    assert module("cuda_errors").classify(message) is None
    assert module("cuda_errors").answer_of(rejected) == rejected


@pytest.mark.parametrize("message", [*MESSAGES, "failed ; GPU=0 ; hostname=box-17.example"])
def test_the_name_of_the_machine_stays_there(module: Modules, message: str) -> None:
    without = module("cuda_errors").without_host(message)
    assert "box-17" not in without
    assert without == message.replace("hostname=box-17.example", "hostname=…")


class Session(SimpleNamespace):
    """A session whose end can be watched."""


def answered(
    module: Modules,
    provider: str,
    compute: Callable[..., Any],
    to_host: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """The answer of the runner for a case of one step, which does what ``compute`` does.

    ``to_host`` copies its output from the device.
    """
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    runner, execution = module("runner"), module("ort_execution")
    session = Session(inputs_meta=[], outputs_meta=[SimpleNamespace(name="y")])
    runtime = SimpleNamespace(memory=to_host and SimpleNamespace(to_host=to_host))
    case = execution.Case(runtime, session, [step({})], [{}], "/")
    case.compute = compute
    cases = [case]
    session_there = weakref.ref(session)
    del case, session
    target = object.__new__(runner.Target)
    target.missing = target.runtime = None
    target.provider = SimpleNamespace(name=provider)
    target.execution = SimpleNamespace(
        run_case=lambda runtime, request: cases.pop().run(0), Rejected=execution.Rejected
    )
    answer: dict[str, Any] = target.answer({"cmd": "run"})
    ANSWERS.validate({"id": 1, **answer})
    # It lives as long as the process only where its end could abort the process.
    assert (session_there() is not None) == answer.get("replace_process", False)
    return answer


def raising(message: str) -> Callable[..., Any]:
    def run(*arguments: object) -> Any:
        raise RuntimeError(message)

    return run


def test_a_sticky_error_is_a_crash(module: Modules) -> None:
    message = next(iter(MESSAGES))
    crash = {
        "outcome": "crashed",
        "step": 0,
        "ended": "cudaErrorIllegalAddress",
        "message": message.replace("box-17.example", "…"),
        "replace_process": True,
    }
    failing = raising(message)
    assert answered(module, CUDA, failing) == crash
    # It may come with the copy of an output.
    copied = answered(module, CUDA, lambda *arguments: (["y"], 0.0), failing)
    assert copied == crash


def test_another_error_is_rejected_and_replaces_a_devices_process(module: Modules) -> None:
    """Another error is a rejection and replaces only the process of a device."""
    for provider, message in (
        (CUDA, f"{NODE}Status Message: CUDA error cudaErrorInvalidValue:invalid argument"),
        ("CPUExecutionProvider", "Failed to allocate memory for requested buffer of size 8589934"),
    ):
        answer = answered(module, provider, raising(message))
        assert (answer["outcome"], answer["message"]) == ("rejected", message)
        assert answer.get("replace_process", False) is (provider == CUDA)


def test_only_an_error_of_the_device_ends_a_step_that_may_be_rejected(module: Modules) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    execution = module("ort_execution")
    runtime = SimpleNamespace(memory=None, provider=SimpleNamespace(name=CUDA))
    session = SimpleNamespace(outputs_meta=[])
    case = execution.Case(runtime, session, [step({}, may_be_rejected=True)], [{}], "/")
    case.compute = raising("seqlens_k[0] = 4000 is out of range")
    assert case.run(0) == (["seqlens_k[0] = 4000 is out of range"], 0.0)
    case.compute = raising(next(iter(MESSAGES)))
    with pytest.raises(execution.Rejected):
        case.run(0)
