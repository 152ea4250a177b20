// node on_webgpu.mjs CALL.json: runs a model on onnxruntime-web's WebGPU (or, with EP=wasm, on its CPU) in
// Node, on Dawn, and prints the outputs as JSON. Run it in a folder with node_modules:
//   npm install onnxruntime-web@1.30.0 webgpu@0.6.2
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const from = (path) => import(pathToFileURL(`${process.cwd()}/node_modules/${path}`));
const { create, globals } = await from("webgpu/index.js");
Object.assign(globalThis, globals);
globalThis.navigator ??= {};
Object.defineProperty(navigator, "gpu", { value: create([]) });
const { writeBuffer } = GPUQueue.prototype; // Dawn takes nothing of a SharedArrayBuffer: copy
GPUQueue.prototype.writeBuffer = function (buffer, at, data, start = 0, size = undefined) {
  const view = ArrayBuffer.isView(data) ? data : new Uint8Array(data);
  return writeBuffer.call(this, buffer, at, view.slice(start, size === undefined ? size : start + size));
};
const ort = await from(`onnxruntime-web/dist/ort.${process.env.BUILD ?? "webgpu"}.bundle.min.mjs`);
ort.env.wasm.numThreads = 1;
const { model, feeds } = JSON.parse(readFileSync(process.argv[2]));
const arrays = { float32: Float32Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array, int32: Int32Array, int64: BigInt64Array };
for (const [name, { type, dims, data }] of Object.entries(feeds)) {
  feeds[name] = new ort.Tensor(type, arrays[type].from(data, type === "int64" ? BigInt : undefined), dims);
}
const options = { executionProviders: [process.env.EP ?? "webgpu"], logSeverityLevel: 3 };
const session = await ort.InferenceSession.create(readFileSync(model), options).catch((error) => (console.log(JSON.stringify({ error: error.message })), process.exit()));
const outputs = await session.run(feeds).catch((error) => (console.log(JSON.stringify({ error: `${error.message ?? error}` })), process.exit()));
const plain = (value) => (typeof value === "bigint" ? Number(value) : Number.isFinite(value) ? value : `${value}`);
console.log(JSON.stringify(Object.fromEntries(Object.entries(outputs).map(([name, t]) => [name, { type: t.type, dims: t.dims, data: Array.from(t.data, plain) }]))));
process.exit();
