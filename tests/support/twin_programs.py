"""What is true of a decoder: plain onnxruntime runs programs, and NumPy says what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from twin_decoders import ROWS, WORDS, Array, Decoder, logits, weights

NUMPY = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(int8)": np.int8,
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """New tokens of each row, 1 for a token and 0 for padding, after tokens were taken back or rows
    reordered."""

    rows: Sequence[str]
    back: int = 0
    order: Sequence[int] = ()


ONE, TWO = Call(("1",)), Call(("1", "1"))
#: The ways of calling. What a chat with 40 tokens shows is wrong in a chat.
WAYS: dict[str, tuple[Call, ...]] = {
    "chat": (Call(("1" * 9,)), ONE, ONE, ONE, ONE),
    "long": (Call(("1" * 40,)), ONE, ONE),
    "chunks": (Call(("1" * 5,)), Call(("1" * 4,)), Call(("1" * 3,)), ONE),
    "right": (Call(("1111000", "1111111")), TWO, TWO, TWO),
    "left": (Call(("0001111", "1111111")), TWO, TWO, TWO),
    "zero": (Call(("111011111",)), ONE, ONE),
    "back": (
        Call(("1" * 9,)),
        ONE,
        ONE,
        Call(("1",), 2),
        ONE,
        Call(("111",)),
        Call(("1",), 2),
        ONE,
    ),
    "beams": (Call(("1" * 7,) * 2), Call(TWO.rows, 0, (1, 0)), Call(TWO.rows, 0, (0, 0)), TWO),
    "shared": (Call(("1" * 9,)), ONE, Call(("111",)), ONE),
    "types": (Call(("1" * 9,)), ONE, ONE),
    "pipeline": (Call(("1" * 8,)), Call(("1" * 8,)), ONE, ONE, ONE),
}
#: In the way "types", which tokens have type 1.
BLOCK = slice(2, 5)


def promised(d: Decoder) -> list[str]:
    """The ways of calling that the interface of a valid decoder allows."""
    columns = "pad" in d.bias
    counted = d.lengths in ("mask", "positions", "given")
    cut, by_ids = d.cache in ("trimmed", "sliding"), d.rotary == "none" or d.positions == "input"
    by_ids = by_ids and d.rotary in ("none", "op", "hand")
    if d.pipeline:
        return ["pipeline"]
    ways = {
        "chat": True,
        "long": d.scaling != "longrope" or d.cache != "sliding",
        "chunks": True,
        "right": (counted and not d.in_graph)
        or (counted and d.positions == "input")
        or (columns and by_ids),
        "left": columns and d.rotary in ("none", "op", "hand") and (by_ids or d.norm != "after"),
        "zero": columns and by_ids,
        "back": not cut,
        "beams": not cut,
        "shared": counted
        and d.cache in ("growing", "int8 tensor", "int8 channel")
        and not (d.standard or d.bias or d.beams or d.borrow)
        and (not d.in_graph or d.positions == "input"),
        "types": bool(d.types),
    }
    if d.cache == "sliding":  # the operator refuses prompts of several lengths
        ways["right"] = False
    if d.standard or d.wrap == "loop":
        ways |= {"right": False, "shared": False}
    return [way for way, allowed in ways.items() if allowed]


def possible(d: Decoder) -> list[str]:
    """The ways of calling in which something can be fed."""
    if d.pipeline:
        return ["pipeline"]
    left_out = {"pipeline"} | (set() if d.types else {"types"})
    left_out |= set() if d.takes_mask else {"left", "zero"}
    if d.cache not in ("growing", "int8 tensor", "int8 channel") or d.wrap == "loop":
        left_out |= {"shared"}
    return [way for way in WAYS if way not in left_out]


@dataclass
class Truth:
    """What each way comes to, and the error as a share of the largest value."""

    ways: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    #: Whether a result differs from that of the same tokens in one prompt of the same graph.
    seen_by_results: bool = False
    message: str = ""


def session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    content = model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


class Run:
    """A program: it feeds a graph, and keeps what it must give back."""

    def __init__(self, d: Decoder, sessions: Sequence[Any], way: str) -> None:
        self.d, self.sessions, self.way = d, sessions, way
        self.calls, self.random = WAYS[way], np.random.default_rng(d.seed + 1)
        self.w = weights(d)
        rows = len(self.calls[0].rows)
        self.history: list[list[int]] = [[] for _ in range(rows)]
        self.columns = np.zeros((rows, 0), np.int64)
        self.carried: dict[str, Array] = {}

    def feed(self, at: Any, call: Call, ids: Array, types: Array) -> dict[str, Array]:
        """The inputs of a call, whose tokens are in the columns already."""
        rows, new = ids.shape
        counts = self.columns.cumsum(1)
        positions = np.where(self.columns == 0, 1, counts - 1)[:, -new:]
        plain = {
            "input_ids": ids,
            "inputs_embeds": self.w["embed"][ids],
            "attention_mask": self.columns,
            "position_ids": positions,
            "token_type_ids": types,
            "beam_idx": np.array(call.order or range(rows)),
            "past_seq_len": counts[:, -1] - 1,
            "total_seq_len": np.array([self.columns.shape[1]]),
        }
        fed = {}
        for each in at.get_inputs():
            array = plain.get(each.name, self.carried.get(each.name))
            if array is None:
                dims = {"batch": rows, "past": ROWS if self.way == "shared" else 0}
                array = np.zeros([dims.get(dim, dim) for dim in each.shape])
            fed[each.name] = array.astype(NUMPY[each.type])
        return fed

    def reorder(self, call: Call) -> None:
        """Take tokens back and put rows into another order, before a call."""
        if call.back:
            self.history = [each[: -call.back] for each in self.history]
            self.columns = self.columns[:, : -call.back]
        for name, array in self.carried.items():
            grows = self.d.cache not in ("static", "sliding") and self.way != "shared"
            if call.back and grows:
                array = array[..., : -call.back, :]
            if call.order and "beam_idx" not in {e.name for e in self.sessions[0].get_inputs()}:
                array = np.take(array, call.order, axis=-4)
            self.carried[name] = array
        if call.order:
            self.history = [list(self.history[row]) for row in call.order]
            self.columns = self.columns[list(call.order)]

    def types_of(self, n: int) -> Array:
        types = np.zeros(n, np.int64)
        if self.way == "types":
            types[BLOCK] = 1
        return types[:n]

    def results(self) -> list[list[tuple[Array, Array]]]:
        """Of each call the logits of each row, and what is right."""
        found = []
        for call in self.calls:
            self.reorder(call)
            shown = np.array([[int(each) for each in row] for row in call.rows])
            ids = np.zeros(shown.shape, np.int64)
            for row, places in enumerate(shown):
                fresh = self.random.integers(3, WORDS, int(places.sum()))
                ids[row, places == 1] = fresh
                self.history[row] += fresh.tolist()
            before = self.columns.shape[1]
            self.columns = np.concatenate([self.columns, shown], 1)
            at = self.sessions[-1 if shown.shape[1] == 1 else 0]
            types = self.types_of(self.columns.shape[1])[before:]
            fed = self.feed(at, call, ids, np.tile(types, (len(ids), 1)))
            names = [each.name for each in at.get_outputs()]
            got = dict(zip(names, at.run(None, fed), strict=True))
            self.carried = {
                name.replace("present", "past" if "_" in name else "past_key_values"): array
                for name, array in got.items()
                if name != "logits"
            }
            pairs = []
            for row, places in enumerate(shown):
                tokens = np.array(self.history[row])
                right = logits(self.d, self.w, tokens, self.types_of(len(tokens)))
                pairs.append((got["logits"][row][places == 1], right[-int(places.sum()) :]))
            found.append(pairs)
        return found

    def one_prompt(self) -> Array:
        """What the graph gives for the first row's tokens in one prompt."""
        tokens = np.array([self.history[0]])
        run = Run(self.d, self.sessions, self.way)
        run.columns = np.ones_like(tokens)
        fed = run.feed(self.sessions[0], Call(("",)), tokens, self.types_of(tokens.size)[None])
        return np.asarray(self.sessions[0].run(["logits"], fed)[0][0])


def tolerance(d: Decoder) -> float:
    """The share of the largest value by which a right result may differ."""
    rounds = d.cache.startswith("int8") or d.cache == "qdq"
    return 8e-2 if rounds else 2e-2 if d.half else 1e-3


def established(
    valid: Decoder, models: Sequence[onnx.ModelProto], with_prompt: bool = False
) -> Truth:
    """What a graph comes to in each way, if it should be this decoder."""
    truth = Truth()
    ways = possible(valid)
    try:
        sessions = [session(model) for model in models]
    except Exception as error:
        return Truth(dict.fromkeys(ways, "refused"), message=str(error))
    for way in ways:
        run = Run(valid, sessions, way)
        try:
            results = run.results()
        except Exception as error:
            truth.ways[way], truth.message = "refused", str(error)
            continue
        pairs = [pair for call in results for pair in call]
        truth.errors[way] = _error(pairs)
        truth.ways[way] = "right" if truth.errors[way] <= tolerance(valid) else "wrong"
        if with_prompt and way in ("chat", "long", "chunks", "types"):
            try:
                once = run.one_prompt()
            except Exception:
                truth.seen_by_results = True
                continue
            got = np.concatenate([call[0][0] for call in results])
            truth.seen_by_results |= _error([(got, once)]) > 2 * tolerance(valid)
    if with_prompt:
        others = [w for w in promised(valid) if w not in ("chat", "long", "chunks", "types")]
        usual = all(truth.ways[w] == "right" for w in ("chat", "chunks") if w in truth.ways)
        odd = any(truth.ways.get(way, "right") != "right" for way in others)
        truth.seen_by_results |= (usual and odd) or "refused" in truth.ways.values()
    return truth


def _error(pairs: Sequence[tuple[Array, Array]]) -> float:
    worst = [float(np.nan_to_num(np.abs(got - right), nan=np.inf).max()) for got, right in pairs]
    return max(worst) / max(float(np.abs(right).max()) for _, right in pairs)
