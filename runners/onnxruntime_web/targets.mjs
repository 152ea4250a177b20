// The targets of onnxruntime-web: which entry of the package is imported, what the execution
// provider is called in a session's options and in the log, and whether it computes on an adapter.

export const TARGETS = {
  webgpu: { entry: "./webgpu", option: "webgpu", provider: "WebGpuExecutionProvider", gpu: true },
  "webgpu-jsep": { entry: "./all", option: "webgpu", provider: "JsExecutionProvider", gpu: true },
  wasm: { entry: "./wasm", option: "wasm", provider: "CPUExecutionProvider", gpu: false },
};
