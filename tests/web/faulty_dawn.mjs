// The real Dawn, of the folder that DAWN names, with a fault that FAULT names: a device that is
// lost, or that reports an error outside of any call, when a case first makes a shader.

import { createRequire } from "node:module";

const dawn = await import(createRequire(`${process.env.DAWN}/x.js`).resolve("webgpu"));
export const { create, globals } = dawn;

const { FAULT } = process.env;
const { GPUBuffer, GPUBufferUsage, GPUDevice } = globals;
let pipelines = 0;
let last;
for (const name of ["createComputePipeline", "createComputePipelineAsync"]) {
  const make = GPUDevice.prototype[name];
  GPUDevice.prototype[name] = function (...parameters) {
    last = this;
    // The first shader is that of the runner's own session, at its start.
    if (pipelines++ > 0 && FAULT === "lost") this.destroy();
    return make.apply(this, parameters);
  };
}

// When outputs are fetched, onnxruntime does not listen for errors.
const { mapAsync } = GPUBuffer.prototype;
GPUBuffer.prototype.mapAsync = function (...parameters) {
  if (pipelines > 1 && FAULT === "error") {
    last.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.STORAGE });
  }
  return mapAsync.apply(this, parameters);
};
