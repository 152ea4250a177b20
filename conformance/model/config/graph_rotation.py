"""How a graph prepares the queries and keys of a layer: norms, rotation, and rotary tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
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
_PASSING: Final = frozenset(
    ("Identity", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Split")
)
#: Operators that normalise.
NORMS: Final = frozenset(
    ("SimplifiedLayerNormalization", "RMSNormalization", "LayerNormalization", "LpNormalization")
)
_PRODUCTS: Final = frozenset(("MatMul", "MatMulNBits", "Gemm", "FusedMatMul", "MatMulBnb4"))
_QUANTISING: Final = frozenset(("QuantizeLinear", "DequantizeLinear"))


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

    ``rotates``: by the node or by a RotaryEmbedding before it; ``interleaved`` and ``tables``, the
    names of its cosines and sines, are those of the rotation. ``norm``: ``before`` or ``after`` the
    rotation, "" for none. ``scaled``: something is multiplied by a constant. None: not known.
    """

    rotates: bool | None
    interleaved: bool | None = None
    tables: tuple[str, str] | None = None
    norm: str | None = None
    scaled: bool | None = None


def preparation_of(model: ReadModel, node: AttentionNode, rotary: str) -> Preparation:
    """The preparation of the queries and keys of ``node``.

    ``rotary`` is the rotation by the node itself, as in :class:`conformance.operator.call.Call`.
    """
    paths = [_path(model, node.inputs.get(name, "")) for name in ("query", "key")]
    if not node.inputs.get("key") or node.type("key").size(1) == 0:  # packed, or borrowing
        paths = paths[:1]
    known = [path for path in paths if path is not None]
    orders = {tuple(kind for kind, _ in path if kind != "scaled") for path in known}
    order = next(iter(orders)) if len(orders) == 1 and len(known) == len(paths) else None
    inside = ("norm",) if "q_norm_weight" in node.inputs else ()
    norm = scaled = None
    if order is not None:
        scaled = any(kind == "scaled" for path in known for kind, _ in path)
    if rotary != "none":
        order = None if order is None else (*order, *inside, "rotary")
        names = tuple(node.inputs.get(name, "") for name in ("cos_cache", "sin_cache"))
        found = Preparation(True, rotary == "interleaved", (names[0], names[1]))
    else:
        order = None if order is None else (*order, *inside)
        found = Preparation(None if order is None else "rotary" in order)
        turning = [made for path in known for kind, made in path if kind == "rotary"]
        if turning and found.rotates:
            at = 1 if turning[0].domain in ("", "ai.onnx") else 2
            pair = (*turning[0].input, "", "", "")[at : at + 2]
            is_interleaved = bool(attributes_in(turning[0]).get("interleaved", 0))
            found = Preparation(True, is_interleaved, (pair[0], pair[1]))
    if order is not None:
        norm = "" if "norm" not in order else "before"
        if norm and "rotary" in order and order.index("norm") > order.index("rotary"):
            norm = "after"
    elif inside:
        norm = "before"
    return Preparation(found.rotates, found.interleaved, found.tables, norm, scaled)


def _path(model: ReadModel, name: str) -> list[tuple[str, onnx.NodeProto]] | None:
    """What is done to a value after its projection, first things first; None if it is not known."""
    path: list[tuple[str, onnx.NodeProto]] = []
    fixed = {each.name for each in model.proto.graph.initializer}
    for _ in range(64):
        node = model.makers.get(name)
        if node is None or not node.input:
            return None
        if node.op_type in _PRODUCTS:
            return path[::-1]
        data = [each for each in node.input if each and not _is_constant(model, each, fixed)]
        if node.op_type in NORMS:
            path.append(("norm", node))
        elif node.op_type == "RotaryEmbedding":
            path.append(("rotary", node))
        elif node.op_type in ("Mul", "Div") and len(data) == 1:
            path.append(("scaled", node))
        elif node.op_type == "Add" and len(data) == 1:
            pass  # the bias of the projection
        elif node.op_type not in _PASSING | _QUANTISING:
            return None
        name = data[0] if node.op_type in ("Mul", "Div", "Add") else node.input[0]
    return None


def _is_constant(model: ReadModel, name: str, fixed: set[str]) -> bool:
    maker = model.makers.get(name)
    return name in fixed or (maker is not None and maker.op_type == "Constant")


@dataclass
class TableReader:
    """Reads the rotary tables of a model, each once."""

    model: ReadModel
    _read: dict[tuple[str, str], list[RotaryTables]] = field(default_factory=dict)

    def tables(self, names: tuple[str, str] | None) -> list[RotaryTables]:
        """The tables with the names of cosines and sines; none if they cannot be read.

        There are two if the graph chooses between them by the number of tokens.
        """
        if names is None:
            return []
        if names not in self._read:
            try:
                self._read[names] = [*self._tables(names)]
            except Exception:  # no weights there, or whatever a stranger's model has
                self._read[names] = []
        return self._read[names]

    def _tables(self, names: tuple[str, str]) -> Iterator[RotaryTables]:
        makers = [self.model.makers.get(name) for name in names]
        choices = [node for node in makers if node is not None and node.op_type == "If"]
        if len(choices) != len(names):
            yield _checked(self._value(names[0]), self._value(names[1]))
            return
        then_is_long = self._is_for_long(choices[0].input[0])
        for which in ("then_branch", "else_branch"):
            cos, sin = (
                self._of_branch(choice, which, [*choice.output].index(name))
                for name, choice in zip(names, choices, strict=True)
            )
            is_long = None if then_is_long is None else then_is_long == (which == "then_branch")
            yield _checked(cos, sin, is_long)

    def _of_branch(self, choice: onnx.NodeProto, which: str, at: int) -> np.ndarray:
        body = next(each.g for each in choice.attribute if each.name == which)
        name = body.output[at].name
        for tensor in body.initializer:
            if tensor.name == name:
                return array_of(tensor)
        (maker,) = (each for each in body.node if name in each.output)
        if maker.op_type == "Constant":
            return array_of(maker.attribute[0].t)
        if maker.op_type != "Identity":
            raise ValueError("not a constant")
        return self._value(maker.input[0])

    def _value(self, name: str) -> np.ndarray:
        for _ in range(8):
            maker = self.model.makers.get(name)
            if maker is None:
                return stored(self.model, name)
            if maker.op_type == "Constant":
                return array_of(maker.attribute[0].t)
            if maker.op_type not in ("Identity", "Cast", "Gather"):
                break
            name = maker.input[0]
        raise ValueError("not a constant")

    def _is_for_long(self, name: str) -> bool | None:
        """Whether a condition is true for many tokens; None if that cannot be told."""
        turned = False
        for _ in range(8):
            maker = self.model.makers.get(name)
            if maker is None:
                return None
            if maker.op_type in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
                constants = [self._is_known(each) for each in maker.input]
                if sum(constants) != 1:
                    return None
                return (maker.op_type.startswith("Greater") == constants[1]) != turned
            if maker.op_type not in (*_PASSING, "Not"):
                return None
            turned ^= maker.op_type == "Not"
            name = maker.input[0]
        return None

    def _is_known(self, name: str) -> bool:
        try:
            return self._value(name).size == 1
        except Exception:  # not a constant
            return False


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
