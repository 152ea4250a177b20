"""Calls computed with ONNX's standard operators by onnx.reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
from onnx.reference import ReferenceEvaluator
from other_oracles import Computed, Said
from random_configurations import Configuration


@cache
def standard_op(
    op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], opset: int, attributes: Any
) -> Any:
    """Return one standard operator ready to run; creating one takes longer than running it."""
    node = oh.make_node(op_type, inputs, outputs, **dict(attributes))
    types = {
        "mask_of_truths": onnx.TensorProto.BOOL,
        "positions": onnx.TensorProto.INT64,
        "starts": onnx.TensorProto.INT64,
        "lengths": onnx.TensorProto.INT64,
    }
    graph = oh.make_graph(
        [node],
        "standard",
        [
            oh.make_tensor_value_info(name, types.get(name, onnx.TensorProto.DOUBLE), None)
            for name in inputs
            if name
        ],
        [
            oh.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None)
            for name in outputs
            if name
        ],
    )
    return ReferenceEvaluator(oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)]))


def run_standard(
    op_type: str,
    opset: int,
    feeds: Mapping[str, np.ndarray | None],
    outputs: str,
    **attributes: Any,
) -> list[np.ndarray]:
    """Run an operator whose inputs are ``feeds`` in order, None where one is omitted."""
    names = [name if array is not None else "" for name, array in feeds.items()]
    while not names[-1]:
        names.pop()
    op = standard_op(
        op_type, tuple(names), tuple(outputs.split(",")), opset, tuple(attributes.items())
    )
    return op.run(None, {name: array for name, array in feeds.items() if array is not None})


class Standard:
    """A call in ONNX's standard operators.

    A sink becomes a key before all others: zero, of value zero, and with its logit in the mask.
    """

    def __init__(self, said: Said, opset: int, qk_matmul_output_mode: int = 3) -> None:
        self.said, self.opset, self.mode = said, opset, qk_matmul_output_mode
        self.first = 0 if said.sink is None else 1
        """The place of the first token's key."""

    def with_the_cache_inside(self) -> Computed:
        """Tokens in the layout [B, S, width]; the operator appends them to the past."""
        said = self.said
        key = self.turned(said.key, said.key_positions, said.kv_num_heads)
        empty = np.zeros((said.batch_size, said.kv_num_heads, 0, said.head_size))
        past_key = empty if said.prompt else said.inputs["past_key"]
        past_value = empty if said.prompt else said.inputs["past_value"]
        feeds = {
            "past_key": self.after_the_sink(past_key),
            "past_value": self.after_the_sink(past_value),
        }
        if past_key is empty and not self.first:
            feeds = {"past_key": None, "past_value": None}
        output, present_key, present_value, weights = run_standard(
            "Attention",
            self.opset,
            {
                "Q": self.turned(self.scaled(), said.query_positions, said.num_heads),
                "K": key,
                "V": said.value,
                **self.mask(),
                **feeds,
            },
            "Y,present_key,present_value,weights",
            q_num_heads=said.num_heads,
            kv_num_heads=said.kv_num_heads,
            **self.arguments(),
        )
        return Computed(
            f"opset {self.opset}, cache inside",
            said.bnsh(output),
            weights.sum(axis=3),
            present_key[:, :, self.first :],
            present_value[:, :, self.first :],
        )

    def with_the_cache_outside(self) -> Computed:
        """Separate heads, [B, N, S, D], on a buffer to which TensorScatter wrote the new tokens."""
        said = self.said
        query = said.bnsh(self.scaled())
        key = self.laid_out(
            "past_key", self.turned(said.bnsh(said.key), said.key_positions, said.kv_num_heads)
        )
        value = self.laid_out("past_value", said.bnsh(said.value))
        lengths = said.lengths + self.first
        if said.prompt and said.causal:  # padding comes later than any token
            lengths = np.full_like(lengths, said.total + self.first)
        output, weights = run_standard(
            "Attention",
            self.opset,
            {
                "Q": self.turned(query, said.query_positions, said.num_heads),
                "K": self.after_the_sink(key),
                "V": self.after_the_sink(value),
                **self.mask(),
                "past_key": None,
                "past_value": None,
                "lengths": lengths,
            },
            "Y,,,weights",
            **self.arguments(),
        )
        way = f"opset {self.opset}, cache outside"
        return Computed(way, output, weights.sum(axis=3), key, value, weights)

    @property
    def scale_is_told(self) -> bool:
        """Whether the operator itself scales.

        The reference takes the root of a given scale in float32, up to 6e-8 off: only an exact
        root will do.
        """
        given = self.said.attributes.get("scale")
        return given is None or given in (0.25, 0.0625)

    def scaled(self) -> np.ndarray:
        return self.said.query * (1.0 if self.scale_is_told else self.said.scale)

    def arguments(self) -> dict[str, Any]:
        said = self.said
        arguments: dict[str, Any] = {
            "is_causal": int(said.causal),
            "qk_matmul_output_mode": self.mode,
        }
        if "scale" in said.attributes:
            arguments["scale"] = said.scale if self.scale_is_told else 1.0
        if said.softcap:
            arguments["softcap"] = said.softcap
        if self.opset >= 25 and said.window is not None and not self.first:
            arguments["left_window_size"] = said.window - 1
        return arguments

    def turned(self, x: np.ndarray, positions: np.ndarray, heads: int) -> np.ndarray:
        said = self.said
        if not said.attributes.get("do_rotary") or 0 in x.shape:
            return x
        cos, sin = said.inputs["cos_cache"], said.inputs["sin_cache"]
        dims = 2 * cos.shape[1]
        attributes = {"num_heads": heads} if x.ndim == 3 else {}
        (y,) = run_standard(
            "RotaryEmbedding",
            23,
            {"X": x, "cos": cos, "sin": sin, "positions": positions},
            "Y",
            interleaved=said.attributes["rotary_interleaved"],
            rotary_embedding_dim=0 if dims == said.head_size else dims,  # 0: the whole head
            **attributes,
        )
        return y

    def laid_out(self, past_name: str, new: np.ndarray) -> np.ndarray:
        said = self.said
        if said.stage in ("borrowed", "borrowed_prompt"):
            return said.inputs[past_name]
        if said.stage == "all_at_once":
            return new
        past = said.inputs.get(past_name, np.zeros((*new.shape[:2], 0, said.head_size)))
        missing = max(said.total - past.shape[2], 0)
        buffer = np.pad(past, ((0, 0), (0, 0), (0, missing), (0, 0)))
        feeds = {"past": buffer, "new": new, "starts": said.starts}
        return run_standard("TensorScatter", 24, feeds, "present", axis=2)[0]

    def after_the_sink(self, cache: np.ndarray) -> np.ndarray:
        return np.pad(cache, ((0, 0), (0, 0), (self.first, 0), (0, 0)))

    def mask(self) -> dict[str, np.ndarray | None]:
        """The bias, the sink's logit, and the window where the operator does not get it."""
        said = self.said
        shape = (said.batch_size, said.num_heads, said.queries, said.total)
        mask = said.inputs.get("attention_bias")
        if said.window is not None and "left_window_size" not in self.arguments():
            at = said.starts[:, None] + np.arange(said.queries)
            behind = at[:, None, :, None] - np.arange(said.total)
            mask = np.where(behind < said.window, 0.0 if mask is None else mask, -np.inf)
        if said.sink is not None:
            whole = np.broadcast_to(0.0 if mask is None else mask, shape)
            sink = np.broadcast_to(said.sink[:, None, None], (*shape[:3], 1))
            mask = np.concatenate([sink, whole], axis=3)
        if mask is not None and np.isin(mask, (0.0, -np.inf)).all():
            return {"mask_of_truths": mask == 0.0}
        return {"mask": mask}


def standard_ways(configuration: Configuration) -> Iterator[Computed]:
    """Compute a call in each way that can express it; opset 25 only where its window is needed."""
    said = Said(configuration)
    window = said.window is not None and said.sink is None
    appended = said.stage in ("prompt", "prompt_into_static", "concatenated")
    if appended and (said.uniform or (said.prompt and said.causal)):
        yield Standard(said, 23).with_the_cache_inside()
        if window:
            yield Standard(said, 25).with_the_cache_inside()
    yield Standard(said, 24).with_the_cache_outside()
    if window:
        yield Standard(said, 25).with_the_cache_outside()
