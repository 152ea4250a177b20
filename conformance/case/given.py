"""Input values from a file: the tensors of a call as a program made it.

The file is one of NumPy's ``.npz`` files, with an array for each connected input under the
operator's name for it. NumPy has no bfloat16 and no float8: they are stored as unsigned integers
with the same bits.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from conformance.base.array_types import NUMPY, Array
from conformance.base.files import read_plain
from conformance.base.text import safe_name
from conformance.base.words import listed
from conformance.case.node_steps import MAX_INPUT_ELEMENTS
from conformance.operator.call import Call, CallError, GivenCall
from conformance.operator.tensors import Step

#: The size of the values of a call, and of the other parts of the format.
_MOST_BYTES: Final = 4 * MAX_INPUT_ELEMENTS + (1 << 20)
#: The exceptions of ``zipfile`` for a damaged archive.
_DAMAGES: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, UnicodeDecodeError),
    *(EOFError, NotImplementedError, RuntimeError),
)
#: Dtypes that NumPy lacks, as integers with their bits.
_BITS: Final = {"bfloat16": np.dtype(np.uint16), "float8e4m3fn": np.dtype(np.uint8)}


class GivenError(CallError):
    """A file of values cannot be used; the message names the file and gives the reason."""

    def __init__(self, sentence: str) -> None:
        super().__init__("values_from", sentence)


def given_call(call: Call, step: Step, folder: Path) -> GivenCall:
    """The call with the digest of its file, whose path is relative to ``folder``.

    Raises :class:`GivenError`, also if the file does not have the inputs of ``step``.
    """
    assert call.values_from is not None
    file = folder / call.values_from
    content = _content(file)
    _arrays(file, content, step)
    return GivenCall(**vars(call), file=file, digest=_digest(content))


def given_inputs(call: GivenCall, step: Step) -> dict[str, Array]:
    """The arrays of the file, in the shapes and dtypes of the call's inputs.

    Raises :class:`GivenError`, also for a file that has changed since the case was loaded.
    """
    content = _content(call.file)
    if _digest(content) != call.digest:
        raise GivenError(f"{call.file} has changed since the case was loaded; run it again")
    return {name: array.copy() for name, array in _arrays(call.file, content, step).items()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(file: Path) -> bytes:
    try:
        return read_plain(file, _MOST_BYTES)
    except OSError as error:
        raise GivenError(f"{file} cannot be read: {error.strerror}") from None


def _arrays(file: Path, content: bytes, step: Step) -> dict[str, Array]:
    wanted = {each.name: each for each in step.inputs if each.connected and not each.same_as}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            there = [name.removesuffix(".npy") for name in archive.namelist()]
            if sorted(there) != sorted(wanted):
                names = listed([safe_name(name) for name in sorted(there)]) or "no arrays"
                raise GivenError(
                    f"{file} has {names}; the call has the inputs {listed(sorted(wanted))}"
                )
            found = {}
            for name, tensor in wanted.items():
                assert tensor.shape is not None
                with archive.open(f"{name}.npy") as stream:
                    try:
                        found[name] = _array(stream, tensor.shape, tensor.dtype)
                    except ValueError as error:
                        raise GivenError(f"{file}: {name} {error}") from None
            return found
    except _DAMAGES as error:
        raise GivenError(f"{file} is not an .npz file, or a damaged one: {error}") from None


def _array(stream: IO[bytes], shape: tuple[int, ...], dtype: str) -> Array:
    """The array in ``stream``, whose header is checked first. Raises ValueError."""
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):  # later ones are for tables with long headers
        raise ValueError(f"is in version {version} of NumPy's format; only 1.0 is known")
    found, by_column, kind = np.lib.format.read_array_header_1_0(stream)
    if found != shape:
        raise ValueError(f"has the shape {found}; the fields of the case say {shape}")
    wanted: np.dtype[Any] = NUMPY[dtype]
    if kind not in (wanted, _BITS.get(dtype)):
        raise ValueError(f"is {kind}; the fields of the case say {_BITS.get(dtype, dtype)}")
    if by_column and len(shape) > 1:
        raise ValueError("is stored column by column; save a copy in C order")
    size = math.prod(shape) * wanted.itemsize
    content = stream.read(size + 1)
    if len(content) != size:
        raise ValueError(f"has not the {size} bytes that its shape needs")
    return np.frombuffer(content, wanted).reshape(shape)
