"""Symptoms: results of one cause have the same, results of others do not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from synthetic_runs import error, expected, result

from conformance.results.causes import symptom
from conformance.results.records import (
    BeyondBudget,
    RelationBroken,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)

ALONE = "The runner died of {}, and again when it was tried alone"


def crash(message: str) -> str:
    return symptom(result(verdict="crash", message=message, reason=message))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (f"{ALONE.format('SIGFPE')}.", "SIGFPE"),
        (f"{ALONE.format('SIGSEGV')}; the last it wrote: x[17] = 3.", "SIGSEGV: x[N] = N"),
        ("The runtime's process died of SIGABRT in step 2: free(): invalid", "SIGABRT"),
        (
            "The runtime's process ended in a panic: panicked at core-0.23.9/gather.rs:85:59:\n"
            "range end index 48 out of range for slice of length 12",
            "panic: coreN/gather.rs:<line>: range end index N out of range for slice of length N",
        ),
        (
            f"{ALONE.format('SIGABRT')}; it panicked at src/a.rs:1:2: len is 7.",
            "SIGABRT: src/a.rs:<line>: len is N",
        ),
        (
            "The call ended in cudaErrorIllegalAddress: CUDA failure 700: an illegal memory access",
            "cudaErrorIllegalAddress",
        ),
        (
            "The runtime's process ended in a memcheck error: Invalid __global__ read of size 2 "
            "bytes at flash_fwd_kernel(Params)+0x1f0 in kernel.h:53 by thread (64,0,0) in block "
            "(2,0,0) Address 0x7f1c0a0006f4 is out of bounds (3 errors in all)",
            "memcheck: Invalid __global__ read of size N bytes at flash_fwd_kernel(Params)+Nx1f0 "
            "in kernel.h:<line>",
        ),
        ("It vanished in step 3.", "It vanished in step N"),
    ],
)
def test_of_a_crash_the_signal_and_the_last_words(message: str, shown: str) -> None:
    assert crash(message) == shown


def beyond(output: str = "output", got: float = 2.0, want: float = 1.0) -> BeyondBudget:
    return BeyondBudget(output=output, index=(0,), got=got, want=want, budget=0.1, share=10.0)


DTYPE = WrongDtype(output="output", got="float32", want="float16")
SHAPE = WrongShape(output="x", got=(1,), want=(2,))
BROKEN = RelationBroken(
    output="output", name="packed_qkv", index=(0,), got=1.0, other=2.0, budget=0.1, share=10.0
)


@pytest.mark.parametrize(
    ("verdict", "fields", "shown"),
    [
        ("wrong", {"faults": (beyond(),)}, "output is beyond its error budget"),
        ("wrong", {"faults": (beyond(got=math.nan),)}, "output is not finite"),
        ("wrong", {"faults": (beyond(want=math.inf),)}, "output is beyond its error budget"),
        (
            "wrong",
            {"faults": (beyond("present_value"), beyond("present_key"))},
            "present_key is beyond its error budget; present_value is beyond its error budget",
        ),
        ("wrong", {"faults": (RunsDiffer(output="output"),)}, "two runs differ in output"),
        ("wrong", {"faults": (DTYPE, SHAPE)}, "output has another dtype; x has another shape"),
        ("wrong", {"faults": (BROKEN,)}, "the variant packed_qkv gives another output"),
        (
            "wrong",
            {"faults": (beyond(),), "of_variant": True},
            "in the variant, output is beyond its error budget",
        ),
        (
            "wrong",
            {"errors": (error(share=0.5), error(output="x"))},
            "x is beyond its error budget",
        ),
        ("timeout", {}, "no answer in time"),
        ("accepted", {"values_right": True}, ""),
        ("fallback", {"placement": "CPUExecutionProvider"}, "it ran on CPUExecutionProvider"),
        (
            "unsupported",
            {"message": "head_size 48 must be a multiple of 32."},
            "head_size N must be a multiple of N",
        ),
        ("unsupported", {"message": "no kernel for float16."}, "no kernel for float16"),
        (
            "unsupported",
            {"message": "Node 17 at 0x7f12aa34: expected {1,8,64}, got {2,4,64}"},
            "Node N at <address>: expected {N, …}, got {N, …}",
        ),
        (
            "unsupported",
            {"message": "gqa.cc:120 took 0.5 ms in t/case[n=1] on cpu@1.31.1."},
            "gqa.cc:<line> took <time> in <case> on <target>",
        ),
        (
            "pass",
            {"unexpected": True, "expectation": expected("crash")},
            "the expectation is crash (expectations/cpu.yaml:12)",
        ),
    ],
)
def test_of_other_results_the_kinds_of_faults_by_output(
    verdict: str, fields: dict[str, Any], shown: str
) -> None:
    assert symptom(result(verdict=verdict, **({"errors": ()} | fields))) == shown
