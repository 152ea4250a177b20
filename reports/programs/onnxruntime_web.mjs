import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { setFlagsFromString } from "node:v8";

const TEXT = String.raw`__DATA__`;
const DATA = JSON.parse(TEXT);
const ON_GPU = DATA.runtime.device !== "cpu";
const IN_NODE = DATA.runtime.options === "node"; // onnxruntime-node

function end(verdict) {
  console.log(`verdict: ${verdict}`);
  process.stdout.write("", () => process.exit(verdict === "pass" ? 0 : 1));
  return new Promise(() => {});
}

if (!process.env.REPRO_CHILD) { // the rest runs in a child process, which may crash
  const env = { ...process.env, REPRO_CHILD: "1" };
  const options = { env, stdio: "inherit", timeout: Math.ceil(1000 * DATA.seconds) };
  const { error, status, signal } = spawnSync(process.execPath, [process.argv[1]], options);
  if (error?.code === "ETIMEDOUT") await end("timeout");
  if (status === null) {
    console.log(`the process ended with ${signal}`);
    await end("crash");
  }
  process.exit(status);
}

// ── The model and the inputs, which Python makes ──

const MAKING = String.raw`
import base64
import json
import sys

from inputs import dtype_of, inputs, model


DATA = json.load(sys.stdin)


def plain(content):
    return base64.b64encode(content).decode()


calls = [
    {n: [dtype_of(n), v.shape, plain(v.tobytes())] for n, v in call.items()} for call in inputs()
]
print(json.dumps({"model": plain(model()), "calls": calls}))
`;
const made = JSON.parse(
  execFileSync(process.env.PYTHON ?? "python3", ["-c", MAKING], { input: TEXT, encoding: "utf8", maxBuffer: 2 ** 30 }),
);

// ── The runtime ──

setFlagsFromString("--liftoff-only"); // starts within seconds
/** Imports a file of a package: run this program in a folder with node_modules. */
const from = (path) => import(pathToFileURL(`${process.cwd()}/node_modules/${path}`));
let lost = null;

/** Where Linux has the files that describe the drivers of software adapters. */
const FOLDERS = [
  "/usr/lib/chromium", "/usr/lib/chromium-browser", "/usr/lib64/chromium-browser", "/opt/google/chrome",
  "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d",
];
const DRIVERS = { lavapipe: /^lvp_icd.*\.json$/, swiftshader: /^vk_swiftshader_icd\.json$/ };

/** Selects the driver of the adapter that the result is of, unless VK_DRIVER_FILES names one. */
function chooseDriver() {
  const { VK_DRIVER_FILES, VK_ICD_FILENAMES } = process.env;
  const pattern = process.platform === "linux" && DRIVERS[DATA.runtime.adapter];
  if (!pattern || VK_DRIVER_FILES || VK_ICD_FILENAMES) return;
  const files = FOLDERS.filter(existsSync).flatMap((folder) =>
    readdirSync(folder).filter((name) => pattern.test(name)).map((name) => `${folder}/${name}`),
  );
  if (files.length) process.env.VK_DRIVER_FILES = process.env.VK_ICD_FILENAMES = files[0];
}

/** Makes Dawn available as navigator.gpu, as in a browser. */
async function addGpu() {
  chooseDriver();
  const dawn = await from("webgpu/index.js");
  Object.assign(globalThis, dawn.globals);
  if (!globalThis.navigator) Object.defineProperty(globalThis, "navigator", { value: {} });
  const gpu = dawn.create([]);
  const adapter = await gpu.requestAdapter();
  if (!adapter) {
    console.error("Dawn finds no WebGPU adapter: install a Vulkan driver and Vulkan's loader, on");
    console.error("Debian and Ubuntu: apt-get install mesa-vulkan-drivers libvulkan1 (Mesa 25 or later)");
    process.exit(2);
  }
  console.log(`adapter: ${adapter.info.description}`);
  Object.defineProperty(navigator, "gpu", { value: gpu });
  const { writeBuffer } = GPUQueue.prototype; // Dawn rejects SharedArrayBuffer: copy
  GPUQueue.prototype.writeBuffer = function (buffer, at, data, start = 0, size) {
    const unit = data.BYTES_PER_ELEMENT ?? 1;
    const memory = ArrayBuffer.isView(data) ? data.buffer : data;
    const first = (data.byteOffset ?? 0) + start * unit;
    const bytes = size === undefined ? data.byteLength - start * unit : size * unit;
    const copy = new Uint8Array(memory, first, bytes).slice();
    return writeBuffer.call(this, buffer, at, copy);
  };
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = async function (...parameters) {
    const device = await requestDevice.apply(this, parameters);
    device.lost.then(({ reason, message }) => {
      if (reason !== "destroyed") lost = message; // as a session that ends does
    });
    globalThis.device = device;
    return device;
  };
  const { createBindGroup } = GPUDevice.prototype; // throws, as in browsers
  GPUDevice.prototype.createBindGroup = function (descriptor) {
    const without = descriptor.entries.find(({ resource }) => !resource);
    if (without) {
      throw new TypeError(
        `createBindGroup: the resource of binding ${without.binding} is undefined.`,
      );
    }
    return createBindGroup.call(this, descriptor);
  };
}

if (ON_GPU && IN_NODE) chooseDriver(); // its library has a Dawn of its own
else if (ON_GPU) await addGpu();
const ort = IN_NODE
  ? (await from("onnxruntime-node/dist/index.js")).default
  : await from(`onnxruntime-web/dist/ort.${DATA.runtime.options}.bundle.min.mjs`);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const ARRAYS = {
  float32: Float32Array, float16: globalThis.Float16Array ?? Uint16Array,
  int8: Int8Array, uint8: Uint8Array, int32: Int32Array, int64: BigInt64Array,
};

function tensor([dtype, dims, content]) {
  const bytes = Uint8Array.from(Buffer.from(content, "base64"));
  return new ort.Tensor(dtype, new ARRAYS[dtype](bytes.buffer), dims);
}

const buffers = new Map();

/** A model that copies x to y, both of this TensorProto.DataType: a message of ONNX, field by field. */
function copying(type) {
  const part = (tag, ...bytes) => [tag, bytes.length, ...bytes];
  const text = (tag, word) => part(tag, ...Buffer.from(word));
  const value = (tag, name) => part(tag, ...text(10, name), ...part(18, ...part(10, 8, type)));
  const node = part(10, ...text(10, "x"), ...text(18, "y"), ...text(34, "Identity"));
  const graph = part(58, ...node, ...text(18, "copying"), ...value(90, "x"), ...value(98, "y"));
  return Uint8Array.from([8, 8, ...graph, ...part(66, 16, 14)]);
}

/** The tensor in another place, "gpu-buffer" or "cpu", by onnxruntime-node: its getData ends the process. */
async function copied(given, preferredOutputLocation) {
  const type = { float32: 1, uint8: 2, int8: 3, float16: 10 }[given.type];
  const options = { executionProviders: ["webgpu"], preferredOutputLocation };
  const session = await ort.InferenceSession.create(copying(type), options);
  return (await session.run({ x: given })).y;
}

/** Remembers how a tensor of onnxruntime-node on the device is read. */
function remembered(given) {
  if (given.location === "gpu-buffer") buffers.set(given, async () => (await copied(given, "cpu")).data);
  return given;
}

/** Puts a past, which is its present, too, into a buffer on the device. */
async function onDevice(given) {
  if (!ON_GPU || buffers.has(given)) return given;
  if (IN_NODE) return remembered(await copied(given, "gpu-buffer"));
  const { data, type, dims } = given;
  const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
  const size = Math.max(16, Math.ceil(data.byteLength / 16) * 16);
  const usage = STORAGE | COPY_SRC | COPY_DST;
  const buffer = device.createBuffer({ size, usage, mappedAtCreation: true });
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  new Uint8Array(buffer.getMappedRange()).set(bytes);
  buffer.unmap();
  const shared = ort.Tensor.fromGpuBuffer(buffer, { dataType: type, dims });
  buffers.set(shared, async () => {
    const copy = device.createBuffer({ size, usage: COPY_DST | GPUBufferUsage.MAP_READ });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, copy, 0, size);
    device.queue.submit([encoder.finish()]);
    await copy.mapAsync(GPUMapMode.READ);
    return new data.constructor(copy.getMappedRange().slice(0, data.byteLength));
  });
  return shared;
}

/** A session with the model, and whether a node can run on the CPU only. */
async function load() {
  const model = Buffer.from(made.model, "base64");
  const provider = ON_GPU ? "webgpu" : IN_NODE ? "cpu" : "wasm";
  const threads = IN_NODE ? { intraOpNumThreads: 1, interOpNumThreads: 1 } : {};
  const options = { executionProviders: [provider], logSeverityLevel: 3, ...threads };
  const create = (more) => ort.InferenceSession.create(model, { ...options, ...more });
  if (!DATA.runtime.alone) return [await create({}), false];
  try {
    return [await create({ extra: { session: { disable_cpu_ep_fallback: "1" } } }), false];
  } catch (error) {
    if (!/fallback to CPU EP has been explicitly disabled/.test(error.message)) throw error;
    return [await create({}), true];
  }
}

/** The outputs of one call as tensors. */
async function call(session, feeds) {
  const share = Object.entries(DATA.share);
  if (!share.length) return session.run(feeds);
  const fetches = Object.fromEntries(session.outputNames.map((name) => [name, null]));
  for (const [past, present] of share) fetches[present] = feeds[past] = await onDevice(feeds[past]);
  const outputs = await session.run(feeds, fetches);
  if (IN_NODE) Object.values(outputs).forEach(remembered);
  return outputs;
}

/** The first rows of a present, which are the past that a call keeps. */
function firstRows({ type, data, dims: [batch, heads, there, size] }, rows) {
  const kept = data.filter((_, at) => at % (there * size) < rows * size);
  return new ort.Tensor(type, kept, [batch, heads, rows, size]);
}

/** The outputs of each call, run after run. */
async function resultsOf(session) {
  const results = [];
  for (let run = 0; run < DATA.runs; run++) {
    let outputs = {};
    for (const [step, sent] of made.calls.entries()) {
      const rows = DATA.keep[step];
      const pairs = Object.entries(DATA.carry[step]);
      const carried = Object.fromEntries(pairs.map(([past, present]) => [past, outputs[present]]));
      if (rows !== null) {
        for (const past of Object.keys(carried)) carried[past] = firstRows(carried[past], rows);
      }
      const own = Object.entries(sent).map(([name, content]) => [name, tensor(content)]);
      const refused = DATA.refused.includes(step); // its outputs are not checked
      try {
        outputs = await call(session, { ...Object.fromEntries(own), ...carried });
      } catch (error) {
        if (!refused || error instanceof WebAssembly.RuntimeError) throw error;
        console.log(`step ${step} is illegal, and rejected: ${error.message ?? error}`);
      }
      const read = {};
      for (const [name, value] of Object.entries(refused ? {} : outputs)) {
        const data = buffers.has(value) ? await buffers.get(value)() : value.data.slice();
        read[name] = { dims: value.dims, data };
      }
      results.push(read);
    }
  }
  return results;
}

// ── The check ──

/** A number of the data, where JSON has no word for infinities. */
const number = (value) => ({ nan: NaN, inf: Infinity, "-inf": -Infinity })[value] ?? value;

/** The value of the bits of a float16. */
function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

/** The number of faults in the outputs. */
function check(results) {
  let faults = 0;
  for (const [output, step, shape] of DATA.shapes) {
    const { dims } = results[step][output];
    console.log(`${output} of step ${step} has shape [${dims}] and should have [${shape}]`);
    if (`${dims}` !== `${shape}`) faults += 1;
  }
  for (const [output, step, at, ...numbers] of DATA.elements) {
    const [want, allowed] = numbers.map(number);
    const { dims, data } = results[step][output];
    const flat = at.reduce((sum, index, axis) => sum * dims[axis] + index, 0);
    const got = data instanceof Uint16Array ? half(data[flat]) : Number(data[flat]);
    const good = got === want || Math.abs(got - want) <= allowed;
    const found = `got ${got}, want ${want}, allowed error ${allowed}`;
    console.log(`${output}[${at}] of step ${step}: ${found}: ${good ? "correct" : "WRONG"}`);
    if (!good) faults += 1;
  }
  const calls = results.length / DATA.runs;
  for (const [step, one] of results.slice(calls).entries()) {
    for (const [name, { data }] of Object.entries(one)) {
      const first = results[step][name].data;
      if (data.every((value, index) => Object.is(value, first[index]))) continue;
      console.log(`two runs differ in ${name}`);
      faults += 1;
    }
  }
  for (const note of DATA.notes) console.log(note);
  return faults;
}

let session, elsewhere, results;
try {
  [session, elsewhere] = await load();
  results = await resultsOf(session);
} catch (error) {
  console.log(`rejected: ${error.message ?? error}`);
  const crashed = error instanceof WebAssembly.RuntimeError || lost;
  await end(crashed ? "crash" : DATA.if_rejected);
}
if (lost) {
  console.log(`the device was lost: ${lost}`);
  await end("crash");
}
if (elsewhere) await end("fallback"); // it ran on the CPU
await end(check(results) ? DATA.if_wrong : DATA.if_right);
