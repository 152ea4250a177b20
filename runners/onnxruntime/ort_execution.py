"""One case on ONNX Runtime: load, run, write the outputs, prove where the node ran.

Tensors are passed as ``OrtValue`` with their ONNX type and their raw bits: NumPy alone supports
neither bfloat16 nor float8, and one path for every dtype is easier to trust than two. The calls use
the objects of ``onnxruntime_pybind11_state`` inside the public classes (the same ones from 1.20 to
1.31): the checks of the public classes cost more than a small case itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from answers import Files, repeated, shortened, write_outputs
from availability import Unavailable
from ort_memory import DeviceMemory, content_of, host_device, inputs_on_device
from ort_providers import CPU, Provider
from probe import FLOAT, probe_model
from tensor_file import ITEM_BYTES, BadFile, Tensor, first_rows, read_file, read_tensor

Bits = npt.NDArray[Any]

# TensorProto.DataType → the NumPy dtype that holds its bits.
CARRIERS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    4: np.dtype(np.uint16),
    5: np.dtype(np.int16),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    9: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float64),
    12: np.dtype(np.uint32),
    13: np.dtype(np.uint64),
    16: np.dtype(np.uint16),  # bfloat16
    17: np.dtype(np.uint8),  # float8e4m3fn
}
# The names in describe of the dtypes that an input of the operator may have.
WORDS = {
    1: "float32",
    10: "float16",
    16: "bfloat16",
    3: "int8",
    2: "uint8",
    17: "float8e4m3fn",
    6: "int32",
    7: "int64",
}

OPERATOR = "GroupQueryAttention"


class Rejected(Exception):
    """The runtime rejected the case, at ``stage`` load or run, in ``step`` of a loop."""

    def __init__(
        self, stage: str, step: int, error: Exception, changed: list[str] | None = None
    ) -> None:
        super().__init__(str(error))
        self.stage = stage
        self.step = step
        self.changed = changed or []  # the inputs that were no longer as before
        # ONNX Runtime's status codes arrive as exception classes; other exceptions have no code.
        self.code = status_code(type(error).__name__) if is_ort_error(error) else None
        self.message = shortened(str(error) or type(error).__name__)


def is_ort_error(error: Exception) -> bool:
    """Whether ``error`` is one of ONNX Runtime's own exceptions."""
    return type(error).__module__.startswith("onnxruntime")


def is_refusal(error: Exception) -> bool:
    """Whether ``error``, raised inside a call of ONNX Runtime, is a rejection.

    pybind11 turns ``std::exception`` and its subclasses, including ``std::bad_alloc``, into
    RuntimeError, ValueError, IndexError and MemoryError. Anything else (TypeError, AttributeError,
    …) means that this program called it wrongly.
    """
    kinds = (RuntimeError, ValueError, IndexError, MemoryError)
    return is_ort_error(error) or isinstance(error, kinds)


def status_code(name: str) -> str:
    """The class name as a status code: InvalidArgument → INVALID_ARGUMENT, EPFail → EP_FAIL."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()


def as_array(tensor: Tensor, memory: bytearray) -> Bits:
    """``memory`` as an array that holds the bits of such a tensor.

    A bytearray is aligned to 16 bytes like NumPy's own memory, and can be compared and restored.
    """
    return np.ndarray(tensor.dims, CARRIERS[tensor.data_type], memory)


class Runtime:
    """ONNX Runtime with one requested execution provider and no fallback to another.

    ``memory`` is that of the provider's device; None: it computes in the processor's memory.
    ``threads`` is the number of threads that a kernel may use.
    """

    def __init__(
        self,
        onnxruntime: Any,
        provider: Provider,
        prove_by_profile: bool = False,
        threads: int = 1,
    ) -> None:
        self.onnxruntime = onnxruntime
        self.threads = threads
        self.provider = provider
        self.state = onnxruntime.capi.onnxruntime_pybind11_state
        # Since 1.24 a session reports which provider each node was assigned to, though not in
        # every build. Otherwise a session with the CPU alone needs no proof; others are profiled.
        self.by_profile = False
        self.by_assignment = not prove_by_profile and self.reports_assignment()
        self.by_profile = not self.by_assignment and (prove_by_profile or provider.name != CPU)
        self.takes = {data_type for data_type in CARRIERS if self.can_take(data_type)}
        self.options = self.make_options()
        self.host = host_device(self.state)
        device = provider.memory_device()
        self.memory: DeviceMemory | None = None
        if device is not None:
            self.memory = DeviceMemory(self.state, device, self.copier)
        # Warnings at start-up (such as no GPU under /sys) say nothing about a case.
        onnxruntime.set_default_logger_severity(3)

    def reports_assignment(self) -> bool:
        """Whether a session reports which provider each node was assigned to.

        This is tried with one node, since some builds report only nodes on the CPU.
        """
        if not hasattr(self.state.InferenceSession, "get_provider_graph_assignment_info"):
            return False
        self.by_assignment = True
        if self.provider.name == CPU:
            return True
        try:
            session = self.provider.session(probe_model(FLOAT, 1), self.make_options())._sess
        except Exception:  # of any class: such as a plugin that does not take this operator
            return False
        return bool(session.get_provider_graph_assignment_info())

    def dtypes(self) -> list[str]:
        """The names of the dtypes that can be passed as tensors."""
        return [word for data_type, word in WORDS.items() if data_type in self.takes]

    def can_take(self, data_type: int) -> bool:
        """Whether the Python API supports tensors of this TensorProto.DataType."""
        try:
            memory = bytearray(ITEM_BYTES[data_type])
            self.value(Tensor("", data_type, (1,), b""), memory)
        except Exception:  # of any class: this wheel does not support the type
            return False
        return True

    def value(self, tensor: Tensor, memory: bytearray) -> Any:
        """An OrtValue of the tensor's type and shape over ``memory``, which must outlive it."""
        array = as_array(tensor, memory)
        return self.state.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type)

    def make_options(self, alone: bool = True) -> Any:
        """Session options: number of threads, errors only, no fallback to another provider.

        ``alone``: no node may run on the CPU. The settings of the graph optimiser stay at their
        defaults.
        """
        options = self.onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if alone and self.provider.name != CPU:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        self.provider.add_to(options)
        if self.by_assignment:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        options.enable_profiling = self.by_profile
        return options

    def copier(self, model: bytes) -> Any:
        """A session of a graph without nodes, for copying tensors, without profiling.

        It is the C object inside the wrapper.
        """
        options = self.make_options()
        options.enable_profiling = False
        return self.provider.session(model, options)._sess


def run_case(runtime: Runtime, request: dict[str, Any]) -> dict[str, Any]:
    """Run the case that ``request`` names; the fields of a `ran` answer except id and outcome.

    Raises `Rejected` (the runtime returned an error), `Unavailable` (this case cannot run here) and
    `BadFile` (the bundle is not usable); every other exception is an error of this program.
    """
    bundle, out, steps = request["bundle"], request["out"], request["steps"]
    model = read_file(f"{bundle}/model.onnx")
    if not model:
        raise BadFile(f"{bundle}/model.onnx is empty")
    inputs = [
        {name: read_tensor(f"{bundle}/{file}") for name, file in step["files"].items()}
        for step in steps
    ]
    check_dtypes(runtime, inputs)

    if runtime.by_profile:  # in `out`, so that after a crash the file is removed with that folder
        runtime.options.profile_file_prefix = f"{out}/profile"
    start = perf_counter()
    session = load(runtime, model)
    load_seconds = perf_counter() - start
    try:
        case = Case(runtime, session, steps, inputs, out)
        runs, fastest = repeated(case.run, request["repeat"])
    finally:
        profile = end_profile(session) if runtime.by_profile else None
    return {
        "placement": place(runtime, session, profile),
        "runs": runs,
        "ms": {"load": load_seconds * 1e3, "run": fastest * 1e3},
    }


def check_dtypes(runtime: Runtime, inputs: list[dict[str, Tensor]]) -> None:
    """Raise `Unavailable` for a tensor that the Python API does not support."""
    for tensors in inputs:
        for name, tensor in tensors.items():
            if tensor.data_type not in runtime.takes:
                word = WORDS.get(tensor.data_type, f"TensorProto type {tensor.data_type}")
                version = runtime.onnxruntime.__version__
                raise Unavailable(f"onnxruntime {version} takes no {word} from Python ({name}).")


def load(runtime: Runtime, model: bytes) -> Any:
    """A session with the model on the one provider; the C object inside the wrapper.

    In a graph of several nodes, such as those that compute lengths, nodes of other operators may
    run on the CPU.
    """
    try:
        session = runtime.provider.session(model, runtime.options)
    except Exception as error:
        if FELL_BACK in str(error) and (found := load_beside_cpu(runtime, model)) is not None:
            return found
        if type(error).__name__ == "InvalidProtobuf":  # says nothing about a kernel
            raise BadFile(f"model.onnx is no ONNX model: {error}") from error
        if is_refusal(error):
            raise Rejected("load", 0, error) from error
        raise
    return session._sess


#: In ONNX Runtime's message if a node can run on the CPU only.
FELL_BACK = "fallback to CPU EP has been explicitly disabled"


def load_beside_cpu(runtime: Runtime, model: bytes) -> Any | None:
    """A session in which nodes run on the CPU, but none of the operator's.

    None if that is impossible, or cannot be proven before a run.
    """
    if not runtime.by_assignment:
        return None
    options = runtime.make_options(alone=False)
    try:
        session = runtime.provider.session(model, options)._sess
    except Exception:  # of any class: the first error is the one that is reported
        return None
    nodes = assigned_nodes(session)
    there = any(operator == OPERATOR for operator, _ in nodes)
    wanted = runtime.provider.name
    return session if there and placement_of(nodes, wanted) == wanted else None


class Case:
    """A loaded case: its session, and its steps with their inputs in memory.

    On a device with separate memory the inputs, the presents that a loop carries and the shared
    buffers are in that memory, as in a decoder, and the outputs are copied back after a step.
    """

    step = 0  # the one that runs

    def __init__(
        self,
        runtime: Runtime,
        session: Any,
        steps: list[dict[str, Any]],
        inputs: list[dict[str, Tensor]],
        out: str,
    ) -> None:
        self.runtime = runtime
        self.session = session
        self.steps = steps
        self.inputs = inputs
        self.out = out
        self.names = [output.name for output in session.outputs_meta]
        self.on_device = inputs_on_device(session) if runtime.memory else set()
        if runtime.memory:  # a buffer that no node reads, too
            self.on_device.update(*(step["share"].values() for step in steps))
        # A kernel may write to its inputs, so the bundle's bytes are kept separately.
        self.memory = [
            {name: bytearray(tensor.raw) for name, tensor in tensors.items()} for tensors in inputs
        ]
        self.values = [
            {name: self.place(name, tensor, memory[name]) for name, tensor in tensors.items()}
            for tensors, memory in zip(inputs, self.memory, strict=True)
        ]

    def place(self, name: str, tensor: Tensor, memory: bytearray) -> Any:
        """An input as an OrtValue where the session reads it: over ``memory``, or on the device."""
        value = self.runtime.value(tensor, memory)
        device = self.runtime.memory
        return self.copy(device.to_device, value) if device and name in self.on_device else value

    def run(self, repeat: int) -> tuple[Files, float]:
        """All steps from the start: the files written for each, and the seconds spent running."""
        files: Files = []
        total = 0.0
        previous: dict[str, Any] = {}
        self.buffers: list[bytearray] = []
        for step in range(len(self.steps)):
            try:
                previous, seconds = self.run_step(step, previous)
            except Rejected as refusal:
                if not self.goes_on(step, refusal):
                    raise
                files.append(refusal.message)
            else:
                total += seconds
                tensors = (content_of(n, self.on_host(value)) for n, value in previous.items())
                files.append(write_outputs(self.out, repeat, step, tensors))
            self.restore_inputs(step, repeat)
        return files, total

    def goes_on(self, step: int, refusal: Rejected) -> bool:
        """Whether the next step is run after this error, which is none of the device."""
        if not self.steps[step].get("may_be_rejected"):
            return False
        if self.runtime.provider.name != CPU:
            import cuda_errors  # not at the start of every other target

            refusal.message = cuda_errors.without_host(refusal.message)
            return cuda_errors.classify(refusal.message) is None
        return True

    def changed(self, step: int) -> list[str]:
        """The inputs of a rejected step that have been modified; empty if they are on a device.

        In a buffer that an output shares, only the rows in the bundle are compared; a buffer that
        an earlier step wrote is not compared.
        """
        if self.runtime.memory:
            return []
        memory = dict(self.memory[step])
        if step == 0:
            names = list(dict.fromkeys(self.steps[step]["share"].values()))
            memory.update(zip(names, self.buffers, strict=True))
        raw = {name: tensor.raw for name, tensor in self.inputs[step].items()}
        return [name for name, content in memory.items() if content != raw.get(name, content)]

    def on_host(self, value: Any) -> Any:
        """The OrtValue in the processor's memory."""
        return self.copy(self.runtime.memory.to_host, value) if self.runtime.memory else value

    def copy(self, copied: Callable[[Any], Any], value: Any) -> Any:
        """The result of ``copied`` for an OrtValue; a kernel's error may come with its output."""
        try:
            return copied(value)
        except Exception as error:
            if is_refusal(error):
                raise Rejected("run", self.step, error) from error
            raise

    def run_step(self, index: int, previous: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """One call: its outputs as OrtValues, and the seconds it took."""
        self.step = index
        feeds, shared = self.feeds_of(index, previous)
        try:
            values, seconds = self.compute(index, feeds, shared)
        except Exception as error:
            if is_refusal(error):
                raise Rejected("run", index, error, self.changed(index)) from error
            raise
        # By index: iterating over an OrtValueVector ends in a C++ exception, which costs 50 µs.
        outputs = {name: values[index] for index, name in enumerate(self.names)}
        outputs.update(shared)
        return outputs, seconds

    def feeds_of(
        self, index: int, previous: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The inputs of a step, and the memory that outputs share with an input."""
        step = self.steps[index]
        keep = step.get("keep")
        feeds: dict[str, Any] = dict(self.values[index])
        for name, output in step["carry"].items():
            feeds[name] = previous[output]
            if keep is not None:
                feeds[name] = self.new_buffer(name, feeds[name], keep)
        for name in step["share"].values():
            carried = step["carry"].get(name)
            if carried is None or carried not in self.steps[index - 1]["share"]:
                feeds[name] = self.new_buffer(name, feeds[name])
        return feeds, {output: feeds[name] for output, name in step["share"].items()}

    def compute(
        self, index: int, feeds: dict[str, Any], shared: dict[str, Any]
    ) -> tuple[Any, float]:
        """The outputs of a step in the order of ``names``, and the seconds it took."""
        if self.runtime.memory or shared:
            return self.run_bound(feeds, shared)
        start = perf_counter()
        values = self.session.run_with_ort_values(feeds, self.names, None)
        return values, perf_counter() - start

    def new_buffer(self, name: str, feed: Any, keep: int | None = None) -> Any:
        """New memory with the content of ``feed``, or with the first ``keep`` rows of it."""
        tensor = content_of(name, self.on_host(feed))
        if keep is not None:
            tensor = first_rows(tensor, keep)
        self.buffers.append(bytearray(tensor.raw))
        return self.place(name, tensor, self.buffers[-1])

    def run_bound(self, feeds: dict[str, Any], shared: dict[str, Any]) -> tuple[Any, float]:
        """One run with IO binding: its outputs, those in ``shared`` in the memory given there."""
        memory = self.runtime.memory
        binding = self.runtime.state.SessionIOBinding(self.session)
        for name, feed in feeds.items():
            binding.bind_ortvalue_input(name, feed)
        for name in self.names:
            if name in shared:
                binding.bind_ortvalue_output(name, shared[name])
            else:
                binding.bind_output(name, memory.device if memory else self.runtime.host)
        binding.synchronize_inputs()
        start = perf_counter()
        self.session.run_with_iobinding(binding, None)
        binding.synchronize_outputs()
        seconds = perf_counter() - start
        return binding.get_outputs(), seconds

    def restore_inputs(self, step: int, repeat: int) -> None:
        """Restore inputs that a kernel wrote to, and report it (microsoft/onnxruntime#20555).

        Each repeat must start with the bundle's values. Comparing costs less than new memory for
        each repeat, and it reveals the defect.
        """
        for name, memory in self.memory[step].items():
            tensor = self.inputs[step][name]
            on_device = name in self.on_device
            if on_device:
                memory[:] = content_of(name, self.on_host(self.values[step][name])).raw
            if memory != tensor.raw:
                memory[:] = tensor.raw
                if on_device:
                    self.values[step][name] = self.place(name, tensor, memory)
                note = f"onnxruntime changed its input '{name}' (step {step}, repeat {repeat})"
                print(note, file=sys.stderr, flush=True)


# Placement


def place(runtime: Runtime, session: Any, profile: list[tuple[str, str]] | None) -> str:
    """The provider on which the operator ran, proven as far as this version allows."""
    if profile is not None:
        return placement_of(profile, runtime.provider.name)
    if runtime.by_assignment:
        return placement_of(assigned_nodes(session), runtime.provider.name)
    # Without another provider in the session the node cannot run anywhere else.
    providers = session.get_providers()
    wanted = runtime.provider.name
    return next((name for name in providers if name != wanted), wanted)


def assigned_nodes(session: Any) -> list[tuple[str, str]]:
    """(operator, provider) of each node, as the session reports it."""
    return [
        (node.op_type, subgraph.ep_name)
        for subgraph in session.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
    ]


def placement_of(nodes: list[tuple[str, str]], wanted: str) -> str:
    """Where the operator ran, from (operator, provider) of each node.

    Of several nodes the first one that ran elsewhere counts. For a graph without the operator all
    nodes count; a graph without nodes was computed while loading, on the CPU.
    """
    places = [provider for operator, provider in nodes if operator == OPERATOR]
    places = places or [provider for _, provider in nodes] or [CPU]
    return next((provider for provider in places if provider != wanted), wanted)


def end_profile(session: Any) -> list[tuple[str, str]]:
    """Stop profiling, remove its file, and return (operator, provider) of each node that ran."""
    path = session.end_profiling()
    try:
        with open(path, encoding="utf-8") as file:
            return profiled_nodes(file.read())
    finally:
        os.unlink(path)


def profiled_nodes(text: str) -> list[tuple[str, str]]:
    """(operator, provider) of each node's run in a profile, which is a JSON list of events."""
    return [
        (event["args"]["op_name"], event["args"]["provider"])
        for event in json.loads(text)
        if event.get("cat") == "Node" and "provider" in event.get("args", {})
    ]
