"""Words in sentences for people."""

from __future__ import annotations

from conformance.base.words import plural


def test_only_one_is_singular() -> None:
    assert [plural(n, "case") for n in range(3)] == ["0 cases", "1 case", "2 cases"]
