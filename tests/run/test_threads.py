"""NumPy computes with one thread where processes of the suite fill the cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.paths import data_path

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
COUNT = "import os; print('threads:', len(os.listdir('/proc/self/task')), os.environ.get(NAME))"
CASES = str(data_path("cases") / "softcap.yaml")
CONFIG = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
LOOKED_UP = (
    f"import json; json.dump({CONFIG}, open('config.json', 'w'))\n"
    "from conformance.cli.commands import gqa\n"
    "gqa.main(['models', 'config.json'], standalone_mode=False); import numpy"
)
SESSION = ["--ep", "cpu", "-q", "--collect-only", "-p", "no:cacheprovider", CASES]


@pytest.mark.parametrize(
    "start",
    [
        "from conformance.base.tuning import one_thread\nwith one_thread(): import numpy",
        "from conformance.cli.commands import command; command('run'); import numpy",
        LOOKED_UP,
        f"import pytest; pytest.main({SESSION})",
    ],
    ids=["with", "gqa", "models", "pytest"],
)
@pytest.mark.parametrize(("given", "threads"), [(None, 1), ("2", min(2, CORES))])
def test_numpy_uses_one_thread(tmp_path: Path, start: str, given: str | None, threads: int) -> None:
    """NumPy uses one thread unless the environment says otherwise."""
    name = "OPENBLAS_NUM_THREADS"
    environment = {key: value for key, value in os.environ.items() if key != name}
    if given is not None:
        environment[name] = given
    code = f"{start}\nNAME = {name!r}; {COUNT}"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines()[-1] == f"threads: {threads} {given}"
