"""Stands in for gqa in tests of .ci/gpu-day: ``run``, which runs nothing, and its ``plan``.

``BEHAVIOUR`` (JSON in the environment) says for each target what its runs do: "fine",
"unavailable", "broken" (nothing is recorded), "slow" (a second for each case), "hangs ID" and
"dies ID" (at that case), "once ID" (dies there while the file ``ONCE`` does not exist), or "full
ID" (the disk is full there).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".ci" / "gpu"))
from themes import at_the_boundary, in_order

IDS = [f"{theme}/{name}" for theme in ("causal", "ragged", "smoke", "new") for name in "abcde"]
MACHINE = {"system": "a system"}


def write(file, **record):
    file.write(json.dumps(record) + "\n")
    file.flush()


def run(arguments):
    ep = arguments[arguments.index("--ep") + 1]
    place = arguments[arguments.index("--results") + 1]
    devices = [word for word in arguments if word.startswith("--device=")]
    arguments = [word for word in arguments if word not in devices]
    ids = arguments[arguments.index("--results") + 2 :]
    if ids[:2] == ["--compute-sanitizer", "auto"]:
        ep, ids = "sanitized", ids[2:]
    what, _, at = json.loads(os.environ["BEHAVIOUR"]).get(ep, "fine").rpartition(" ")
    what, at = (what, at) if what else (at, "")
    print(f"{ep}: {len(ids)} cases", flush=True)
    if what == "broken":
        print("the runner does not start", flush=True)
        return 3
    away = what == "unavailable"
    name = "".join([ep, *(f" on {word.partition('=')[2]}" for word in devices)])
    target = {"name": f"{name}@1.0", "ep": ep, "unavailable": "there is no GPU" if away else None}
    target["fix"] = "buy one" if away else None
    about = {"device": "a device", "versions": {"driver": "5"}}
    target["describe"] = None if away else {"runtime": "fake", "version": "1.0", **about}
    selection = {"text": "some", "cases": len(ids), "results": len(ids)}
    with open(place, "w") as file:
        about = {"selection": selection, "machine": MACHINE, "corpus": "of this run"}
        write(file, kind="header", targets=[target], **about)
        for id in sorted(ids, key=ids.index):
            if id == at and what == "hangs":
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                time.sleep(600)
            once = what == "once" and not Path(os.environ["ONCE"]).exists()
            if id == at and (what == "dies" or once):
                Path(os.environ["ONCE"]).touch()
                print("Killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if id == at and what == "full":
                file.write('{"kind": "res')
                print("Cannot write results: No space left on device.")
                return 3
            if what == "slow":
                time.sleep(1)
            write(file, kind="case", id=id)
            verdict = "skip" if away else "pass"
            write(
                file,
                kind="result",
                case=id,
                target=target["name"],
                verdict=verdict,
                unexpected=False,
            )
        write(file, kind="footer", complete=True)
    return 3 if away else 0


def main():
    command, *arguments = sys.argv[1:]
    if command == "plan":
        chosen = "".join(word.removeprefix("-k") for word in arguments if word.startswith("-k"))
        ids = in_order([id for id in IDS if chosen in id])
        print("a warning")
        print(
            json.dumps(
                {
                    "targets": json.loads(os.environ["TARGETS"]),
                    "whole": {"ids": ids, "corpus": "of all"},
                    "boundary": {"ids": at_the_boundary(ids), "corpus": "of the boundary"},
                }
            )
        )
        return 0
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
