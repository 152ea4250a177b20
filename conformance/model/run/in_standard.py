"""A model as a program runs it, in standard operators."""

from __future__ import annotations

from dataclasses import replace

import onnx

from conformance.model.calls.program import DecoderProgram
from conformance.model.calls.skeleton import Skeleton
from conformance.model.run.pipeline import PipelineProgram
from conformance.rewriting.dense import CannotRewrite
from conformance.rewriting.standard import standard_model


def content_in_standard_operators(content: bytes) -> bytes:
    """A model without GroupQueryAttention.

    Raises :class:`CannotRewrite` if a node has no form in standard operators.
    """
    return _rewritten(onnx.ModelProto.FromString(content)).SerializeToString()


def program_in_standard_operators(program: DecoderProgram) -> DecoderProgram:
    """The same calls of the rewritten model, whose values keep their names.

    Raises :class:`CannotRewrite` if a node has no form in standard operators.
    """
    made = replace(program, skeleton=_skeleton(program.skeleton))
    if isinstance(made, PipelineProgram):
        files = (replace(file, skeleton=_skeleton(file.skeleton)) for file in made.files)
        return replace(made, files=tuple(files))
    return made


def _skeleton(skeleton: Skeleton) -> Skeleton:
    model = _rewritten(skeleton.model)
    return replace(skeleton, model=model, content=model.SerializeToString())


def _rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    made = standard_model(model)
    if made.left:
        (name, why), *others = made.left
        more = f" and {len(others)} more" if others else ""
        raise CannotRewrite(f"{name}{more} cannot be written in standard operators: {why}.")
    return made.model
