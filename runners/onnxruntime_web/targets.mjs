// The targets of onnxruntime-web: which entry of the package is imported, the name of the execution
// provider in a session's options and in the log, whether it computes on an adapter, and
// whether it may use one model's compiled shaders for another (programs.mjs).

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
