// node on_webgpu.mjs CALL.json…: runs models in Node with onnxruntime-web's WebGPU kernels on Dawn (the older kernels
// with BUILD=all; the CPU kernels with EP=wasm) and prints the outputs of each as a line of JSON. Run it in a folder with node_modules:
//   npm install onnxruntime-web@1.30.0 webgpu@0.6.2
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const from = (path) => import(pathToFileURL(`${process.cwd()}/node_modules/${path}`));
const { create, globals } = await from("webgpu/index.js");
Object.assign(globalThis, globals);
globalThis.navigator ??= {};
Object.defineProperty(navigator, "gpu", { value: create([]) });
const { writeBuffer } = GPUQueue.prototype; // Dawn does not read from a SharedArrayBuffer: copy
GPUQueue.prototype.writeBuffer = function (buffer, at, data, start = 0, size = undefined) {
  const view = ArrayBuffer.isView(data) ? data : new Uint8Array(data);
  return writeBuffer.call(this, buffer, at, view.slice(start, size === undefined ? size : start + size));
};
if (process.env.ZEROS) { // see dawn-zeros-in-loops.md
  const { createShaderModule } = GPUDevice.prototype;
  const spelled = (code) => code.replace(/^(\s+var \w+\s*:\s*([^=;]+));/gm, "$1 = $2();");
  GPUDevice.prototype.createShaderModule = function (what) {
    return createShaderModule.call(this, { ...what, code: spelled(what.code) });
  };
}
const ort = await from(`onnxruntime-web/dist/ort.${process.env.BUILD ?? "webgpu"}.bundle.min.mjs`);
ort.env.wasm.numThreads = 1;
const arrays = { float32: Float32Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array, int32: Int32Array, int64: BigInt64Array };
const options = { executionProviders: [process.env.EP ?? "webgpu"], logSeverityLevel: 3 };
const plain = (value) => (typeof value === "bigint" ? Number(value) : Number.isFinite(value) ? value : `${value}`);
async function call({ model, feeds }) {
  for (const [name, { type, dims, data }] of Object.entries(feeds)) {
    const bytes = Uint8Array.from(Buffer.from(data, "base64"));
    feeds[name] = new ort.Tensor(type, new arrays[type](bytes.buffer), dims);
  }
  const session = await ort.InferenceSession.create(readFileSync(model), options);
  const outputs = await session.run(feeds);
  return Object.fromEntries(Object.entries(outputs).map(([name, t]) => [name, { type: t.type, dims: t.dims, data: Array.from(t.data, plain) }]));
}
for (const path of process.argv.slice(2)) {
  const told = await call(JSON.parse(readFileSync(path))).catch((error) => ({ error: `${error.message ?? error}` }));
  console.log(JSON.stringify(told));
}
process.stdout.write("", () => process.exit());
