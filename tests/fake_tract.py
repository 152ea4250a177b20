#!/usr/bin/env python3
"""A fake of tract's command line: one node, ``y = Relu(x)``, and the failure FAKE_TRACT selects.

It is correct for `describe`; it fails only for models beside a file called ``case``.
"""

from __future__ import annotations

import os
import shutil
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


def main() -> int:
    """Answer as tract would; the exit status."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        others = {"no_tract": "grep 3.8\nCopyright", "silent": "", "of_0.22": "tract 0.22.5"}
        print(others.get(FAULT, "tract-cli 0.23.9"))
        return 0
    if FAULT == "of_0.22" and ("--runtime" in arguments or arguments == ["list-runtimes"]):
        say("error: Found argument '--runtime' which wasn't expected\n")
        return 2
    if arguments == ["list-runtimes"]:
        print(" * cpu\n * unoptimized")
        return 0
    option = {name: arguments[arguments.index(name) + 1] for name in arguments if name[:2] == "--"}
    inputs, outputs = option["--input-from-nnef"], Path(option["--save-outputs-nnef"])
    is_case = Path(arguments[0]).with_name("case").exists()
    if not is_case and FAULT == "full_at_start":
        say(REFUSED.replace("softcap is unsupported", "No space left on device (os error 28)"))
        return 1
    if not is_case and FAULT == "older":
        say("error: unexpected argument '--save-outputs-nnef' found\n\nUsage: tract [OPTIONS]\n")
        return 2
    if is_case and FAULT == "load":
        say(REFUSED)
        return 1
    if is_case or FAULT != "unready":
        say(f'{STAMP} INFO  tract::params] Running "type"\n')
        say(f"{STAMP} INFO  tract::params] Model ready\n")
    if is_case and FAULT:
        status = go_wrong(outputs)
        if status is not None:
            return status
    print("a drawing of the graph")
    outputs.mkdir(exist_ok=True)
    content = bytearray(Path(inputs, "x.dat").read_bytes())
    for at in range(128, len(content), 2):  # float16: negative numbers become 0
        if content[at + 1] & 0x80:
            content[at : at + 2] = b"\0\0"
    if not is_case and FAULT == "lossy":
        content[-1] ^= 1
    if is_case and FAULT == "differs":
        content[-2] = os.getpid() & 0xFF
    Path(outputs, "y.dat").write_bytes(content)
    if is_case and FAULT == "stranger":
        shutil.copy(outputs / "y.dat", outputs / "z.dat")
    if is_case and FAULT == "garbage":
        Path(outputs, "y.dat").write_bytes(b"not a tensor")
    if is_case and FAULT == "short":
        Path(outputs, "y.dat").write_bytes(content[:-1])
    if is_case and FAULT == "no_file":
        os.unlink(outputs / "y.dat")
    if is_case and FAULT == "folder":
        os.unlink(outputs / "y.dat")
        os.mkdir(outputs / "y.dat")
    return 0


def go_wrong(outputs: Path) -> int | None:
    """The failure instead of a run; the exit status, or None for no failure."""
    if FAULT == "run":
        say(REFUSED.replace('Error at stage "analyse"', "Evaluating #3"))
        return 1
    if FAULT == "full":
        say(REFUSED.replace("softcap is unsupported", "No space left on device (os error 28)"))
        return 1
    if FAULT == "panic":
        say(PANIC)
        return 101
    if FAULT == "panic_full":
        say(PANIC.replace("range end index 48", 'Os { code: 28, kind: StorageFull, message: "" }'))
        return 101
    if FAULT == "hang":
        say("going to sleep\n")
        time.sleep(600)
    if FAULT.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, FAULT))
    if FAULT == "reported":
        return 128 + signal.SIGSEGV
    if FAULT == "broken_pipe":
        return 128 + signal.SIGPIPE
    if FAULT == "odd":
        say("something odd\n")
        return 7
    if FAULT == "speechless":
        return 1
    return 0 if FAULT == "no_folder" else None


def say(text: str) -> None:
    """Write to standard error."""
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
