#!/usr/bin/env python3
"""A fake Node: prints a version, or acts as a runner in Node as FAKE_NODE selects."""

from __future__ import annotations

import json
import os
import sys

FAULT = os.environ.get("FAKE_NODE", "")
PROVIDERS = {
    "webgpu": "WebGpuExecutionProvider",
    "webgpu-jsep": "JsExecutionProvider",
    "wasm": "CPUExecutionProvider",
    "node": "CPUExecutionProvider",
}


def main() -> int:
    """Answer as the runner would; the exit status."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(os.environ.get("FAKE_NODE_VERSION", "v20.1.0"))
        return 0
    ep = arguments[arguments.index("--ep") + 1]
    if FAULT == "dies":
        print("SyntaxError: Unexpected token", file=sys.stderr)
        return 1
    print("a driver prints", flush=True)
    answers = os.fdopen(int(arguments[arguments.index("--answers") + 1]), "w")
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **about(ep, arguments)}), file=answers, flush=True)
    return 0


def about(ep: str, arguments: list[str]) -> dict[str, object]:
    """The answer to describe."""
    if FAULT == "no_adapter" and ep.startswith("webgpu"):
        return {"outcome": "unavailable", "reason": "There is no adapter.", "fix": "install one"}
    half = [] if FAULT.startswith("no_float16") else ["float16"]
    lacks = {} if half else {"float16": os.environ["FAKE_NODE_FIX"]}
    if os.path.exists(os.environ.get("LAVAPIPE", "")):  # what the fake apt-get writes
        half, lacks = ["float16"], {}
    return {
        "outcome": "described",
        "runtime": "onnxruntime-node" if ep == "node" else "onnxruntime-web",
        "version": "1.30.0",
        "execution_provider": PROVIDERS[ep],
        "device": "fake adapter",
        "dtypes": ["float32", *half],
        "lacks": lacks,
        "features": [],
        "versions": {
            "arguments": json.dumps(arguments),
            "runtime folder": os.environ.get("XDG_RUNTIME_DIR", ""),
        },
    }


if __name__ == "__main__":
    sys.exit(main())
