"""`python -m conformance.maintain.generate`: the files that are made from the code."""

from __future__ import annotations

import pytest

from conformance.base.paths import ROOT
from conformance.maintain.generate import FILES


@pytest.mark.parametrize("name", FILES)
def test_a_committed_file_is_current(name: str) -> None:
    made = FILES[name]()
    content = made.encode() if isinstance(made, str) else made
    assert (ROOT / name).read_bytes() == content, "python -m conformance.maintain.generate"
