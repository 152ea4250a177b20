"""Generated case files without the search for values, which makes thousands of bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from shipped import cases_of_theme

from conformance.case.call import Call
from conformance.maintain import telling_values


def find_committed_values(
    monkeypatch: pytest.MonkeyPatch, themes: Sequence[str], *modules: Any
) -> None:
    """Let the ``modules`` take exactly the calls of the committed themes for sensitive.

    The sensitivity of the committed calls themselves is checked wherever they are run.
    """
    committed = {
        case.call.model_dump_json(): case.insensitive_to
        for theme in themes
        for case in cases_of_theme(theme)
    }

    def key(fields: Mapping[str, Any], dtype: str) -> str:
        call = {name: value for name, value in fields.items() if name in Call.model_fields}
        return Call.model_validate({**call, "dtype": dtype}).model_dump_json()

    def is_committed(fields: Mapping[str, Any], dtype: str) -> bool:
        return key(fields, dtype) in committed

    def effects(fields: Mapping[str, Any], dtype: str) -> dict[str, float]:
        return dict.fromkeys(committed.get(key(fields, dtype), ()), 0.0)

    for module in modules:
        monkeypatch.setattr(module, "is_sensitive", is_committed)
    monkeypatch.setattr(telling_values, "_effects", effects)
