"""Shared code of the miniature runners: a correct protocol (runners/README.md).

A miniature computes nothing: it returns the bundle's own expected outputs. `serve` does that for
every case, except those whose bundle has ``FAULT_ON`` (an environment variable, by default
``faulty``) in its path, which go to the miniature's own faulty function. A model itself has no
expected outputs: ONNX Runtime computes them.
"""

import json
import os
import shutil
import sys

PROVIDER = "NoExecutionProvider"
asked = []  # the commands so far


def serve(fault=None, describe=None):
    """Answer all requests."""
    for line in sys.stdin:
        request = json.loads(line)
        asked.append(request["cmd"])
        faulty = fault and os.environ.get("FAULT_ON", "faulty") in request.get("bundle", "")
        try:
            if request["cmd"] == "describe":
                (describe or describe_itself)(request)
            else:
                (fault if faulty else ran)(request)
        except Refused as error:
            answer(request, outcome="rejected", stage=error.args[0], message=error.args[1])


def answer(request, **fields):
    print(json.dumps({"id": request["id"], **fields}), flush=True)


def describe_itself(
    request, dtypes=("float32", "float16", "bfloat16", "int8", "uint8", "int64"), **more
):
    about = {"runtime": "miniature", "version": "1.0", "execution_provider": PROVIDER}
    answer(request, outcome="described", **about | {"device": "none", "dtypes": dtypes} | more)


def ran(request, runs=None, placement=PROVIDER, load_ms=0.25):
    """Answer that the case ran; writes the bundle's own outputs unless ``runs`` names others."""
    runs = outputs(request) if runs is None else runs
    ms = {"load": load_ms, "run": 0.125}
    answer(request, outcome="ran", placement=placement, runs=runs, ms=ms)


def outputs(request, copy=shutil.copyfile):
    """Write all output files, with ``copy(expected, written)``; returns their names for the answer.

    A file of the bundle is a TensorProto, and its name that of the output.
    """
    runs, computed = [], ""
    if not any("output_0.pb" in files for _, _, files in os.walk(request["bundle"])):
        computed = os.path.join(request["out"], ".computed")
        compute(request, computed)
    for repeat in range(request["repeat"]):
        runs.append([])
        for step in range(len(request["steps"])):
            folder = os.path.join(computed or request["bundle"], f"test_data_set_{step}")
            names = {}
            for file in sorted(os.listdir(folder)):
                if file.startswith("output_"):
                    output = dict(fields(os.path.join(folder, file)))[8].decode()
                    word = output if output.isidentifier() else len(names)
                    names[output] = f"{repeat}_{step}_{word}.pb"
                    out = os.path.join(request["out"], names[output])
                    copy(os.path.join(folder, file), out)
            runs[-1].append(names)
    shutil.rmtree(computed, ignore_errors=True)
    return runs


class Refused(Exception):
    """The model itself is refused, in a stage and with a message."""


def compute(request, place):
    """Write what ONNX Runtime makes of the model itself, as the bundle of a case has it."""
    import site

    site.main()  # launch.py starts without packages
    import onnxruntime
    from onnx import load_tensor, numpy_helper

    stage, before = "load", {}
    try:
        session = onnxruntime.InferenceSession(os.path.join(request["bundle"], "model.onnx"))
        stage, names = "run", [each.name for each in session.get_outputs()]
        for number, step in enumerate(request["steps"]):
            given = {past: before[present] for past, present in step["carry"].items()}
            for name, file in step["files"].items():
                given[name] = numpy_helper.to_array(
                    load_tensor(os.path.join(request["bundle"], file))
                )
            before = dict(zip(names, session.run(names, given), strict=True))
            folder = os.path.join(place, f"test_data_set_{number}")
            os.makedirs(folder)
            for at, (name, array) in enumerate(before.items()):
                with open(os.path.join(folder, f"output_{at}.pb"), "wb") as file:
                    file.write(numpy_helper.from_array(array, name).SerializeToString())
    except Exception as error:
        raise Refused(stage, str(error).splitlines()[0]) from None


def flipped(expected, out, bits, at=3):
    """Copy a file of float32 numbers, with ``bits`` of their byte ``at`` flipped.

    In the highest byte of the first number, 128 is the sign, and 64 a bit of the exponent.
    """
    with open(expected, "rb") as source, open(out, "wb") as target:
        data = bytearray(source.read())
        data[data.index(dict(fields(expected))[9]) + at] ^= bits
        target.write(data)


def inverted(expected, out):
    """Copy a file of float32 numbers, with the sign of its first number wrong."""
    flipped(expected, out, 128)


def number():
    """How many cases were run before, in any process: FAULT_MARK names a file that counts them."""
    with open(os.environ["FAULT_MARK"], "ab") as mark:
        mark.write(b".")
        return mark.tell()


def chance():
    """A generator of random numbers for the next case; those of one run are those of the next."""
    import random

    return random.Random(1109 + number())


def fields(path):
    """The fields of a protobuf file, as pairs of number and value (an int, or bytes)."""
    with open(path, "rb") as file:
        data = file.read()
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte, at = data[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        size = varint()
        if key & 7 == 2:  # bytes; everything else in these files is a varint
            at += size
            yield key >> 3, data[at - size : at]
        else:
            yield key >> 3, size
