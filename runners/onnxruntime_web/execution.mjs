// One case: its session, its steps and its outputs.

import { performance } from "node:perf_hooks";

import { dataType, toElements } from "./dtypes.mjs";
import { CPU, OPERATOR, Placements } from "./placement.mjs";
import { BadFile, readBundleFile } from "./tensor_file.mjs";

/** The runtime returned an error: the fields of a `rejected` answer beside its outcome. */
export class Rejected extends Error {
  constructor(stage, step, error) {
    super(String(error?.message ?? error));
    this.answer = { stage, step, code: statusCode(this.message), message: shortened(this.message) };
  }
}

/** The wasm trapped or aborted: nothing in this process can be trusted any more. */
export class Trapped extends Error {}

/** This case cannot run here; the message says why. */
export class Unavailable extends Error {}

/** OrtErrorCode by number. */
const CODES = [
  "OK",
  "FAIL",
  "INVALID_ARGUMENT",
  "NO_SUCHFILE",
  "NO_MODEL",
  "ENGINE_ERROR",
  "RUNTIME_EXCEPTION",
  "INVALID_PROTOBUF",
  "MODEL_LOADED",
  "NOT_IMPLEMENTED",
  "INVALID_GRAPH",
  "EP_FAIL",
];

/** The name of the error code in a message of onnxruntime-web; null if it has none. */
export function statusCode(message) {
  const match = /ERROR_CODE: (\d+)/.exec(message);
  return match ? (CODES[match[1]] ?? match[1]) : null;
}

const LONGEST_MESSAGE = 100_000; // characters, so that an answer stays far below 1 MiB

function shortened(text) {
  return text.length <= LONGEST_MESSAGE ? text : `${text.slice(0, LONGEST_MESSAGE)} …`;
}

/** Throw the class that stands for an error from a call of onnxruntime-web. */
function refuse(stage, step, error) {
  if (error instanceof WebAssembly.RuntimeError) throw new Trapped(error.message);
  throw new Rejected(stage, step, error);
}

/** onnxruntime's message for a model that would run on the CPU in part, which is not allowed. */
const FELL_BACK = /fallback to CPU EP has been explicitly disabled/;

/** onnxruntime-web, or -node, with the one requested execution provider; `more` are options of sessions. */
export class Runtime {
  constructor(ort, messages, listen, { option, provider, devices, more = {} }) {
    this.ort = ort;
    this.messages = messages;
    this.listen = listen;
    this.option = option;
    this.provider = provider;
    this.devices = devices;
    this.more = more;
  }

  /**
   * A session with the model, and where its nodes are placed; without that, `placementOf` says it after
   * the runs. Throws Rejected and Trapped.
   *
   * If onnxruntime accepts a model that must not go to the CPU, that proves that no node of it went
   * there; if it rejects the model for this reason, the log of another session says which node did. The
   * log is also used for a model that may have been computed while it was loaded, which leaves no node
   * to prove it with. The log alone would be enough, but 137 lines of it take longer than the case.
   */
  async load(model) {
    if (this.provider === CPU) return { session: await this.create(model), placement: CPU };
    if (!this.messages.waitsForInputs(model, OPERATOR)) return this.loadWithLog(model);
    try {
      const session = await this.create(model, { extra: { session: { disable_cpu_ep_fallback: "1" } } });
      return { session, placement: this.provider };
    } catch (error) {
      if (!(error instanceof Rejected) || !FELL_BACK.test(error.message)) throw error;
    }
    return this.loadWithLog(model);
  }

  /** The same, using the log only. */
  async loadWithLog(model) {
    const placements = new Placements();
    this.listen((message) => placements.read(message));
    try {
      const session = await this.create(model, { logSeverityLevel: 0 });
      return { session, placement: placements.of(this.provider) };
    } finally {
      this.listen(null);
    }
  }

  async create(model, options = {}) {
    try {
      return await this.ort.InferenceSession.create(model, {
        executionProviders: [this.option],
        logSeverityLevel: 3,
        ...this.more,
        ...options,
      });
    } catch (error) {
      return refuse("load", 0, error);
    }
  }

  /** The outputs of a step by name; `shared` is as in `onDevice`. Throws what onnxruntime throws. */
  async run(session, feeds, fetches, shared) {
    return session.run(feeds, fetches, { logSeverityLevel: 3 });
  }

  /**
   * What a past and a present can share: `tensor` itself on the CPU, or a tensor in a buffer on the device.
   * One in `shared`, which has what reads it, is the buffer of the previous step and is used again; any
   * other tensor is copied and added there. Throws Unavailable for a type that the API does not support.
   */
  async onDevice(tensor, shared) {
    return !this.devices || shared.has(tensor) ? tensor : onDevice(this, tensor, shared);
  }

  /** A tensor on the CPU with the values of a file. Throws Unavailable. */
  tensor({ name, dataType, dims, bytes }) {
    const known = toElements(dataType, bytes);
    if (!known) {
      throw new Unavailable(`the JavaScript API takes no TensorProto type ${dataType} (${name}).`);
    }
    return new this.ort.Tensor(known.type, known.elements, dims);
  }
}

/**
 * Run the case that `request` names; the fields of a `ran` answer beside its outcome. Throws
 * Rejected, Trapped, Unavailable and BadFile.
 */
export async function runCase(runtime, request) {
  const { bundle, out, steps, repeat } = request;
  const model = readBundleFile(`${bundle}/model.onnx`);
  if (!model.length) throw new BadFile(`${bundle}/model.onnx is empty`);
  const given = steps.map(({ files }) =>
    mapValues(files, (file, name) => ({
      ...runtime.messages.readTensor(`${bundle}/${file}`),
      name,
    })),
  );
  const tensors = given.map((each) => mapValues(each, (tensor) => runtime.tensor(tensor)));

  const start = performance.now();
  const { session, placement } = await runtime.load(model);
  const load = performance.now() - start;
  const runs = [];
  let fastest = Infinity;
  let ranOn;
  try {
    for (let number = 0; number < repeat; number++) {
      const { files, ms } = await runSteps(runtime, session, steps, tensors, number, out);
      runs.push(files);
      fastest = Math.min(fastest, ms);
    }
    ranOn = placement ?? runtime.placementOf(session);
  } finally {
    await release(session);
  }
  return { placement: ranOn, runs, ms: { load, run: fastest } };
}

/** Release the session, which an error during a run may have made impossible. Throws Trapped. */
async function release(session) {
  try {
    await session.release();
  } catch (error) {
    throw error instanceof WebAssembly.RuntimeError ? new Trapped(error.message) : error;
  }
}

/** All steps from the start: the files written for each, and the milliseconds spent running. */
async function runSteps(runtime, session, steps, tensors, repeat, out) {
  const files = [];
  const shared = new Map(); // tensor on the device → what reads it
  let ms = 0;
  let previous = {};
  try {
    for (const [number, { carry, keep = null, share, may_be_rejected: mayBeRejected }] of steps.entries()) {
      const own = mapValues(tensors[number], (tensor) => copyOf(runtime, tensor));
      const feeds = { ...own, ...mapValues(carry, (output) => previous[output]) };
      if (keep !== null) {
        for (const name of Object.keys(carry)) feeds[name] = await firstRows(runtime, feeds[name], keep, shared);
      }
      const fetches = Object.fromEntries(session.outputNames.map((name) => [name, null]));
      for (const [output, input] of Object.entries(share)) {
        fetches[output] = feeds[input] = await runtime.onDevice(feeds[input], shared);
      }
      const start = performance.now();
      try {
        previous = await runtime.run(session, feeds, fetches, shared);
      } catch (error) {
        if (!mayBeRejected || error instanceof WebAssembly.RuntimeError) refuse("run", number, error);
        files.push(shortened(String(error?.message ?? error)));
        continue;
      }
      ms += performance.now() - start;
      files.push(await write(runtime, previous, shared, `${repeat}_${number}`, out));
    }
  } finally {
    for (const tensor of shared.keys()) tensor.dispose();
  }
  return { files, ms };
}

/** A tensor whose values a kernel may overwrite: each repeat starts from those in the files. */
function copyOf(runtime, { type, data, dims }) {
  return new runtime.ort.Tensor(type, data.slice(), dims);
}

/** The first `rows` of a present as a tensor on the CPU; a tensor of another rank is left as it is. */
async function firstRows(runtime, tensor, rows, shared) {
  if (tensor.dims.length !== 4) return tensor;
  const [batch, heads, there, size] = tensor.dims;
  const kept = Math.min(rows, there);
  const data = await dataOf(tensor, shared);
  const first = data.filter((_, at) => at % (there * size) < kept * size);
  return new runtime.ort.Tensor(tensor.type, first, [batch, heads, kept, size]);
}

/** The elements of a tensor; `shared` has what reads those on the device. */
async function dataOf(tensor, shared) {
  return (shared.get(tensor) ?? (() => tensor.getData()))();
}

/** A copy of `tensor` in a buffer on the device, added to `shared`. Throws Unavailable. */
function onDevice(runtime, tensor, shared) {
  const { data, type, dims } = tensor;
  const { device } = runtime.devices;
  const buffer = device.createBuffer({
    // A multiple of 16 bytes, like onnxruntime's own buffers; an empty buffer cannot be bound.
    size: Math.max(16, Math.ceil(data.byteLength / 16) * 16),
    usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
    mappedAtCreation: true,
  });
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  new Uint8Array(buffer.getMappedRange()).set(bytes);
  buffer.unmap();
  let made;
  try {
    made = runtime.ort.Tensor.fromGpuBuffer(buffer, {
      dataType: type,
      dims,
      dispose: () => buffer.destroy(),
    });
  } catch (error) {
    buffer.destroy();
    throw new Unavailable(`onnxruntime-web shares no buffer of ${type}: ${error.message}.`);
  }
  // Not its own download: that would turn it into a tensor on the CPU, and the next step would use a copy.
  shared.set(made, () => download(device, buffer, data));
  return made;
}

/** The content of a buffer, as elements like those of `data`. */
async function download(device, buffer, data) {
  const copy = device.createBuffer({
    size: buffer.size,
    usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ,
  });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, copy, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await copy.mapAsync(GPUMapMode.READ);
  const bytes = copy.getMappedRange().slice(0, data.byteLength);
  copy.destroy();
  return new data.constructor(bytes);
}

const PLAIN_NAME = /^[A-Za-z0-9_]{1,100}$/; // of an output: usable as a file name

/** Write a step's outputs, each to a new file: output name → file. */
async function write(runtime, outputs, shared, prefix, out) {
  const files = {};
  for (const [position, [name, tensor]] of Object.entries(outputs).entries()) {
    files[name] = `${prefix}_${PLAIN_NAME.test(name) ? name : position}.pb`;
    runtime.messages.writeTensor(`${out}/${files[name]}`, {
      name,
      dataType: dataType(tensor.type),
      dims: tensor.dims,
      bytes: await dataOf(tensor, shared),
    });
  }
  return files;
}

function mapValues(object, change) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value, key)]));
}
