/* A driver of NVIDIA's that says what FAKE_CUINIT, FAKE_CUDA (13000 for CUDA 13.0), FAKE_GPUS, FAKE_NAME
   and FAKE_SM (90 for compute capability 9.0) tell it to. */
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
