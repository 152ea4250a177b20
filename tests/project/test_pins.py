"""A pinned release is the same in every file that names it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from conformance.base.paths import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not a checkout")

_TOOLS: Final = "conformance/targets/tools.py"
_PROJECT: Final = "pyproject.toml"

#: By package, all files that name its pinned release, each with the text around it.
PLACES: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "onnxruntime": (
        (_TOOLS, 'ONNXRUNTIME_VERSION: Final = "{}"'),
        (_PROJECT, 'cpu = ["onnxruntime=={}"]'),
        (_PROJECT, 'qnn = ["onnxruntime=={}"'),
    ),
    "tract": (
        (_TOOLS, 'TRACT_VERSION: Final = "{}"'),
        (_PROJECT, 'tract = ["tract=={}"]'),
        ("runners/tract/wheel_availability.py", 'KNOWN_GOOD = "tract=={}"'),
    ),
    "openvino": (
        (_PROJECT, 'openvino = ["openvino=={}"]'),
        ("runners/openvino/openvino_runner.py", 'KNOWN_GOOD = "openvino=={}"'),
    ),
    "onnxruntime-qnn": (
        (_PROJECT, '"onnxruntime-qnn=={}"'),
        ("runners/onnxruntime/ort_providers.py", '"onnxruntime-qnn=={}"'),
    ),
    "onnxruntime-web": (
        (_TOOLS, 'ONNXRUNTIME_WEB_VERSION: Final = "{}"'),
        ("runners/onnxruntime_web/package.json", '"onnxruntime-web": "{}"'),
        ("runners/onnxruntime_web/package-lock.json", '"onnxruntime-web": "{}"'),
    ),
    "onnxruntime-node": (
        (_TOOLS, 'ONNXRUNTIME_NODE_VERSION: Final = "{}"'),
        ("runners/onnxruntime_node/package.json", '"onnxruntime-node": "{}"'),
        ("runners/onnxruntime_node/package-lock.json", '"onnxruntime-node": "{}"'),
    ),
}


@pytest.mark.parametrize("package", PLACES)
def test_a_pin_is_the_same_in_every_place(package: str) -> None:
    found = {}
    for file, text in PLACES[package]:
        before, _, after = text.partition("{}")
        pattern = f'{re.escape(before)}([^"\\s]+){re.escape(after)}'
        (found[file, text],) = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"))
    assert len({*found.values()}) == 1, found
