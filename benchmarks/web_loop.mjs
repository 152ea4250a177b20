// The cost of a case on onnxruntime-web without the suite: node --liftoff-only web_loop.mjs FOLDER ENTRY [ADAPTER]
//
// FOLDER has node_modules, ENTRY is webgpu, all or wasm. For each line {"bundle", "files"} on standard input it
// reads the tensors, creates a session, runs it twice and releases it; then it prints a line: "ran", or
// "refused". One session stays open from the start, since the device and its shaders are released with the last one.

import { readFileSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

import { findAdapter } from "../runners/onnxruntime_web/adapter.mjs";
import { Packages } from "../runners/onnxruntime_web/packages.mjs";
import { Messages } from "../runners/onnxruntime_web/tensor_file.mjs";

const REPEAT = 2;
const TYPES = {
  1: ["float32", Float32Array],
  2: ["uint8", Uint8Array],
  3: ["int8", Int8Array],
  6: ["int32", Int32Array],
  7: ["int64", BigInt64Array],
  10: ["float16", globalThis.Float16Array ?? Uint16Array],
};

const [folder, entry, adapter] = process.argv.slice(2);
const packages = new Packages(folder);
if (entry !== "wasm") {
  const dawn = await packages.import("webgpu");
  Object.assign(globalThis, dawn.globals);
  globalThis.navigator ??= {};
  const { gpu } = await findAdapter(dawn.create, adapter ?? null);
  Object.defineProperty(navigator, "gpu", { value: gpu });
  const { writeBuffer } = GPUQueue.prototype; // Dawn does not accept a view of a SharedArrayBuffer: copy
  GPUQueue.prototype.writeBuffer = function (buffer, at, data, ...size) {
    const shared = data.buffer instanceof SharedArrayBuffer;
    return writeBuffer.call(this, buffer, at, shared ? data.slice() : data, ...size);
  };
}
for (const name of ["log", "info", "warn", "error"]) console[name] = () => {};
const ort = await packages.import("onnxruntime-web", `./${entry}`);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
const messages = new Messages(packages.require("protobufjs"));
const options = { executionProviders: [entry === "wasm" ? "wasm" : "webgpu"] };
const kept = await ort.InferenceSession.create(messages.addition(), options);
const ones = () => new ort.Tensor("float32", [1], [1]);
await kept.run({ a: ones(), b: ones() });
writeSync(1, "ready\n");

for await (const line of createInterface({ input: process.stdin })) {
  writeSync(1, `${await run(JSON.parse(line))}\n`);
}
process.exit();

async function run({ bundle, files }) {
  const feeds = {};
  for (const [name, file] of Object.entries(files)) {
    const { dataType, dims, bytes } = messages.readTensor(`${bundle}/${file}`);
    const [type, Elements] = TYPES[dataType];
    feeds[name] = new ort.Tensor(type, new Elements(bytes), dims);
  }
  let session = null;
  try {
    session = await ort.InferenceSession.create(readFileSync(`${bundle}/model.onnx`), options);
    for (let number = 0; number < REPEAT; number++) await session.run(feeds);
    return "ran";
  } catch {
    return "refused"; // a result; the suite runs these cases too
  } finally {
    await session?.release();
  }
}
