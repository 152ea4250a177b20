"""Generated case files without the search for values, which makes thousands of bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from shipped import cases_of_theme

from conformance.case.call import Call


def find_committed_values(
    monkeypatch: pytest.MonkeyPatch, themes: Sequence[str], *modules: Any
) -> None:
    """Let the ``modules`` take exactly the calls of the committed themes for sensitive.

    The sensitivity of the committed calls themselves is checked wherever they are run.
    """
    committed = {case.call.model_dump_json() for theme in themes for case in cases_of_theme(theme)}

    def is_committed(fields: Mapping[str, Any], dtype: str) -> bool:
        call = {name: value for name, value in fields.items() if name in Call.model_fields}
        return Call.model_validate({**call, "dtype": dtype}).model_dump_json() in committed

    for module in modules:
        monkeypatch.setattr(module, "is_sensitive", is_committed)
