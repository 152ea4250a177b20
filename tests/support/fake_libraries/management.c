/* NVIDIA's management library; FAKE_RELEASE is the release of the driver. A GPU of a data centre has no clock
   of its own for the memory; a consumer's has no MIG. */
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
