"""A runner that sleeps instead of computing, and answers with what is expected.

``PYTHON sleeping_runner.py`` takes as long for a case as $SLEEP_MS says, in milliseconds.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runners" / "common"))

from serving import serve
from tensor_file import read_tensor

SECONDS: Final = float(os.environ.get("SLEEP_MS", "0")) / 1000


class Sleeper:
    """Answers each run with the files of the bundle."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """As the protocol asks; a call that has no meaning is rejected."""
        if request["cmd"] == "describe":
            return {
                "outcome": "described",
                "runtime": "sleeper",
                "version": "1",
                "name": "sleeper",
                "execution_provider": None,
                "device": "none",
                "dtypes": ["float32", "int32", "int64"],
                "threads": 1,
            }
        time.sleep(SECONDS)
        bundle, out = request["bundle"], request["out"]
        if not os.path.exists(f"{bundle}/test_data_set_0/output_0.pb"):
            return {"outcome": "rejected", "stage": "load", "message": "It has no meaning."}
        runs = []
        for repeat in range(request["repeat"]):
            steps: list[dict[str, str]] = []
            for number, _ in enumerate(request["steps"]):
                steps.append({})
                for file in Path(bundle, f"test_data_set_{number}").glob("output_*.pb"):
                    name = f"{repeat}_{number}_{file.name}"
                    shutil.copyfile(file, f"{out}/{name}")
                    steps[-1][read_tensor(str(file)).name] = name
            runs.append(steps)
        return {"outcome": "ran", "runs": runs, "ms": {"load": 0.0, "run": 0.0}}


if __name__ == "__main__":
    sys.exit(serve(Sleeper))
