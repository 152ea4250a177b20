// The real Dawn, from the folder in DAWN, with the fault in FAULT: a device that is lost when a case
// first creates a shader, or while the runner reads a buffer, or one that reports an error outside
// any call.

import { createRequire } from "node:module";

const dawn = await import(createRequire(`${process.env.DAWN}/x.js`).resolve("webgpu"));
export const { create, globals } = dawn;

const { FAULT } = process.env;
const { GPUBuffer, GPUBufferUsage, GPUDevice, GPUQueue } = globals;
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

const { mapAsync } = GPUBuffer.prototype;
GPUBuffer.prototype.mapAsync = function (...parameters) {
  const runners = new Error().stack.includes("execution.mjs");
  if (FAULT === "lost while read" && runners) last.destroy();
  return mapAsync.apply(this, parameters);
};

// Within a call onnxruntime itself catches errors: so this one comes when the call is over.
const { onSubmittedWorkDone } = GPUQueue.prototype;
GPUQueue.prototype.onSubmittedWorkDone = function () {
  if (FAULT === "error") {
    last.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.STORAGE });
  }
  return onSubmittedWorkDone.call(this);
};
