// The targets of onnxruntime-web: which entry of the package is imported, what the execution
// provider is called in a session's options and in the log, whether it computes on an adapter, and
// whether it takes one model's compiled shaders for another's (programs.mjs).

import { CPU } from "./placement.mjs";

export const TARGETS = {
  webgpu: { entry: "./webgpu", option: "webgpu", provider: "WebGpuExecutionProvider", gpu: true },
  "webgpu-jsep": {
    entry: "./all",
    option: "webgpu",
    provider: "JsExecutionProvider",
    gpu: true,
    mixesPrograms: true,
  },
  wasm: { entry: "./wasm", option: "wasm", provider: CPU, gpu: false },
};
