// Run cases on onnxruntime-node: node node_runner.mjs --ep node|node-webgpu --modules FOLDER [--adapter NAME]
//
// FOLDER has node_modules with onnxruntime-node and protobufjs, and for node-webgpu with webgpu (Dawn); --shaders
// names a folder in which built shaders are cached, and --again a command that installs the packages anew. Requests come on standard input; answers go to the descriptor --answers, standard output
// by default. onnxruntime_web/launch.py starts this program so that only answers reach that descriptor.

import { argv, exit, kill, pid, stdin, version as node } from "node:process";
import { parseArgs } from "node:util";

import { findAdapter } from "../onnxruntime_web/adapter.mjs";
import { adapterWord, device, facts } from "../onnxruntime_web/adapter_facts.mjs";
import { dtypes } from "../onnxruntime_web/dtypes.mjs";
import { withoutAdapter } from "../onnxruntime_web/engine.mjs";
import { Rejected, Runtime, Unavailable, runCase } from "../onnxruntime_web/execution.mjs";
import { BadPackage, Packages } from "../onnxruntime_web/packages.mjs";
import { CPU } from "../onnxruntime_web/placement.mjs";
import { Answers, ownFault, processor, serve } from "../onnxruntime_web/serving.mjs";
import { Shaders } from "../onnxruntime_web/shaders.mjs";
import { Messages, readBundleFile } from "../onnxruntime_web/tensor_file.mjs";
import { NativeWebGpu } from "./native_webgpu.mjs";

const THREADS = 1;
const FLOAT16 = 10; // of TensorProto.DataType

const { values: options } = parseArgs({
  args: argv.slice(2),
  options: {
    ep: { type: "string", default: "node" },
    modules: { type: "string" },
    adapter: { type: "string" },
    shaders: { type: "string" },
    again: { type: "string" },
    answers: { type: "string", default: "1" },
  },
});
if (!options.modules) {
  console.error("node_runner.mjs: wanted --modules FOLDER");
  exit(2);
}
const answers = new Answers(Number(options.answers));
let runtime = null;
let shaders = null;
let works = async () => true;

try {
  await serve(stdin, answers, { describe: () => describe().catch(without), run });
} catch (error) {
  console.error(`node_runner.mjs: ${ownFault(error)}`);
  exit(1);
}
exit(0);

/** The answer to describe; loads the library. */
async function describe() {
  const packages = new Packages(options.modules);
  const found = options.ep === "node-webgpu" ? await gpu(packages) : null; // before the library loads drivers
  const ort = packages.require("onnxruntime-node");
  ort.env.logLevel = "error";
  const messages = new Messages(packages.require("protobufjs"));
  const threads = { intraOpNumThreads: THREADS, interOpNumThreads: THREADS };
  runtime = found
    ? new NativeWebGpu(ort, messages, threads)
    : new Runtime(ort, messages, null, { option: "cpu", provider: CPU, devices: null, more: threads });
  if (found) works = await addition(ort, messages);
  const withFloat16 = !("float16" in (found?.lacks ?? {})) && (await takesFloat16(messages));
  const version = packages.version("onnxruntime-node");
  return {
    outcome: "described",
    runtime: "onnxruntime-node",
    version,
    execution_provider: runtime.provider,
    device: found ? device(found.adapter) : processor(),
    ...(found && { adapter: adapterWord(found.adapter.info), lacks: found.lacks }),
    dtypes: dtypes(withFloat16),
    features: ["shared_buffer", "keep", "may_be_rejected"],
    threads: THREADS,
    versions: {
      "onnxruntime-node": version,
      node,
      v8: process.versions.v8,
      ...(found && { "adapter named by": found.by, ...facts(found.adapter), processor: processor() }),
    },
  };
}

/** The adapter, and what it lacks. Sets the drivers and the cache of shaders for all that is loaded later. */
async function gpu(packages) {
  const folder = options.shaders ? Shaders.keepIn(options.shaders) : null;
  const { create } = await packages.import("webgpu");
  const found = await findAdapter(create, options.adapter ?? null);
  const kept = found.adapter.info.description.includes("Mesa") ? folder : null;
  shaders = new Shaders(kept, `${device(found.adapter)} onnxruntime-node ${packages.version("onnxruntime-node")}`);
  return { ...found, by: `webgpu ${packages.version("webgpu")}` };
}

/** Whether a session still adds 2 and 3. It stays open, since the device ends with the last session. */
async function addition(ort, messages) {
  const session = await runtime.create(messages.addition(), { extra: { session: { disable_cpu_ep_fallback: "1" } } });
  const tensor = (value) => new ort.Tensor("float32", [value], [1]);
  return async () => (await session.run({ a: tensor(2), b: tensor(3) })).sum.data[0] === 5;
}

/** Whether the package takes tensors of float16: where JavaScript has Float16Array, 1.30.0 refuses them. */
async function takesFloat16(messages) {
  const session = await runtime.create(messages.addition(FLOAT16));
  const tensor = runtime.tensor({ name: "a", dataType: FLOAT16, dims: [1], bytes: new ArrayBuffer(2) });
  try {
    await session.run({ a: tensor, b: tensor });
    return true;
  } catch {
    return false;
  } finally {
    await session.release();
  }
}

/** The answer if a package, an adapter or a provider is missing; any other error is thrown again. */
function without(error) {
  if (error instanceof BadPackage) return error.answer(options.again);
  if (error instanceof Rejected) return { outcome: "unavailable", reason: `onnxruntime-node: ${error.message}.`, fix: null };
  return withoutAdapter(error);
}

/** The answer to run. */
async function run(request) {
  // The library builds shaders unseen: each case may need new ones when it first runs.
  if (shaders?.mustBuild(texts(request))) answers.compiling();
  try {
    const answer = { outcome: "ran", ...(await runCase(runtime, request)) };
    shaders?.built();
    return answer;
  } catch (error) {
    if (error instanceof Rejected) {
      if (!(await works().catch(() => false))) die(`${error.message} (and nothing works any more)`);
      return { outcome: "rejected", ...error.answer };
    }
    if (error instanceof Unavailable) return { outcome: "unavailable", reason: error.message };
    throw error;
  }
}

/** What the shaders of a case depend on: its model and its inputs, which are always the same. */
function texts({ bundle, steps }) {
  const files = steps.flatMap((step) => Object.values(step.files));
  return Buffer.concat(["model.onnx", ...files].map((file) => readBundleFile(`${bundle}/${file}`)));
}

/** End as a crashing runtime does, since the device was lost: the next case gets a new process. */
function die(message) {
  console.error(message.trim().split("\n")[0]);
  kill(pid, "SIGABRT");
  for (;;);
}
