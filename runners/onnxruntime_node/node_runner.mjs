// Run cases on onnxruntime-node: node node_runner.mjs --modules FOLDER
//
// FOLDER has node_modules with onnxruntime-node and protobufjs; --again is a command that installs the
// packages anew. Requests come on standard input; answers go to the descriptor --answers, standard output
// by default. onnxruntime_web/launch.py starts this program so that only answers reach that descriptor.

import { argv, exit, stdin, version as node } from "node:process";
import { parseArgs } from "node:util";

import { dtypes } from "../onnxruntime_web/dtypes.mjs";
import { Rejected, Runtime, Unavailable, runCase } from "../onnxruntime_web/execution.mjs";
import { BadPackage, Packages } from "../onnxruntime_web/packages.mjs";
import { CPU } from "../onnxruntime_web/placement.mjs";
import { Answers, ownFault, processor, serve } from "../onnxruntime_web/serving.mjs";
import { Messages } from "../onnxruntime_web/tensor_file.mjs";

const THREADS = 1;
const FLOAT16 = 10; // of TensorProto.DataType

const { values: options } = parseArgs({
  args: argv.slice(2),
  options: {
    ep: { type: "string", default: "node" },
    modules: { type: "string" },
    again: { type: "string" },
    answers: { type: "string", default: "1" },
  },
});
if (!options.modules) {
  console.error("node_runner.mjs: wanted --modules FOLDER");
  exit(2);
}
let runtime = null;

try {
  await serve(stdin, new Answers(Number(options.answers)), { describe: () => describe().catch(without), run });
} catch (error) {
  console.error(`node_runner.mjs: ${ownFault(error)}`);
  exit(1);
}
exit(0);

/** The answer to describe; loads the library. */
async function describe() {
  const packages = new Packages(options.modules);
  const ort = packages.require("onnxruntime-node");
  ort.env.logLevel = "error";
  const messages = new Messages(packages.require("protobufjs"));
  runtime = new Runtime(ort, messages, null, {
    option: "cpu",
    provider: CPU,
    devices: null,
    more: { intraOpNumThreads: THREADS, interOpNumThreads: THREADS },
  });
  const withFloat16 = await takesFloat16(messages);
  const version = packages.version("onnxruntime-node");
  return {
    outcome: "described",
    runtime: "onnxruntime-node",
    version,
    execution_provider: CPU,
    device: processor(),
    dtypes: dtypes(withFloat16),
    features: ["shared_buffer", "keep"],
    threads: THREADS,
    versions: { "onnxruntime-node": version, node, v8: process.versions.v8 },
  };
}

/** Whether the package takes tensors of float16: where JavaScript has Float16Array, 1.30.0 refuses them. */
async function takesFloat16(messages) {
  const { session } = await runtime.load(messages.addition(FLOAT16));
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

/** The answer if a package cannot be loaded; any other error is thrown again. */
function without(error) {
  if (error instanceof BadPackage) return error.answer(options.again);
  throw error;
}

/** The answer to run. */
async function run(request) {
  try {
    return { outcome: "ran", ...(await runCase(runtime, request)) };
  } catch (error) {
    if (error instanceof Rejected) return { outcome: "rejected", ...error.answer };
    if (error instanceof Unavailable) return { outcome: "unavailable", reason: error.message };
    throw error;
  }
}
