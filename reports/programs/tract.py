import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np

DATA = json.loads(r"""__DATA__""")
TRACT = shutil.which(os.environ.get("TRACT", "tract"))
#: One thread, errors without a backtrace and without colours.
ENVIRONMENT = {"RAYON_NUM_THREADS": "1", "TRACT_LOG": "warn", "RUST_LOG_STYLE": "never"}
ENVIRONMENT |= {"RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"}
FACTS = {"float32": "f32", "float16": "f16", "int8": "i8", "uint8": "u8", "int32": "i32"}
FACTS["int64"] = "i64"
HEADER = struct.Struct("<2s2BII8IIHH")  # of an NNEF tensor, which tract reads and writes exactly


def save(path, values):
    """Write a tensor as a file of NNEF."""
    kind = {"f": 0, "u": 1, "i": 4}[values.dtype.kind]
    dims = [*values.shape, *[0] * (8 - values.ndim)]
    header = (b"N\xef", 1, 0, values.nbytes, values.ndim, *dims, 8 * values.itemsize, kind, 0)
    with open(path, "wb") as file:
        file.write(HEADER.pack(*header).ljust(128, b"\0") + values.tobytes())


def load(path):
    """Read a tensor from a file of NNEF."""
    with open(path, "rb") as file:
        content = file.read()
    _, _, _, _, rank, *dims, bits, kind, _ = HEADER.unpack_from(content)
    word = {0: "f", 1: "u", 2: "u", 3: "i", 4: "i"}[kind] + str(bits // 8)
    return np.frombuffer(content[128:], word).reshape(dims[:rank])


def call(folder, feeds):
    """The outputs of one call, by a process of tract."""
    place = tempfile.mkdtemp(dir=folder)
    facts = []
    for name, values in feeds.items():
        save(f"{place}/{name}.dat", values)
        fact = ",".join([*map(str, values.shape), FACTS[str(values.dtype)]])
        facts += ["-i", f"{name}:{fact}"]
    command = [TRACT, f"{folder}/model.onnx", *facts, *DATA["runtime"]["options"].split(), "run"]
    command += ["--input-from-nnef", place, "--save-outputs-nnef", f"{place}/out"]
    print(shlex.join(command), flush=True)
    environment = {**os.environ, **ENVIRONMENT}
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, timeout=DATA["seconds"]
        )
    except subprocess.TimeoutExpired as error:
        print("no answer within", error.timeout, "s")
        end("timeout")
    if done.returncode == 1:
        end(DATA["if_rejected"])
    if done.returncode:
        print("tract ended with status", done.returncode)
        end("crash")
    return {name: load(f"{place}/out/{name}.dat") for name in DATA["outputs"]}


def main():
    """Make the calls, and check what comes back."""
    if TRACT is None:
        sys.exit("tract is not installed: put it on the PATH, or set TRACT to its path")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/model.onnx", "wb") as file:
            file.write(model())
        check(results_of(lambda feeds: call(folder, feeds)))


from checks import check, end, results_of
from inputs import model

main()
