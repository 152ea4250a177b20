"""What is wrong in the second decoder of each pair, and the files beside both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from twin_decoders import LONG, ORIGINAL, ROWS, SHORT, TABLE, WIDTH, WORDS, Decoder, drawn
from twin_programs import promised

Change = Callable[[Decoder], dict[str, Any]]
Files = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    ``seen`` says what can show it: "results" differ between ways of calling, "inspection" of the
    graph, or a configuration ("config") that the graph contradicts. ``needs`` are values of the
    valid decoder, several to choose from, and ``change`` is what the wrong one has instead. Without
    a change the graph's code knows the fault by its name. A file in ``files`` is beside the wrong
    one only.
    """

    name: str
    seen: str
    needs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    change: Change | None = None
    files: Mapping[str, Any] = field(default_factory=dict)
    #: The iterator of a pipeline has the change, and the prompt's graph has not.
    in_iterator: bool = False

    def made_in(self, valid: Decoder) -> Decoder:
        """The wrong decoder."""
        fields = self.change(valid) if self.change else {}
        return replace(valid, **{"fault": self.name, **fields})


def to(**fields: Any) -> Change:
    """A change to other values."""
    return lambda _: fields


def in_branch(side: bool, **attributes: Any) -> Change:
    """The first branch of the If, or the second, has other attributes."""
    changes = {"side": side, **attributes}
    return lambda _: {"branch": tuple(changes.items())}


WINDOW = (4, 5, 7)
WINDOWED = {"window": WINDOW, "local_base": (0.0,)}
FLOAT = {"cache": ("growing", "static")}
GROWING = {"cache": ("growing",), "wrap": ("", "if new", "if past", "function")}
CACHED = {
    **FLOAT,
    "borrow": ("",),
    "wrap": ("", "if new", "if past", "function"),
    "standard": (False,),
}
TURNED = {"rotary": ("op", "hand"), "positions": ("input",)}
ROTATED = {"rotary": ("node", "op", "hand"), "scaling": ("",)}
ONE_KIND = {"norm": ("",), "sink": ("",), "softcap": (0.0,), "interleaved": (False,)}
NO_BIAS = {"bias": ("",)}
LEFT = {"tokenizer_config.json": {"padding_side": "left"}}
COUNTED = {"lengths": ("mask", "positions"), **NO_BIAS, "cache": ("growing", "static")}
IF = {"wrap": ("if new", "if past"), "cache": ("growing", "static", "int8 tensor"), **NO_BIAS}
STANDARD = {"standard": (True,), "layers": (2, 3, 4)}
PIPELINE = {
    "pipeline": (True,), "cache": ("static",), "lengths": ("given",), "wrap": ("",), "types": ("",),
    "positions": ("input",), "embeds": (False,), "beams": (False,), **NO_BIAS, "standard": (False,),
}  # fmt: skip
F = Fault
FAULTS = (
    # A configuration shows them.
    F("window lost", "config", {**WINDOWED, **FLOAT}, to(window=0)),
    F("window off by one", "config", {**WINDOWED, **FLOAT},
      lambda d: {"window": d.window + 1}),
    F("windows in the other layers", "config",
      {**WINDOWED, "pattern": ("even",), "layers": (2, 3, 4), "borrow": ("",), **FLOAT},
      to(pattern="odd")),
    F("window in all layers", "config",
      {**WINDOWED, "pattern": ("even", "odd"), "layers": (2, 3, 4), "borrow": ("",), **FLOAT},
      to(pattern="all")),
    F("other base", "config", {**ROTATED, "base": (1e4,)}, to(base=5e5)),
    F("scale of its own", "config", {"scale": (0.0,)}, to(scale=0.4)),
    F("scale lost", "config", {"scale": (0.4,)}, to(scale=0.0)),
    F("softcap dropped", "config", {"softcap": (2.0,)}, to(softcap=0.0)),
    F("other softcap", "config", {"softcap": (2.0,)}, to(softcap=5.0)),
    F("sink dropped", "config", {**ONE_KIND, "sink": ("sink",)}, to(sink="")),
    F("pairs for halves", "config", {**ROTATED, **ONE_KIND, "rotary": ("node", "op")},
      to(interleaved=True)),
    F("whole head for a part", "config", {**ROTATED, "partial": (0.5,), "size": (32,)},
      to(partial=1.0)),
    F("norm after for before", "config",
      {**ONE_KIND, **TURNED, "norm": ("before",), "offset": (0,)}, to(norm="after")),
    F("norm before for after", "config",
      {**ONE_KIND, **TURNED, "norm": ("after",), "offset": (0,)}, to(norm="before")),
    F("one base for all layers", "config",
      {"local_base": (50.0,), "rotary": ("node", "op", "hand")}, to(local_base=0.0)),
    F("bases of the other layers", "config",
      {"local_base": (50.0,), "base": (1e4,), "rotary": ("node", "op")},
      to(base=50.0, local_base=1e4)),
    F("rotated in all layers", "config", {"unrotated": ("even", "odd"), **ONE_KIND},
      to(unrotated="")),
    F("rotation lost in some layers", "config",
      {**ROTATED, **ONE_KIND, "unrotated": ("",), "layers": (2, 4), "borrow": ("",), "wrap": ("",)},
      to(unrotated="odd")),
    F("never rotated", "config", {**ROTATED, **ONE_KIND, "offset": (0,)}, to(rotary="none")),
    *(F(f"scaling lost: {kind}", "config", {"rotary": ("node", "op"), "scaling": (kind,)},
        to(scaling="")) for kind in ("linear", "yarn", "llama3", "longrope")),
    F("yarn without its factor", "config", {"rotary": ("node", "op", "hand"), "scaling": ("yarn",)},
      to(scaling="yarn bare")),
    F("branches of the tables swapped", "config", {"scaling": ("longrope",)}),
    F("borrowed from another layer", "config",
      {"borrow": ("constant", "slice", "identity"), "layers": (4,), **WINDOWED,
       "pattern": ("even", "odd")}),
    F("heads of half the size", "config",
      {"rotary": ("none",), "norm": ("",), "sink": ("", "smooth"), "size": (32,), "heads": (4,),
       "borrow": ("",), **FLOAT, "standard": (False,), "wrap": ("", "if new", "function")}),
    F("scale lost in standard layers", "config", {**STANDARD, "scale": (0.4,)}),
    F("window lost in standard layers", "config",
      {**STANDARD, **WINDOWED, "pattern": ("all",)}),
    # Programs show them.
    F("a count for an index", "results", COUNTED),
    F("lengths short by one", "results", COUNTED),
    F("total too large", "results", COUNTED),
    F("lengths of the widest row", "results",
      {**COUNTED, "standard": (False,), "wrap": ("", "if new")}),
    F("mask ignored", "results",
      {**GROWING, **NO_BIAS, "lengths": ("mask",), "positions": ("input",), "standard": (False,),
       "borrow": ("",)}, to(lengths="shape")),
    F("positions restart", "results", {**TURNED, **NO_BIAS, "standard": (False,)}),
    F("positions of padding", "results",
      {"rotary": ("op",), "bias": ("pad",), "cache": ("growing",), "norm": ("", "before"),
       "offset": (0,)}, to(rotary="node_ids"), LEFT),
    F("tables cut at the position", "results", {"rotary": ("node",), **GROWING}),
    F("presents of another layer", "results", {**CACHED, "layers": (2, 4)}),
    F("key for value", "results", CACHED),
    F("past returned as present", "results",
      {"cache": ("static", "sliding"), "beams": (False,), "wrap": ("", "if new", "function")}),
    F("cache cast to int8", "results", {**CACHED, "cache": ("growing",), "beams": (False,)}),
    *(F(f"scale of {part} saturates", "results", {"cache": ("int8 tensor", "int8 channel")})
      for part in "kv"),
    F("scales of zero", "results", {"cache": ("int8 tensor", "int8 channel")}),
    F("no bit width", "results", {"cache": ("int8 tensor", "int8 channel")}),
    F("scales in and out differ", "results", {"cache": ("qdq",)}),
    F("cache cut too short", "results", {"cache": ("trimmed",), "window": (5, 7)}),
    F("cut cache, and the node rotates", "results", {"cache": ("trimmed",), "rotary": ("op",),
      "norm": ("", "before")}, to(rotary="node")),
    F("beams of keys alone", "results", {"beams": (True,)}),
    F("bias one token off", "results", {"bias": ("pad", "pad causal")}, None, LEFT),
    F("bias without padding", "results", {"bias": ("pad", "pad causal")}, None, LEFT),
    F("bias transposed", "results", {"bias": ("causal", "pad causal")}),
    F("bias without its causal part", "results", {"bias": ("causal", "pad causal")}),
    F("causal 0", "results", {**NO_BIAS, "window": (0,), "standard": (False,)}),
    F("types by or", "results", {"types": ("block",), "bias": ("causal", "pad causal")}),
    F("mask shows the next token", "results", STANDARD),
    F("one past for all layers", "results", {"wrap": ("loop",)}),
    F("tables switched by the new tokens", "results", {"scaling": ("longrope",)}),
    F("cache of the window's length alone", "results", {"cache": ("sliding",)}, None,
      {"slide": True}),
    F("padding at the left", "results",
      {"lengths": ("mask",), **NO_BIAS, "cache": ("growing",), "standard": (False,)},
      to(fault=""), LEFT),
    F("shared buffer for lengths of shapes", "results",
      {"lengths": ("mask",), **NO_BIAS, **GROWING, "standard": (False,), "beams": (False,),
       "borrow": ("",), "positions": ("input",)}, to(lengths="shape"), {"share": True}),
    F("norm in the node", "results",
      {"norm": ("before",), "rotary": ("node",), **CACHED, "packed": (False,)}, to(norm="node")),
    *(F(f"{what} in {'one' if side else 'the other'} branch", "results", {**IF, **needs},
        in_branch(side, **changes))
      for side in (True, False)
      for what, needs, changes in (
          ("window lost", {"window": WINDOW, "pattern": ("all",)}, {"local_window_size": -1}),
          ("window off by one", {"window": (5, 7), "pattern": ("all",)}, {"local_window_size": 4}),
          ("scale lost", {"scale": (0.4,)}, {"scale": 0.1}),
          ("softcap dropped", {"softcap": (2.0,)}, {"softcap": 0.0}),
          ("sink dropped", {"sink": ("sink",)}, {"without": ("sink",)}),
          ("never rotated", {"rotary": ("node",)}, {"do_rotary": 0}),
          ("pairs for halves", {"rotary": ("node",), "interleaved": (False,)},
           {"rotary_interleaved": 1}),
      )),
    *(F(f"{what} in the iterator", "results", {**PIPELINE, **needs}, to(**changes), {}, True)
      for what, needs, changes in (
          ("window lost", {**WINDOWED}, {"window": 0}),
          ("other base", {"rotary": ("node", "op"), "base": (1e4,)}, {"base": 100.0}),
          ("scale lost", {"scale": (0.4,)}, {"scale": 0.0}),
          ("softcap dropped", {"softcap": (2.0,)}, {"softcap": 0.0}),
          ("key for value", {}, {"fault": "key for value"}),
      )),
    # Inspection shows them: each result follows from the same wrong graph.
    F("cos and sin swapped", "inspection", {**ROTATED, "rotary": ("node", "op")}),
    F("rotated twice", "inspection",
      {**TURNED, "rotary": ("op",), "offset": (0,), "cache": ("growing", "static"), **NO_BIAS,
       "norm": ("",), "standard": (False,)}),
    F("keys alone turned", "inspection", TURNED),
    F("positions of keys shifted", "inspection", TURNED),
    F("borrowed value for key", "inspection", {"borrow": ("constant", "slice", "identity")}),
)  # fmt: skip


def valid_for(fault: Fault, rng: np.random.Generator) -> Decoder:
    """A valid decoder in which the fault can be."""
    chosen = {k: values[int(rng.integers(len(values)))] for k, values in fault.needs.items()}
    return drawn(rng, chosen)


# Files beside the models


def config_of(d: Decoder) -> Files | None:
    """config.json, None where no configuration says what this decoder has."""
    kinds = [d.norm, d.sink, d.interleaved, d.scaling == "longrope", d.softcap]
    named = sum(map(bool, kinds)) <= 1 and not (d.borrow or d.scale or d.types or d.standard)
    family = {"before": "qwen3", "after": "hunyuan_v1_dense"}.get(d.norm, "llama")
    family = "gpt_oss" if d.sink else "phi3" if d.scaling == "longrope" else family
    family = "mistral" if family == "llama" and d.window and d.pattern == "all" else family
    family = "smollm3" if d.unrotated else family
    named = named and not (d.local_base or (d.unrotated and (d.norm or d.sink)))
    named = named and not (d.sink == "smooth" or d.interleaved or d.softcap)
    types = [
        "sliding_attention" if d.window_of(layer) else "full_attention" for layer in range(d.layers)
    ]
    if d.borrow:
        half = (d.layers + 1) // 2
        for layer in range(half, d.layers):
            same = [n for n in range(half) if types[n] == types[layer]]
            if not same or same[-1] != layer - half:
                return None
    made: Files = {
        "hidden_size": WIDTH,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv,
        "head_dim": d.size,
        "vocab_size": WORDS,
        "num_hidden_layers": d.layers,
        "max_position_embeddings": TABLE,
    }
    if named:
        made["model_type"] = family
    if d.rotary != "none":
        made["rope_theta"] = d.base
    elif named:
        return None
    if d.local_base:
        made["rope_local_base_freq"] = d.local_base
    if d.unrotated:
        made["no_rope_layers"] = [int(d.turns(layer)) for layer in range(d.layers)]
    if d.partial < 1:
        made["partial_rotary_factor"] = d.partial
    if any(d.window_of(layer) for layer in range(d.layers)):
        made |= {"sliding_window": d.window, "layer_types": types}
        made |= {"use_sliding_window": True} if family == "qwen3" else {}
    if d.borrow:
        made |= {"num_kv_shared_layers": d.layers // 2, "layer_types": types}
    if made.get("model_type") == "gpt_oss":  # by default, each second layer has a window
        made["layer_types"] = types
    if d.softcap:
        made["attn_logit_softcapping"] = d.softcap
    if d.scale:
        by_scalar = d.seed % 2
        name = "query_pre_attn_scalar" if by_scalar else "attention_multiplier"
        made[name] = d.scale**-2 if by_scalar else d.scale
    original = {"original_max_position_embeddings": ORIGINAL}
    scalings: dict[str, Files] = {
        "linear": {"rope_type": "linear", "factor": 4.0},
        "yarn": {"rope_type": "yarn", "factor": 16.0, **original},
        "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, **original},
        "longrope": {"type": "longrope", "short_factor": SHORT.tolist(),
                     "long_factor": LONG.tolist()},
    }  # fmt: skip
    if d.scaling:
        made["rope_scaling"] = scalings[d.scaling]
        made |= original if d.scaling == "longrope" else {}
    return made


def genai_config_of(d: Decoder, share: bool = False, slide: bool = False) -> Files:
    """genai_config.json."""
    names = {
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    decoder: Files = {
        "head_size": d.size,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv,
        "num_hidden_layers": d.layers,
        "inputs": names,
    }
    if d.pipeline:
        steps = {
            "prompt-processor": ("context.onnx", "token_gen"),
            "token-generator": ("iterator.onnx", "prompt"),
        }
        decoder["pipeline"] = [
            {step: {"filename": file, f"run_on_{other}": False}}
            for step, (file, other) in steps.items()
        ]
        decoder["inputs"] |= {
            "past_sequence_length": "past_seq_len",
            "total_sequence_length": "total_seq_len",
        }
        share = True
    else:
        decoder["filename"] = "model.onnx"
    if d.cache == "sliding" or slide:
        layers = [layer for layer in range(d.layers) if d.window_of(layer)]
        window = {"window_size": d.window, "slide_key_value_cache": True, "slide_inputs": False}
        decoder["sliding_window"] = {**window, "layers": layers}
    kind = "decoder-pipeline" if d.pipeline else "llama"
    model = {"type": kind, "context_length": ROWS, "decoder": decoder}
    return {"model": model, "search": {"past_present_share_buffer": share, "max_length": ROWS}}


def files_for(fault: Fault, d: Decoder, rng: np.random.Generator) -> tuple[Files, Files]:
    """The files beside the valid decoder, and beside the wrong one, by name."""
    files: Files = {}
    allowed = promised(d)
    if fault.seen == "config" or rng.random() < 0.4:
        files["config.json"] = config_of(d)
    sides = [side for side in ("left", "right") if side in allowed]
    if sides and rng.random() < 0.4:
        files["tokenizer_config.json"] = {"padding_side": sides[0]}
    share = "shared" in allowed and rng.random() < 0.5
    if d.pipeline or (d.wrap != "loop" and rng.random() < 0.25):
        files["genai_config.json"] = genai_config_of(d, share)
    wrong = dict(files)
    for name, value in fault.files.items():
        if name in ("share", "slide"):
            wrong["genai_config.json"] = genai_config_of(d, **{name: value})
        else:
            wrong[name] = value
            if name in ("tokenizer_config.json",) and "left" in allowed:
                files[name] = value
    return ({k: v for k, v in each.items() if v is not None} for each in (files, wrong))  # type: ignore[return-value]


def asked(files: Files) -> list[str]:
    """The ways of calling that files beside a model ask for."""
    ways = []
    if side := files.get("tokenizer_config.json", {}).get("padding_side"):
        ways.append(side)
    genai = files.get("genai_config.json", {})
    if genai.get("search", {}).get("past_present_share_buffer"):
        ways.append("pipeline" if "pipeline" in genai["model"]["decoder"] else "shared")
    return ways


def text_of(file: Files) -> str:
    return json.dumps(file, indent=1)
