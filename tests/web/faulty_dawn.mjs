// The real Dawn, of the folder that DAWN names, with a fault that FAULT names: a device that is
// lost, or that reports an error outside of any call, when a case first makes a shader.

import { createRequire } from "node:module";

const dawn = await import(createRequire(`${process.env.DAWN}/x.js`).resolve("webgpu"));
export const { create, globals } = dawn;

let pipelines = 0;
const device = globals.GPUDevice.prototype;
for (const name of ["createComputePipeline", "createComputePipelineAsync"]) {
  const make = device[name];
  device[name] = function (...parameters) {
    // The first shader is that of the runner's own session, at its start.
    if (pipelines++ > 0 && process.env.FAULT === "lost") this.destroy();
    if (pipelines === 2 && process.env.FAULT === "error") {
      this.createBuffer({ size: 4, usage: globals.GPUBufferUsage.MAP_READ | globals.GPUBufferUsage.STORAGE });
    }
    return make.apply(this, parameters);
  };
}
