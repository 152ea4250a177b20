"""A target that is a variant of another one by its attention kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.targets.catalogue import TargetEntry, entry_of


def variant(printing: dict[str, str], **fields: Any) -> TargetEntry:
    """cuda-flash with ONNX Runtime's CPU provider, which prints what the CUDA provider prints."""
    entry = entry_of("cuda-flash")
    return replace(
        entry,
        name="fake-flash",
        arguments=("--ep", "cpu", *entry.arguments[2:]),
        environment={**entry.environment, **printing},
        execution_provider="CPUExecutionProvider",
        target_class="cpu",
        kernel_variant_of="cpu",
        **fields,
    )
