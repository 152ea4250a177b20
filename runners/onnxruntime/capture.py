"""Runs a model on ONNX Runtime's CPU provider, and writes the values that its graph passes on.

This is not a runner: ``gqa check --capture`` and ``--prompt-ids`` start it once. It reads the plan
as one JSON object from standard input, and writes the result as one to standard output. Like the
runner it needs only the standard library, NumPy and an ``onnxruntime`` wheel.

The model is a file with a few bytes appended: two serialized models in a row are one model with the
outputs of both, so the file is neither parsed nor copied. The plan has:

``model``, ``append``, ``folder``
    the file, the bytes (base64), and the folder of the model's external data. Paths are absolute.
``types``
    the TensorProto type of each input
``feeds``
    for each call its inputs, each with the file of its tensor, or null if it is in ``given``
``given``, ``given_names``
    an .npz file with inputs, and their names in the plan, in the order of the file
``ids``
    the inputs that get the token that the call before chose
``states``, ``logits``
    for each past the output that it is in the next call, and the output with the next token
``once``, ``each``
    the values to write in the first call and in every call
``out``
    the folder for them: value 3 of call 0 is ``0_3.pb``, counted through ``once`` and ``each``
"""

from __future__ import annotations

import base64
import json
import os
import sys
from time import perf_counter
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import ort_availability
from answers import shortened
from availability import Unavailable
from serving import send, take_streams
from tensor_file import read_tensor, write_tensor


def main() -> int:
    """Answer the one request; return the exit status."""
    requests, answers = take_streams()
    send(answers, answer_to(json.loads(requests.read())))
    return 0


def answer_to(plan: dict[str, Any]) -> dict[str, Any]:
    """The result of the plan: the chosen tokens and the seconds taken, or why there are none."""
    try:
        onnxruntime = ort_availability.load(ort_availability.PROVIDERS["cpu"])
    except Unavailable as missing:
        return missing.answer()
    from ort_execution import is_refusal  # needs NumPy, which is there if onnxruntime is

    run = Capture(onnxruntime, plan)
    try:
        return {"outcome": "ran", "version": onnxruntime.__version__, **run.run()}
    except OSError as error:
        return {"outcome": "failed", "place": "write", "message": error.strerror or str(error)}
    except Exception as error:
        if not is_refusal(error):
            raise
        return {"outcome": "failed", "place": run.place, "message": shortened(str(error))}


class Capture:
    """One run of a plan. ``place`` is its current step: ``load``, or the number of a call."""

    def __init__(self, onnxruntime: Any, plan: dict[str, Any]) -> None:
        self.onnxruntime = onnxruntime
        self.plan = plan
        self.place = "load"
        self.state = onnxruntime.capi.onnxruntime_pybind11_state
        self.seconds = {"load": 0.0, "run": 0.0, "write": 0.0}

    def run(self) -> dict[str, Any]:
        """Run all calls; return the chosen tokens and the seconds."""
        import numpy as np

        plan = self.plan
        start = perf_counter()
        session = self.load()
        self.seconds["load"] = perf_counter() - start
        given = np.load(plan["given"], allow_pickle=False) if plan["given"] else {}
        stored = dict(zip(plan["given_names"], given))  # noqa: B905
        chosen: list[int] = []
        states: dict[str, Any] = {}
        for step, files in enumerate(plan["feeds"]):
            self.place = str(step)
            arrays = {
                name: given[stored[name]] if file is None else read(file)
                for name, file in files.items()
            }
            for name in plan["ids"] if step else []:
                arrays[name][...] = chosen[-1]
            kept = {name: np.asarray(array, order="C") for name, array in arrays.items()}
            feeds = {name: self.value(array, plan["types"][name]) for name, array in kept.items()}
            feeds |= states
            outputs = self.call(session, feeds, step)
            self.write(step, {**feeds, **outputs})
            if step == len(plan["feeds"]) - 1:
                break
            states = {name: outputs[present] for name, present in plan["states"].items()}
            logits = self.onnxruntime.OrtValue(outputs[plan["logits"]]).numpy()
            chosen.append(int(np.argmax(logits[0, -1])))
        return {"ids": chosen, "seconds": self.seconds}

    def load(self) -> Any:
        """A session with the model and its additional outputs; the C object inside the wrapper."""
        options = self.onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what fails is raised, too
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", self.plan["folder"]
        )
        os.chdir(self.plan["folder"])  # where 1.20 looks for them
        with open(self.plan["model"], "rb") as file:
            model = file.read() + base64.b64decode(self.plan["append"])
        providers = [ort_availability.PROVIDERS["cpu"]]
        return self.onnxruntime.InferenceSession(model, options, providers=providers)._sess

    def value(self, array: Any, data_type: int) -> Any:
        """An OrtValue over the memory of ``array``, which must outlive it."""
        return self.state.OrtValue.ortvalue_from_numpy_with_onnx_type(array, data_type)

    def call(self, session: Any, feeds: dict[str, Any], step: int) -> dict[str, Any]:
        """The outputs of a call that are used."""
        plan = self.plan
        names = [*plan["each"], *([] if step else plan["once"])]
        if step < len(plan["feeds"]) - 1:
            names += [*plan["states"].values(), plan["logits"]]
        wanted = [name for name in dict.fromkeys(names) if name not in feeds]
        wanted = wanted or [session.outputs_meta[0].name]  # an empty list means all
        start = perf_counter()
        values = session.run_with_ort_values(feeds, wanted, None)
        self.seconds["run"] += perf_counter() - start
        return {name: values[index] for index, name in enumerate(wanted)}

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write the values of a call. Raises OSError."""
        from ort_memory import content_of

        start = perf_counter()
        once, each = self.plan["once"], self.plan["each"]
        for index, name in enumerate([*once, *each]):
            if step == 0 or index >= len(once):
                path = f"{self.plan['out']}/{step}_{index}.pb"
                write_tensor(path, content_of(name, values[name]))
        self.seconds["write"] += perf_counter() - start


def read(file: str) -> Any:
    """The array in a tensor's file."""
    from ort_execution import as_array

    tensor = read_tensor(file)
    return as_array(tensor, bytearray(tensor.raw))


if __name__ == "__main__":
    sys.exit(main())
