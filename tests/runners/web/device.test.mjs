import assert from "node:assert/strict";
import { test } from "node:test";

import { installDawn, watchDevices } from "../../../runners/onnxruntime_web/device.mjs";

/** A Dawn of which every part notes what it is given. */
function fakeDawn() {
  const written = [];
  class GPUQueue {
    writeBuffer(buffer, offset, data, dataOffset, size) {
      written.push({ data, dataOffset, size });
    }
    async onSubmittedWorkDone() {
      if (this.hung) throw new Error("not done");
    }
  }
  class GPUDevice extends EventTarget {
    queue = new GPUQueue();
    lost = new Promise((resolve) => (this.lose = resolve));
    createBindGroup({ entries }) {
      return entries.length;
    }
    createShaderModule({ code }) {
      return { code };
    }
    createComputePipeline() {
      return "pipeline";
    }
    async createComputePipelineAsync() {
      return "pipeline";
    }
  }
  class GPUAdapter {
    async requestDevice() {
      return new GPUDevice();
    }
  }
  return { dawn: { globals: { GPUQueue, GPUDevice, GPUAdapter } }, written };
}

const { dawn, written } = fakeDawn();
const shaders = [];
installDawn(dawn, "the gpu");
const devices = watchDevices((text) => shaders.push(text));

test("onnxruntime-web finds the gpu where a browser has it", () => {
  assert.equal(navigator.gpu, "the gpu");
});

test("shared memory is copied by its sizes, other memory is passed unchanged", () => {
  const queue = new GPUQueue();
  const shared = new Uint8Array(new SharedArrayBuffer(8)).fill(7);
  shared[2] = 9;
  queue.writeBuffer(null, 0, shared, 2, 4);
  const { data } = written.pop();
  assert.ok(!(data.buffer instanceof SharedArrayBuffer));
  assert.deepEqual([...data], [9, 7, 7, 7]);
  queue.writeBuffer(null, 0, new Uint32Array(shared.buffer, 4), 0);
  assert.equal(written.pop().data.byteLength, 4);
  queue.writeBuffer(null, 0, shared.buffer, 6);
  assert.equal(written.pop().data.byteLength, 2);
  const own = new Uint8Array(4);
  queue.writeBuffer(null, 0, own, 1, 2);
  assert.deepEqual(written.pop(), { data: own, dataOffset: 1, size: 2 });
});

test("a pipeline is announced before it is created, and a lost device is noticed", async () => {
  const adapter = new GPUAdapter();
  const device = await adapter.requestDevice();
  const descriptor = (code) => ({ compute: { module: device.createShaderModule({ code }) } });
  assert.equal(device.createComputePipeline(descriptor("one")), "pipeline");
  assert.equal(await device.createComputePipelineAsync(descriptor("two")), "pipeline");
  assert.deepEqual(shaders, ["one", "two"]);
  assert.equal(devices.device, device);
  assert.equal(devices.adapter, adapter);
  await devices.settle();
  assert.equal(devices.lost, null);
  device.queue.hung = true;
  setImmediate(() => device.lose({ reason: "unknown", message: "hung" }));
  await devices.settle();
  assert.equal(devices.lost, "unknown: hung");
});

test("a bind group without a resource throws, as in a browser", async () => {
  const device = await new GPUAdapter().requestDevice();
  const whole = { binding: 0, resource: { buffer: {} } };
  assert.equal(device.createBindGroup({ label: "Copy", entries: [whole] }), 1);
  for (const entry of [{ binding: 1 }, { binding: 1, resource: undefined }]) {
    assert.throws(() => device.createBindGroup({ label: "Copy", entries: [whole, entry] }), {
      name: "TypeError",
      message: /the resource of binding 1 in Copy is undefined/,
    });
  }
});
