import json
import os
import tempfile

DATA = json.loads(r"""__DATA__""")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ["RUST_LIB_BACKTRACE"] = "0"

import tract

FACTS = {"float32": "f32", "float16": "f16", "int8": "i8", "uint8": "u8", "int32": "i32"}
FACTS["int64"] = "i64"


def call(path, feeds):
    """The outputs of one call: the model is loaded for the shapes of its inputs."""
    loaded = tract.onnx().load(path)
    for number in range(loaded.input_count()):
        values = feeds[loaded.input_name(number)]
        fact = ",".join([*map(str, values.shape), FACTS[str(values.dtype)]])
        loaded.set_input_fact(number, fact)
    ready = loaded.into_model()
    order = [ready.input_name(number) for number in range(ready.input_count())]
    ready = tract.runtime_for_name("default").prepare(ready)
    outputs = [value.to_numpy() for value in ready.run([feeds[name] for name in order])]
    return dict(zip(DATA["outputs"], outputs))


def main():
    """Make the calls, and check what comes back."""
    path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    with open(path, "wb") as file:
        file.write(model())
    try:
        results = results_of(lambda feeds: call(path, feeds))
    except tract.TractError as error:
        print("rejected:", error)
        end(DATA["if_rejected"])
    check(results)


from checks import check, end, in_child, results_of
from inputs import model

in_child(main)
