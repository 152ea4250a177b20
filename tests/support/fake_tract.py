#!/usr/bin/env python3
"""A fake of tract's command line: one node, ``y = Relu(x)``, and the failure FAKE_TRACT selects.

It fails at the start for the faults of `AT_START`, and else only for models beside a file called
``case``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

FAULT = os.environ.get("FAKE_TRACT", "")
STAMP = "[2026-11-21T16:30:00.123456789Z"
REGISTRY = "/home/somebody/.cargo/registry/src/index.example-0123/"

REFUSED = f"""{STAMP} WARN  tract_onnx::model] ONNX operator for your model is 21
{STAMP} ERROR tract] Error at stage "analyse"

    Caused by:
        0: ModelBuildingError
        1: GroupQueryAttention: softcap is unsupported

    Stack backtrace:
       0: anyhow::error::<impl anyhow::Error>::msg
"""
PANIC = f"""
thread 'main' (77) panicked at {REGISTRY}tract-core-0.23.9/src/ops/array/gather.rs:85:59:
range end index 48 out of range for slice of length 40
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""


FULL = REFUSED.replace("softcap is unsupported", "No space left on device (os error 28)")
AT_START = ("full_at_start", "older", "unready", "lossy")

#: What ends a call before the model is ready, and after that: what it says, and its exit status.
EARLY = {
    "full_at_start": (FULL, 1),
    "older": ("error: unexpected argument '--save-outputs-nnef' found\n\nUsage: tract\n", 2),
    "load": (REFUSED, 1),
}
LATE = {
    "run": (REFUSED.replace('Error at stage "analyse"', "Evaluating #3"), 1),
    "full": (FULL, 1),
    "panic": (PANIC, 101),
    "panic_full": (PANIC.replace("range end index 48", "Os { code: 28, kind: StorageFull }"), 101),
    "reported": ("", 128 + signal.SIGSEGV),
    "broken_pipe": ("", 128 + signal.SIGPIPE),
    "odd": ("something odd\n", 7),
    "speechless": ("", 1),
    "no_folder": ("", 0),
}


def main() -> int:
    """Answer as tract would; the exit status."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        others = {"no_tract": "grep 3.8\nCopyright", "silent": "", "of_0.22": "tract 0.22.5"}
        print(others.get(FAULT, "tract-cli 0.23.9"))
        return 0
    if FAULT == "of_0.22" and ("--runtime" in arguments or arguments == ["list-runtimes"]):
        return say("error: Found argument '--runtime' which wasn't expected\n", 2)
    if arguments == ["list-runtimes"]:
        print(" * cpu\n * unoptimized")
        return 0
    option = {name: arguments[arguments.index(name) + 1] for name in arguments if name[:2] == "--"}
    inputs, outputs = option["--input-from-nnef"], Path(option["--save-outputs-nnef"])
    is_case = Path(arguments[0]).with_name("case").exists()
    fault = FAULT if is_case != (FAULT in AT_START) else ""
    if fault in EARLY:
        return say(*EARLY[fault])
    if fault != "unready":
        say(f'{STAMP} INFO  tract::params] Running "type"\n')
        say(f"{STAMP} INFO  tract::params] Model ready\n")
    if fault in LATE:
        return say(*LATE[fault])
    if fault.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, fault))
    if fault == "hang":
        say("going to sleep\n")
        time.sleep(600)
    print("a drawing of the graph")
    outputs.mkdir(exist_ok=True)
    content = bytearray(Path(inputs, "x.dat").read_bytes())
    for at in range(128, len(content), 2):  # float16: negative numbers become 0
        if content[at + 1] & 0x80:
            content[at : at + 2] = b"\0\0"
    if fault == "lossy":
        content[-1] ^= 1
    if fault == "differs":
        content[-2] = os.getpid() & 0xFF
    written = {"garbage": b"not a tensor", "short": content[:-1]}.get(fault, content)
    if fault == "folder":
        (outputs / "y.dat").mkdir()
    elif fault != "no_file":
        (outputs / "y.dat").write_bytes(written)
    if fault == "stranger":
        (outputs / "z.dat").write_bytes(written)
    return 0


def say(text: str, status: int = 0) -> int:
    """Write to standard error; the ``status``."""
    sys.stderr.write(text)
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
