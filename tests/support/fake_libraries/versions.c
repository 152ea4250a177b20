/* What of CUDA's libraries a process asks for their versions. */
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
int cublasGetProperty(int part, int *value) { *value = part == 0 ? 13 : 10 * part; return 0; }
unsigned long cudnnGetVersion(void) { return 92801; }
