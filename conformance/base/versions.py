"""The order of versions of any kind of package, and the releases that are known."""

from __future__ import annotations

import re
from typing import Final

from packaging.version import Version

#: The published series of releases that the suite can test, by the first letters of targets. A
#: series of ONNX Runtime is a minor version, and each release of tract is its own.
_SERIES: Final = (
    (("cpu", "cuda"), [f"1.{minor}" for minor in range(20, 33)]),
    (("node",), [*(f"1.{minor}" for minor in range(20, 28)), "1.29", "1.30"]),
    (("openvino",), [f"2026.{minor}" for minor in range(5)]),
    (("qnn",), [f"2.{minor}" for minor in range(3, 8)]),
    (("wasm", "webgpu"), ["1.25", "1.26", "1.27", "1.29", "1.30"]),
    (("tract",), ["0.22.5", *(f"0.23.{patch}" for patch in (0, 1, 2, 3, 5, 6, 7, 8, 9))]),
)


def ordered_version(version: str) -> Version | None:
    """A key to sort versions by; None for a text that is not a version.

    A version of npm such as ``1.31.0-dev.20261101-0a1b2c3`` sorts before 1.31.0.
    """
    try:
        found = re.sub(r"-dev\.(\d+).*", r".dev\1", version)
        return Version(re.sub(r"(?<=\d)-dev\b.*", ".dev0", found))
    except ValueError:  # InvalidVersion, or thousands of digits
        return None


def release_key(version: str) -> tuple[bool, Version]:
    """A sort key by version; texts that are not a version come first, in the order given."""
    ordered = ordered_version(version)
    return ordered is not None, ordered or Version("0")


def series_between(target: str, older: str, newer: str) -> tuple[str, ...]:
    """The published series of a target between those of two releases.

    Empty for a target, or versions, of which nothing is known.
    """
    known = next((of for names, of in _SERIES if target.startswith(names)), [])
    before, after = ordered_version(older), ordered_version(newer)
    if before is None or after is None:
        return ()
    places = [(text, Version(text).release) for text in known]
    return tuple(
        text
        for text, place in places
        if before.release[: len(place)] < place < after.release[: len(place)]
    )
