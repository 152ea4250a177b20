"""Whatever a model says of itself, its reading ends in an answer or in one sentence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from attention_models import Layer, decoder, saved
from damaged_models import damaged, graphs
from endings import no_hang

from conformance.base.explain import reason_of
from conformance.case.load import load_file
from conformance.graph.reading import ModelError, as_model_errors
from conformance.model.calls.stages import Lengths
from conformance.model.calls.subject import subject_of

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_model_is_an_answer_or_a_sentence(tmp_path: Path, seed: int) -> None:
    chance, whole = random.Random(seed), graphs()
    said: list[str] = []
    answers = 0
    for _ in range(30):
        file = tmp_path / "model.onnx"
        file.write_bytes(damaged(chance.choice(whole), chance))
        try:
            with no_hang("reading the model", 60):
                subject = subject_of(file, Lengths())
        except ModelError as error:
            said.append(str(error))
            continue
        (tmp_path / "cases.yaml").write_text(subject.cases)
        assert load_file(tmp_path / "cases.yaml")
        answers += 1
    assert answers
    assert [each for each in said if str(tmp_path) not in each or "Error in " in each] == []


def test_an_error_that_nobody_foresaw_says_where_it_was_raised(tmp_path: Path) -> None:
    """So a fault of the suite is not taken for one of the model."""
    with pytest.raises(ModelError) as caught, as_model_errors(tmp_path / "model.onnx"):
        print({}["past_key"])
    assert caught.match(
        r"cannot be understood: 'past_key' \(KeyError in test_model_damage.py, line \d+\)\.$"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    assert reason_of(ModelError("it is empty")) == "it is empty"


def test_sizes_that_no_tensor_has_are_told_of_the_node(tmp_path: Path) -> None:
    model = decoder(Layer(size=1 << 31))
    with pytest.raises(
        ModelError, match=r"GroupQueryAttention: head_size 2147483648: Input should be less"
    ):
        subject_of(saved(model, tmp_path), Lengths())
