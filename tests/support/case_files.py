"""Case files for tests: the minimum that a file needs, and the loader's messages for it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import numpy as np
import pytest

from conformance.base.array_types import Array
from conformance.base.yaml_source import InputError
from conformance.case.case import Case
from conformance.case.load import load_file

#: Five lines, so that the first entry begins on line 6.
HEAD = """\
format: gqa-cases/2
question: What is asked?
defaults:
  contract: {source: a document}
cases:
"""


def entries(body: str) -> str:
    """A case file of the entries in ``body``, which is indented by two."""
    return HEAD + indent(dedent(body).strip("\n"), "  ") + "\n"


def write(folder: Path, text: str | bytes, name: str = "theme.yaml") -> Path:
    """``text`` as the file ``name`` in ``folder``."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def cases_of(folder: Path, body: str) -> list[Case]:
    """The cases of the entries in ``body``."""
    return load_file(write(folder, entries(body)))


def complaints(folder: Path, text: str | bytes) -> list[str]:
    """The loader's messages for a file, each as ``line:column: sentence``."""
    file = write(folder, text)
    with pytest.raises(InputError) as caught:
        load_file(file)
    said = str(caught.value)
    assert said == "\n".join(map(str, caught.value.problems))
    return [
        line.removeprefix(file.as_posix()).removeprefix(":").strip() for line in said.split("\n")
    ]


def write_given(file: Path, arrays: dict[str, Array]) -> None:
    """Writes a file for ``values_from``; types that NumPy lacks as integers with the same bits."""
    plain = {
        name: array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
        for name, array in arrays.items()
    }
    np.savez(file, allow_pickle=False, **plain)  # type: ignore[arg-type]
