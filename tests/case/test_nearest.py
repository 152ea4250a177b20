"""The cases nearest to a call: by features, then by sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from case_files import cases_of
from shipped import shipped_cases

from conformance.case.nearest import Near, nearest
from conformance.case.steps import steps_of
from conformance.operator.call import Call, checked_call

BODY = """
- {name: plain, sequence_length: 4}
- {name: capped, sequence_length: 4, softcap: 30.0}
- {name: capped_more, sequence_length: 400, softcap: 30.0}
- {name: capped_less, sequence_length: 4, softcap: 20.0}
- {name: windowed, sequence_length: 4, softcap: 30.0, local_window_size: 2}
- {name: borrowed, past_sequence_length: 4, key_value: zero_length, presents: none}
"""


def near(folder: Path, most: int = 5, **fields: Any) -> list[Near]:
    call = checked_call(fields)
    return nearest(call, steps_of(call), cases_of(folder, BODY), most)


def test_features_decide_before_sizes(tmp_path: Path) -> None:
    found = near(tmp_path, sequence_length=400, softcap=30.0, local_window_size=2)
    names = ["windowed", "capped_more", "capped", "capped_less", "plain"]
    assert [one.case.name for one in found] == names
    lengths = dict.fromkeys(("sequence_length", "total_sequence_length"), (400, 4))
    assert (found[0].features, found[0].sizes) == ({}, lengths)
    assert found[1].features == {"window": ("shorter", "none")}
    assert found[1].sizes == {"local_window_size": (2, None)}


def test_an_equal_call_is_nearest_and_then_the_nearer_size(tmp_path: Path) -> None:
    found = near(tmp_path, most=3, sequence_length=8, softcap=30.0)
    assert [one.case.name for one in found] == ["capped", "capped_more", "capped_less"]
    (only,) = near(tmp_path, most=1, sequence_length=4, softcap=20.0)
    assert (only.case.name, only.features, only.sizes) == ("capped_less", {}, {})


def test_the_layer_of_a_model_is_nearest_to_its_model() -> None:
    """A layer of Gemma 4 E2B that borrows its cache, in the middle of a conversation."""
    call = Call(
        **{"dtype": "float16", "past_sequence_length": 700, "max_sequence_length": 1024},
        **{"key_value": "zero_length", "presents": "none", "rotary": "half_split"},
        **{"local_window_size": 512, "num_heads": 8, "kv_num_heads": 1, "head_size": 256},
        scale=1.0,
    )
    (first, *_) = nearest(call, steps_of(call), shipped_cases())
    assert first.case.name.startswith("gemma4_e2b_borrowing")
