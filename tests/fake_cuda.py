"""A driver of NVIDIA's and its management library, built with ``cc``, that say what a test wants.

Their answers come from environment variables:

- ``FAKE_CUINIT``, ``FAKE_CUDA`` (13000 for CUDA 13.0), ``FAKE_GPUS``, ``FAKE_NAME``, ``FAKE_SM``
  (90 for compute capability 9.0)
- ``FAKE_RELEASE``, the release of the driver
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int number(const char *name, int otherwise) {
  const char *said = getenv(name);
  return said ? atoi(said) : otherwise;
}
static const char *text(const char *name, const char *otherwise) {
  const char *said = getenv(name);
  return said ? said : otherwise;
}
int cuInit(unsigned flags) { return number("FAKE_CUINIT", 0); }
int cuGetErrorString(int status, const char **said) { *said = "what it means"; return 0; }
int cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA", 13000); return 0; }
int cuDeviceGetCount(int *count) { *count = number("FAKE_GPUS", 1); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, "%s", text("FAKE_NAME", "NVIDIA H100 80GB HBM3"));
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int sm = number("FAKE_SM", 90);
  *value = attribute == 75 ? sm / 10 : sm % 10;
  return 0;
}
int cuDeviceTotalMem_v2(size_t *size, int device) { *size = 85520809984; return 0; }
int cuDeviceGetPCIBusId(char *id, int size, int device) {
  snprintf(id, size, "0000:%02d:00.0", device);
  return 0;
}
int cuTensorMapEncodeTiled() { return 801; }
"""

#: A GPU of a data centre has no clock of its own for the memory; a consumer's has no MIG.
MANAGEMENT = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int started;
int nvmlInit_v2(void) { started++; return 0; }
int nvmlShutdown(void) { started--; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  const char *said = getenv("FAKE_RELEASE");
  snprintf(text, size, "%s", said ? said : "580.65.06");
  return started == 1 ? 0 : 1;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
  *handle = (void *)1;
  return strcmp(id, "0000:00:00.0") != 0 || started != 1;
}
int nvmlDeviceGetMaxClockInfo(void *handle, int clock, unsigned *value) {
  *value = clock == 1 ? 1980 : 2619;
  return 0;
}
int nvmlDeviceGetApplicationsClock(void *handle, int clock, unsigned *value) {
  *value = 1755;
  return clock == 1 ? 0 : 3;
}
int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *value) { *value = 700000; return 0; }
int nvmlDeviceGetPersistenceMode(void *handle, unsigned *value) { *value = 1; return 0; }
int nvmlDeviceGetEccMode(void *handle, unsigned *now, unsigned *next) { *now = 1; return 0; }
"""


def driver(folder: Path) -> dict[str, str]:
    """Build both libraries in ``folder``; the environment in which programs find them."""
    library(folder / "libcuda.so.1", DRIVER)
    library(folder / "libnvidia-ml.so.1", MANAGEMENT)
    return {"LD_LIBRARY_PATH": str(folder)}


def library(file: Path, source: str, *options: str) -> None:
    """Build a shared library; its name is that of the file. Skips the test without ``cc``."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("needs a C compiler: cc")
    options = ("-shared", "-fPIC", "-w", f"-Wl,-soname,{file.name}", "-x", "c", "-", *options)
    subprocess.run([cc, *options, "-o", str(file)], input=source, text=True, check=True, timeout=60)
