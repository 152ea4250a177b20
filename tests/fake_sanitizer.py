#!/usr/bin/env python3
"""Stands in for compute-sanitizer: runs the program that it is given, and writes a log.

FAKE_FINDS says which tool reports something, if FAULT_ON is in what the program reads. FAKE_DOES
says what else goes wrong: ``no_summary``, ``internal``, ``host_copy``, ``noise``, ``segfault``.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

#: What releases 2022 to 2026 report.
LOGS = Path(__file__).parent / "sanitizer_logs"
INTERNAL = "========= Internal Sanitizer Error: Errors might go undetected. (out of memory)\n"


def main():
    if "--version" in sys.argv:
        print((LOGS / "version.txt").read_text(), end="")
        return 0
    options, program = {}, sys.argv[1:]
    while program[0].startswith("--"):
        options[program[0]] = program[1]
        program = program[2:]
    tool, does = options["--tool"], os.environ.get("FAKE_DOES", "").split()
    asked = sys.stdin.buffer.read()
    if mark := os.environ.get("FAKE_MARK"):
        with open(mark, "a", encoding="utf-8") as file:
            print(tool, sorted(options), os.environ["GQA_SEPARATE_ALLOCATIONS"], file=file)
    if "segfault" in does and b'"run"' in asked:
        status = 11  # as the real one passes on SIGSEGV
    else:
        status = subprocess.run(program, input=asked, check=False).returncode
    finds = tool in os.environ.get("FAKE_FINDS", "").split()
    finds = finds and os.environ.get("FAULT_ON", "run").encode() in asked
    text = "========= COMPUTE-SANITIZER\n"
    for told in ("host_copy", "noise"):
        text += (LOGS / f"{told}.txt").read_text() if told in does else ""
    text += INTERNAL * ("internal" in does and b'"run"' in asked)
    text += (LOGS / f"{tool}.txt").read_text() * 3 if finds else ""
    if status:
        text += "========= Error: process didn't terminate successfully\n"
        text += "========= Target application returned an error\n"
    if "no_summary" not in does:
        count = len(re.findall(r"(?m)^=+ (Invalid|Uninit|Host API|Program hit)", text))
        text += f"========= ERROR SUMMARY: {count} error{'s' * (count != 1)}\n"
    with open(options["--log-file"], "w", encoding="utf-8") as file:
        file.write(text)
    return status


sys.exit(main())
