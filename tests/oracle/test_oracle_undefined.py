"""The calls that the oracle rejects: each row of undefined_calls.yaml is a change of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gqa_calls import ALL, Arrays, Attributes
from small_calls import drawn_chunks, good, normed, quantised_decode, windowed

from conformance.oracle import OracleError, reference

ROWS = yaml.safe_load(Path(__file__).with_name("undefined_calls.yaml").read_text("utf-8"))


def calls() -> dict[str, tuple[Arrays, Attributes]]:
    """The calls with a meaning."""
    chunks, attributes = drawn_chunks(3, [5, 6], [2, 2])
    del attributes["local_window_size"]
    return {
        "plain": good(),
        "quantised": quantised_decode("int8", [1.0, 2.0], [[1, 1]]),
        "window": windowed(0, 2, 4, 4)[:2],
        "chunks": (chunks, attributes),
        "norm": normed([1.0, 1.0], [1.0, 1.0]),
    }


def changed(call: tuple[Arrays, Attributes], changes: dict[str, Any]) -> tuple[Arrays, Attributes]:
    inputs, attributes = call
    for name, value in changes.items():
        inputs.pop(name, None)
        attributes.pop(name, None)
        if isinstance(value, dict):
            numbers = value["data"] if "data" in value else np.zeros(value["zeros"])
            inputs[name] = np.array(numbers, value["dtype"])
        elif value is not None:
            attributes[name] = value
    return inputs, attributes


@pytest.mark.parametrize("kind", ROWS)
def test_without_a_change_a_call_has_a_meaning(kind: str) -> None:
    assert reference(*calls()[kind], ALL)["present_value"].defined.any()


@pytest.mark.parametrize(
    ("kind", "what"), [(kind, what) for kind, rows in ROWS.items() for what in rows]
)
def test_an_undefined_call_is_rejected(kind: str, what: str) -> None:
    row = ROWS[kind][what]
    with pytest.raises(OracleError) as caught:
        reference(*changed(calls()[kind], row["change"]), ALL)
    assert str(caught.value) == row["says"]
