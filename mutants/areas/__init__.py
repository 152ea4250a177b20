"""The mutants, a module for each part of a kernel that is faulty in them."""

from registry import MUTANTS

from areas import (  # noqa: F401
    acceptances,
    batches,
    bias,
    cache,
    chunks,
    combinations,
    dispatch,
    heads,
    lengths,
    masks,
    memory,
    messages,
    norm,
    outputs,
    positions,
    precision,
    presents,
    process,
    quantisation,
    refusals,
    rotary,
    scores,
    sink,
    tiles,
    window_cache,
)

__all__ = ["MUTANTS"]
