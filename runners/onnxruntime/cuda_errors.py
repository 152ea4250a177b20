"""Recognises the errors of CUDA in the texts in which ONNX Runtime reports them.

A kernel reports an error as it is (``cuda_kernel.h``), and any other call of a CUDA library reports
its number (``cuda_call.cc``)::

    CUDA error cudaErrorInvalidValue:invalid argument
    CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=… ; file=… ; …
    CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0 ; …
    CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED ; …           (CUDNN_FE, CUFFT, …)

Kernels that were taken from other projects throw only the text of an error or its name, and the
arena has other messages for memory that it cannot get. A kernel runs after its launch, so its error
may be reported by any later call: a call has succeeded only after the device has been waited for.
Standard library only.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class DeviceError(NamedTuple):
    """An error of the device or of one of its libraries.

    ``sticky``: no work is possible on the device any more in this process, which is a crash of the
    device. After any other error the state of the process is unknown.
    """

    name: str
    sticky: bool


#: Number, name and text of each cudaError_t for which NVIDIA's ``driver_types.h`` (CUDA 13) says
#: "To continue using CUDA, the process must be terminated and relaunched", and of uncorrectable
#: errors of memory and NVLink.
STICKY = {
    214: ("cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"),
    220: ("cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected"),
    226: ("cudaErrorContained", "Invalid access of peer GPU memory over nvlink"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    702: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    710: ("cudaErrorAssert", "device-side assert triggered"),
    714: ("cudaErrorHardwareStackError", "hardware stack error"),
    715: ("cudaErrorIllegalInstruction", "an illegal instruction was encountered"),
    716: ("cudaErrorMisalignedAddress", "misaligned address"),
    717: ("cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"),
    718: ("cudaErrorInvalidPc", "invalid program counter"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    721: ("cudaErrorTensorMemoryLeak", "tensor memory not completely freed"),
    810: ("cudaErrorMpsClientTerminated", "the MPS client has been terminated by the server"),
    911: ("cudaErrorExternalDevice", "an async error has occured in external entity"),
}

#: By the name without case and underscores, as the driver has it (CUDA_ERROR_ILLEGAL_ADDRESS).
_BY_NAME = {name.lower(): name for name, _ in STICKY.values()}
_BY_NAME["cudaerrorlaunchfailed"] = "cudaErrorLaunchFailure"

_CUDA = re.compile(r"\bCUDA failure (\d+): ")
_NAME = re.compile(r"\bcudaError[A-Z]\w+|\bCUDA_ERROR_[A-Z_]+")
_LIBRARY = re.compile(r"\b((?:CU[A-Z]+|NCCL)(?:_FE)? failure \d+): (CU[A-Z]+_[A-Z_]+)?")
_OTHER = re.compile(
    r"\bout of memory\b|Failed to allocate memory for requested buffer"
    r"|smaller than requested bytes|\bCUDA (?:runtime )?error\b|\bcutlass\b.*\b(?:error|fail\w*)\b",
    re.IGNORECASE,
)
_HOST = re.compile(r"(?<=hostname=)[^;\n]*?(?=\s*(?:;|$))", re.MULTILINE)


def classify(message: str) -> DeviceError | None:
    """The error of CUDA that ``message`` reports; None if it reports none, as for a bad argument.

    If there are several, it is the first sticky one, which causes the others, or else the first.
    """
    for number in map(int, _CUDA.findall(message)):
        if number in STICKY:
            return DeviceError(STICKY[number][0], True)
    for word in _NAME.findall(message):
        if name := _BY_NAME.get(word.replace("_", "").lower()):
            return DeviceError(name, True)
    for name, text in STICKY.values():
        if text in message:
            return DeviceError(name, True)
    for pattern in (_NAME, _CUDA, _LIBRARY, _OTHER):
        if match := pattern.search(message):
            status = match[2] if pattern is _LIBRARY else None
            return DeviceError(status or match[0].rstrip(": "), False)
    return None


def without_host(message: str) -> str:
    """``message`` without the name of the machine, which ``cuda_call.cc`` writes into it."""
    return _HOST.sub("…", message)


def answer_of(rejected: dict[str, Any]) -> dict[str, Any]:
    """The answer for a call that ended with an error on a device: ``rejected``, or a crash.

    After an error of the device the process must be replaced.
    """
    message = without_host(rejected["message"])
    error = classify(message)
    if error is None:
        return {**rejected, "message": message}
    if not error.sticky:
        return {**rejected, "message": message, "replace_process": True}
    return {
        "outcome": "crashed",
        "step": rejected["step"],
        "ended": error.name,
        "message": message,
        "replace_process": True,
    }
