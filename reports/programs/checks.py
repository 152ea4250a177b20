# The outputs and the verdict: the same in every program.
import math
import os
import subprocess
import sys

import numpy as np


def values_of(content, dtype, shape):
    """The values of an output from the bytes of its elements."""
    bits = np.frombuffer(content, DTYPES[dtype][1]).reshape(shape)
    if dtype == "bfloat16":
        return (bits.astype("u4") << 16).view("f4")
    if dtype == "float8e4m3fn":
        return np.where(bits >> 7, -1, 1) * float8_values()[bits & 0x7F]
    return bits


def end(verdict):
    """End the program with this verdict, and with 1 if it is not pass."""
    print("verdict:", verdict, flush=True)
    sys.exit(verdict != "pass")


def results_of(call, read=None, bits=None):
    """The outputs of each call, run after run.

    The function call makes one call with the inputs by name, read reads an output, and bits its
    bits. In a loop, a past is the present of the call before, as the runtime returned it, or the
    rows that are kept of it. An illegal call may be rejected, and its outputs are not checked.
    """
    results = []
    for _ in range(DATA["runs"]):
        outputs = {}
        steps = zip(inputs(), DATA["carry"], DATA["keep"])
        for step, (own, carry, rows) in enumerate(steps):
            carried = {past: outputs[present] for past, present in carry.items()}
            if rows is not None:
                for name, value in carried.items():
                    kept = bits(carry[name], value) if bits else value
                    carried[name] = kept[:, :, :rows].copy()
            try:
                outputs = call({**own, **carried})
            except Exception as error:
                if step not in DATA["refused"]:
                    raise
                print(f"step {step} is illegal, and rejected: {error}")
            checked = {} if step in DATA["refused"] else outputs
            results.append({n: read(n, value) if read else value for n, value in checked.items()})
    return results


def check(results):
    """Check the outputs of each call, and end with the verdict."""
    faults = 0
    for output, call, shape in DATA["shapes"]:
        got = results[call][output].shape
        faults += got != tuple(shape)
        print(f"{output} of step {call} has shape {list(got)} and should have {shape}")
    for output, call, at, want, allowed in DATA["elements"]:
        values, want, allowed = results[call][output], float(want), float(allowed)
        got = float(values[tuple(at)]) if len(at) == values.ndim else math.nan
        good = got == want or abs(got - want) <= allowed
        faults += not good
        found = f"got {got:.9g}, want {want:.9g}, allowed error {allowed:.3g}"
        print(f"{output}{at} of step {call}: {found}: {'correct' if good else 'WRONG'}")
    calls = len(results) // DATA["runs"]
    for one, other in zip(results, results[calls:]):
        for output in one:
            if one[output].tobytes() != other[output].tobytes():
                print(f"two runs differ in {output}")
                faults += 1
    print(*DATA["notes"], sep="\n", end="\n" if DATA["notes"] else "")
    end(DATA["if_wrong"] if faults else DATA["if_right"])


def in_child(main):
    """Call main in a child process, which may crash."""
    if "REPRO_CHILD" in os.environ:
        return main()
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
    environment = {**os.environ, "REPRO_CHILD": "1"}
    try:
        status = subprocess.run(command, env=environment, timeout=DATA["seconds"]).returncode
    except subprocess.TimeoutExpired as error:
        print("no answer within", error.timeout, "s")
        end("timeout")
    if status < 0:
        print("the process ended with status", status, "(negative: the signal)")
        end("crash")
    sys.exit(status)
