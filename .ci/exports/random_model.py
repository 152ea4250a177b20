"""A model of transformers with random weights, as a folder from which an exporter reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SEED: Final = 0


def save_random_model(folder: Path, model_type: str, configuration: dict[str, Any]) -> None:
    """Write configuration, weights (float32, always the same) and a tokenizer into ``folder``."""
    torch.manual_seed(SEED)
    config = AutoConfig.for_model(model_type, **configuration)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    words = {f"<{number}>": number for number in range(config.get_text_config().vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<0>", bos_token="<2>", eos_token="<1>"
    ).save_pretrained(folder)
