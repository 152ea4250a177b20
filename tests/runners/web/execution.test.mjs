import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, test } from "node:test";

import { Rejected, Runtime, Trapped, Unavailable, runCase } from "../../../runners/onnxruntime_web/execution.mjs";
import { Messages } from "../../../runners/onnxruntime_web/tensor_file.mjs";
import { packages } from "./modules.mjs";

const { Tensor } = packages.require("onnxruntime-common");
const messages = new Messages(packages.require("protobufjs"));
const folder = mkdtempSync(join(tmpdir(), "execution-"));
writeFileSync(join(folder, "model.onnx"), "a model");
messages.writeTensor(join(folder, "past"), { name: "past", dataType: 1, dims: [2], bytes: Float32Array.of(1, 2) });
messages.writeTensor(join(folder, "int8"), { name: "past", dataType: 3, dims: [1], bytes: Int8Array.of(1) });

globalThis.GPUBufferUsage = { STORAGE: 1, COPY_SRC: 2, COPY_DST: 4, MAP_READ: 8 };
globalThis.GPUMapMode = { READ: 1 };

/** A device that keeps what its buffers hold. */
class Device {
  buffers = [];
  queue = { submit: (commands) => commands.forEach((command) => command()) };

  createBuffer({ size }) {
    const memory = new ArrayBuffer(size);
    const buffer = { size, memory, destroyed: false, unmap() {}, async mapAsync() {} };
    buffer.getMappedRange = () => memory;
    buffer.destroy = () => (buffer.destroyed = true);
    this.buffers.push(buffer);
    return buffer;
  }

  createCommandEncoder() {
    const copies = [];
    return {
      copyBufferToBuffer: (from, at, to) =>
        copies.push(() => new Uint8Array(to.memory).set(new Uint8Array(from.memory))),
      finish: () => () => copies.forEach((copy) => copy()),
    };
  }
}

const LOOP = [
  { files: { past: "past" }, carry: {}, share: { present: "past" } },
  { files: {}, carry: { past: "present" }, share: { present: "past" } },
];

let device, fed, session, runtime;
beforeEach(() => {
  device = new Device();
  fed = [];
  session = {
    outputNames: ["present"],
    released: 0,
    async run(feeds, fetches) {
      fed.push(feeds.past.gpuBuffer);
      const values = new Float32Array(feeds.past.gpuBuffer.memory);
      values[0] += 1;
      return { present: fetches.present };
    },
    async release() {
      this.released += 1;
    },
  };
  const ort = { Tensor, InferenceSession: { create: async () => session } };
  const about = { option: "webgpu", provider: "CPUExecutionProvider", devices: { device } };
  runtime = new Runtime(ort, messages, () => {}, about);
});

const run = (steps) => runCase(runtime, { bundle: folder, out: folder, steps, repeat: 2 });

test("a shared buffer is carried from step to step, and each repeat has a fresh one", async () => {
  const { runs } = await run(LOOP);
  const first = (file) => new Float32Array(messages.readTensor(join(folder, file)).bytes)[0];
  assert.deepEqual(runs.map((steps) => steps.map(({ present }) => first(present))), [[2, 3], [2, 3]]);
  assert.equal(fed[0], fed[1]);
  assert.equal(fed[2], fed[3]);
  assert.notEqual(fed[0], fed[2]);
});

test("no buffer and no session outlives its case, however it ends", async () => {
  await run(LOOP);
  session.run = async () => {
    throw new Error("ERROR_CODE: 2, no");
  };
  await assert.rejects(run(LOOP), (error) => error instanceof Rejected && error.answer.stage === "run");
  await assert.rejects(run([{ ...LOOP[0], files: { past: "int8" } }]), Unavailable);
  assert.equal(session.released, 3);
  assert.equal(device.buffers.length, 8);
  assert.ok(device.buffers.every(({ destroyed }) => destroyed));
});

test("a trap while a session is released is a trap, also after a rejection", async () => {
  session.release = async () => {
    throw new WebAssembly.RuntimeError("unreachable");
  };
  await assert.rejects(run(LOOP), Trapped);
  session.run = async () => {
    throw new Error("ERROR_CODE: 2, no");
  };
  await assert.rejects(run(LOOP), Trapped);
});
