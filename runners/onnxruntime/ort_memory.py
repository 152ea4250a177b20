"""Memory in which a provider computes: copies of tensors to a device and back.

ONNX Runtime itself makes the copies, in sessions of a graph that has no node and whose output is
its input. So one code path serves every provider, release and dtype, including dtypes that NumPy
does not have, and the copied values are never converted.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from tensor_file import ITEM_BYTES, Tensor, length_field, varint_field

#: What ONNX Runtime calls the memory of the processor.
HOST = ("Cpu", "cpu")

#: Kernels read it on the processor, as its documentation says; older releases do not report it.
READ_ON_HOST = "total_sequence_length"


def copy_model(data_type: int) -> bytes:
    """A ModelProto without nodes: its output is its input, of this TensorProto.DataType."""
    value = length_field(1, b"x") + length_field(2, length_field(1, varint_field(1, data_type)))
    graph = length_field(2, b"copy") + length_field(11, value) + length_field(12, value)
    opset = length_field(1, b"") + varint_field(2, 19)
    return varint_field(1, 9) + length_field(7, graph) + length_field(8, opset)


def host_device(state: Any) -> Any:
    """The OrtDevice of the processor's memory; ``state`` as for `DeviceMemory`."""
    return state.OrtDevice(state.OrtDevice.cpu(), state.OrtDevice.default_memory(), 0)


class DeviceMemory:
    """The memory of one device, given by its OrtDevice.

    ``session`` makes a session of the provider with a model; ``state`` is the module
    onnxruntime_pybind11_state.
    """

    def __init__(self, state: Any, device: Any, session: Callable[[bytes], Any]) -> None:
        self.state = state
        self.device = device
        self.host = host_device(state)
        self.session = session
        self.copiers: dict[int, Any] = {}

    def to_device(self, value: Any) -> Any:
        """A copy on the device of the OrtValue ``value``, which is in the processor's memory."""
        return self.copy(value, self.device)

    def to_host(self, value: Any) -> Any:
        """The OrtValue ``value`` if it is in the processor's memory or empty, else a copy there."""
        there = not value.has_value() or value.device_name() in HOST
        return value if there else self.copy(value, self.host)

    def copy(self, value: Any, device: Any) -> Any:
        """A copy of the OrtValue ``value`` in the memory of the OrtDevice ``device``."""
        data_type = value.element_type()
        session = self.copiers.get(data_type)
        if session is None:
            session = self.copiers[data_type] = self.session(copy_model(data_type))
        binding = self.state.SessionIOBinding(session)
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("x", device)
        binding.synchronize_inputs()
        session.run_with_iobinding(binding, None)
        binding.synchronize_outputs()
        return binding.get_outputs()[0]


def inputs_on_device(session: Any) -> set[str]:
    """The inputs that the session reads in the device's memory: the others stay on the host."""
    names = [meta.name for meta in session.inputs_meta]
    places = getattr(session, "input_meminfos", None)  # since 1.23
    if places is None:
        return set(names) - {READ_ON_HOST}
    return {
        name
        for name, place in zip(names, places, strict=True)
        if place.name not in HOST and place.device_mem_type.name == "DEFAULT"
    }


def content_of(name: str, value: Any, data_type: int = 1) -> Tensor:
    """The tensor in an OrtValue that is in the processor's memory.

    An output without a value, which a kernel leaves if it does not compute the output, is a tensor
    of ``data_type`` with one dimension of 0.
    """
    if not value.has_value():
        return Tensor(name, data_type, (0,), b"")
    dims = tuple(value.shape())
    data_type = value.element_type()
    size = math.prod(dims) * ITEM_BYTES[data_type]
    return Tensor(name, data_type, dims, ctypes.string_at(value.data_ptr(), size) if size else b"")
