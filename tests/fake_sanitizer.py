#!/usr/bin/env python3
"""Stands in for compute-sanitizer: runs the program that it is given, and writes a log.

FAKE_FINDS says which tool reports something, if FAULT_ON is in what the program reads. FAKE_DOES
says what else goes wrong: ``no_summary``, ``internal``, ``host_copy``, ``noisy``, ``segfault``.
"""

import os
import re
import subprocess
import sys

VERSION = """NVIDIA (R) Compute Sanitizer
Copyright (c) 2020-2026 NVIDIA Corporation
Version 2026.4.0.0 (build 39022338) (public-release)
"""
#: As releases 2022 to 2026 write them.
REPORTS = {
    "memcheck": """\
========= Invalid __global__ read of size 2 bytes
=========     at void flash_fwd_kernel<(int)64, __half>(Flash_fwd_params)+0x1f0 in kernel.h:53
=========     by thread (64,0,0) in block (2,0,0)
=========     Address 0x7f1c0a0006f4 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f1c0a000400 of size 752 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2efadf] in libcuda.so.1
=========         Host Frame: main [0x14548] in python3.12
=========
""",
    "initcheck": """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
""",
}
HOST_COPY = """\
========= Host API uninitialized memory access on access by cudaMemcpy source
=========     Uninitialized access to 0x7f3c7ec000fc
=========     Saved host backtrace up to driver entry point at error
=========
"""
NOISE = """\
========= Program hit cudaErrorNotSupported (error 801) due to "operation not supported" on CUDA \
API call to cudaMemPoolCreate.
=========     Saved host backtrace up to driver entry point at error
=========
"""
INTERNAL = "========= Internal Sanitizer Error: Errors might go undetected. (out of memory)\n"


def main():
    if "--version" in sys.argv:
        print(VERSION, end="")
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
    text += HOST_COPY * ("host_copy" in does) + NOISE * ("noisy" in does)
    text += INTERNAL * ("internal" in does and b'"run"' in asked)
    text += REPORTS[tool] * (3 * finds)
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
