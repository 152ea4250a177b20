"""How a graph prepares the queries and keys of a layer: norms, rotation, and rotary tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from conformance.graph.nodes import AttentionNode, array_of, attributes_in, is_empty
from conformance.graph.reading import ReadModel
from conformance.graph.walks import make_names_safe

#: The largest model that is read as a whole for its tables, and the largest table.
_MOST_BYTES: Final = 1 << 27
_MOST_ELEMENTS: Final = 1 << 25
#: Operators that pass their first input on, some in another shape or type.
_PASSING: Final = (
    *("Identity", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Split"),
    *("QuantizeLinear", "DequantizeLinear"),
)
#: What other operators do to queries and keys.
_KINDS: Final = {
    **dict.fromkeys(_PASSING, "passed"),
    **dict.fromkeys(("SimplifiedLayerNormalization", "LayerNormalization"), "norm"),
    **dict.fromkeys(("RMSNormalization", "LpNormalization"), "norm"),
    "RotaryEmbedding": "rotary", "Mul": "scaled", "Div": "scaled", "Add": "bias",
}  # fmt: skip
#: What a rotation is written with that is not the operator (of some, the first input is the value),
#: and what its cosines and sines are.
_SUMS: Final = frozenset(("Add", "Sub", "Concat"))
_FIRST_ONLY: Final = frozenset((*_PASSING, "Slice", "Neg"))
_BY_HAND: Final = frozenset((*_SUMS, "Mul", *_FIRST_ONLY))
_ANGLES: Final = frozenset(("Cos", "Sin", "Gather"))
_PRODUCTS: Final = frozenset(("MatMul", "MatMulNBits", "Gemm", "FusedMatMul", "MatMulBnb4"))


@dataclass(frozen=True)
class RotaryTables:
    """Cosines and sines by position and pair. ``is_long``: only for long contexts, or never for
    them; None: for all, or for which is not known.
    """

    cos: np.ndarray
    sin: np.ndarray
    is_long: bool | None = None


@dataclass(frozen=True)
class Preparation:
    """What is done to queries and keys between their projections and their products.

    ``rotates``: by the node or before it; ``interleaved`` and ``tables``, the names of its cosines
    and sines, are those of a rotation by the node or by a RotaryEmbedding. ``norm``: ``before`` or
    ``after`` the rotation, "" for none. ``scaled``: something is multiplied by a constant. None:
    not known.
    """

    rotates: bool | None
    interleaved: bool | None = None
    tables: tuple[str, str] | None = None
    norm: str | None = None
    scaled: bool | None = None


_Path = Sequence[tuple[str, onnx.NodeProto]]


class RotationReader:
    """Reads how a graph prepares queries and keys."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model
        self._fixed = {each.name for each in model.proto.graph.initializer}
        self._fixed |= {n for n, maker in model.makers.items() if maker.op_type == "Constant"}
        self._tables: dict[tuple[str, str], list[RotaryTables]] = {}

    def preparation(self, node: AttentionNode, rotary: str) -> Preparation:
        """The preparation of the queries and keys of ``node``.

        ``rotary`` is the rotation by the node, as in :class:`conformance.operator.call.Call`.
        """
        has_key = node.inputs.get("key") and node.type("key").size(1) != 0
        names = ("query", "key") if has_key else ("query",)  # packed, or borrowing
        paths = [self._path(node.inputs.get(name, "")) for name in names]
        inside = ["norm"] if "q_norm_weight" in node.inputs else []
        orders = [
            [kind for kind, _ in path or () if kind in ("norm", "rotary")] + inside
            for path in paths
        ]
        is_known = None not in paths and all(order == orders[0] for order in orders)
        turning = next((made for kind, made in paths[0] or () if kind == "rotary"), None)
        tables, interleaved = None, None
        if rotary != "none":
            orders[0].append("rotary")
            tables = node.inputs.get("cos_cache", ""), node.inputs.get("sin_cache", "")
            interleaved = rotary == "interleaved"
        elif is_known and turning is not None and turning.op_type == "RotaryEmbedding":
            cos, sin = (*turning.input, "", "", "")[
                1 if turning.domain in ("", "ai.onnx") else 2 :
            ][:2]
            tables, interleaved = (cos, sin), bool(attributes_in(turning).get("interleaved", 0))
        if not is_known:
            rotates = True if rotary != "none" else None
            return Preparation(rotates, interleaved, tables, "before" if inside else None)
        order = orders[0]
        late = "rotary" in order and "norm" in order[order.index("rotary") :]
        norm = "" if "norm" not in order else "after" if late else "before"
        steps = [step for path in paths for step in path or ()]
        scaled: bool | None = any(kind == "scaled" for kind, _ in steps)
        if any(made.op_type in _SUMS for kind, made in steps if kind == "rotary"):
            scaled = scaled or None  # among the products of a rotation, a factor is not looked for
        return Preparation("rotary" in order, interleaved, tables, norm, scaled)

    def _path(self, name: str) -> _Path | None:
        """What is done to a value after its projection, in order; None if it is not known."""
        path: list[tuple[str, onnx.NodeProto]] = []
        while len(path) < 64:
            node = self._model.makers.get(name)
            if node is None or not node.input:
                return None
            if node.op_type in _PRODUCTS:
                return path[::-1]
            data = [each for each in node.input if each and each not in self._fixed]
            kind = _KINDS.get(node.op_type)
            if node.op_type in _SUMS and len(data) > 1:
                kind, data = "rotary", self._rotated_by_hand(name)
                if not data:
                    return None
            if kind is None or (kind in ("bias", "scaled") and len(data) != 1):
                return None
            path.append((kind, node))
            name = data[0] if data else ""
        return None

    def _rotated_by_hand(self, name: str) -> list[str]:
        """The value that sums of products with cosines and sines rotate; none if these are not."""
        rotated, angles, left, seen = set[str](), 0, [name], {name}
        while left:
            value = left.pop()
            node = self._model.makers.get(value)
            if node is not None and node.op_type in _ANGLES:
                angles += 1
            elif node is None or node.op_type not in _BY_HAND:
                rotated.add(value)
            else:
                number = 1 if node.op_type in _FIRST_ONLY else None
                inputs = {each for each in node.input[:number] if each not in self._fixed} - seen
                left += inputs
                seen |= inputs
        return [*rotated] if len(rotated) == 1 and angles else []

    def tables(self, names: tuple[str, str] | None) -> list[RotaryTables]:
        """The tables with the names of cosines and sines; none if they cannot be read.

        There are two if the graph chooses between them by the number of tokens.
        """
        if names is not None and names not in self._tables:
            try:
                self._tables[names] = [*self._read(names)]
            except Exception:  # no weights there, or whatever a stranger's model has
                self._tables[names] = []
        return self._tables[names] if names is not None else []

    def _read(self, names: tuple[str, str]) -> Iterator[RotaryTables]:
        makers = [self._model.makers.get(name) for name in names]
        choices = [node for node in makers if node is not None and node.op_type == "If"]
        if len(choices) != len(names):
            yield _checked(self._value(names[0]), self._value(names[1]))
            return
        then_is_long = self._is_for_long(choices[0].input[0])
        for which in ("then_branch", "else_branch"):
            pairs = zip(names, choices, strict=True)
            cos, sin = (self._of_branch(node, which, name) for name, node in pairs)
            is_long = None if then_is_long is None else then_is_long == (which == "then_branch")
            yield _checked(cos, sin, is_long)

    def _of_branch(self, choice: onnx.NodeProto, which: str, output: str) -> np.ndarray:
        body = next(each.g for each in choice.attribute if each.name == which)
        name = body.output[[*choice.output].index(output)].name
        inside = next((each for each in body.initializer if each.name == name), None)
        return self._value(name) if inside is None else array_of(inside)

    def _value(self, name: str) -> np.ndarray:
        """The content of an initializer or a constant. Raises for what is none."""
        maker = self._model.makers.get(name)
        if maker is None:
            return stored(self._model, name)
        if maker.op_type == "Constant":
            return array_of(maker.attribute[0].t)
        if maker.op_type not in ("Identity", "Cast", "Gather"):
            raise ValueError("not a constant")
        return self._value(maker.input[0])

    def _is_for_long(self, name: str) -> bool | None:
        """Whether a condition is true for many tokens; None if that cannot be told."""
        maker = self._model.makers.get(name)
        if maker is None or not maker.input:
            return None
        if maker.op_type in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
            fixed = [each in self._fixed for each in maker.input]
            return None if sum(fixed) != 1 else (maker.op_type[0] == "G") == fixed[1]
        return self._is_for_long(maker.input[0]) if maker.op_type in _PASSING else None


def _checked(cos: np.ndarray, sin: np.ndarray, is_long: bool | None = None) -> RotaryTables:
    """The tables. Raises ValueError if they are none."""
    if cos.ndim != 2 or cos.shape != sin.shape or len(cos) < 2 or not cos.shape[1]:
        raise ValueError("not tables")
    return RotaryTables(cos.astype(np.float64), sin.astype(np.float64), is_long)


def stored(model: ReadModel, name: str) -> np.ndarray:
    """The content of an initializer, from its file. Raises if it is missing or too large."""
    found = {each.name: each for each in model.proto.graph.initializer}[name]
    if math.prod(found.dims) > _MOST_ELEMENTS or model.path.stat().st_size > _MOST_BYTES:
        raise ValueError("too large")
    tensor = onnx.TensorProto()
    tensor.CopyFrom(found)
    if is_empty(tensor) and not tensor.external_data:
        whole = onnx.load(model.path, load_external_data=False)
        make_names_safe(whole)
        tensor = next(each for each in whole.graph.initializer if each.name == name)
    return numpy_helper.to_array(tensor, str(model.path.parent))
