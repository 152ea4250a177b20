// Run cases on onnxruntime-web: node runner.mjs --ep webgpu --modules FOLDER [--adapter NAME]
//
// FOLDER has node_modules with onnxruntime-web, webgpu (Dawn) and protobufjs; --shaders names a folder
// in which built shaders are cached (Mesa's drivers can do that), and --again a command that installs
// the packages anew. Requests come on standard input; answers go to the descriptor --answers,
// standard output by default. launch.py starts this program so that only answers reach that descriptor.

import { argv, exit, kill, pid, stdin, version as node } from "node:process";
import { parseArgs } from "node:util";
import { setFlagsFromString } from "node:v8";

import { NoAdapter, adapterWord, checkAdapter, findAdapter } from "./adapter.mjs";
import { installDawn } from "./device.mjs";
import { dtypes } from "./dtypes.mjs";
import { Rejected, Runtime, Trapped, Unavailable, runCase } from "./execution.mjs";
import { takeOutput } from "./log.mjs";
import { BadPackage, Packages } from "./packages.mjs";
import { findPrograms } from "./programs.mjs";
import { Answers, ownFault, processor, serve } from "./serving.mjs";
import { Shaders } from "./shaders.mjs";
import { TARGETS } from "./targets.mjs";
import { Messages } from "./tensor_file.mjs";

// Otherwise V8 compiles 27 MB of wasm a second time, for speed, which delays the first run by half a minute.
setFlagsFromString("--liftoff-only");

const { values: options } = parseArgs({
  args: argv.slice(2),
  options: {
    ep: { type: "string" },
    modules: { type: "string" },
    adapter: { type: "string" },
    shaders: { type: "string" },
    again: { type: "string" },
    answers: { type: "string", default: "1" },
  },
});
const target = TARGETS[options.ep];
if (!target || !options.modules) {
  console.error(`runner.mjs: wanted --ep ${Object.keys(TARGETS).join("|")} and --modules FOLDER`);
  exit(2);
}
const listen = takeOutput();
const answers = new Answers(Number(options.answers));
let runtime = null;
let shaders = null;
let programs = null; // compiled shaders that must not outlive a case

try {
  await serve(stdin, answers, { describe: () => describe().catch(without), run });
} catch (error) {
  if (error instanceof Trapped) die(error.message);
  console.error(`runner.mjs: ${ownFault(error)}`);
  exit(1);
}
exit(0);

/** The answer to describe; starts the runtime. */
async function describe() {
  const packages = new Packages(options.modules);
  let adapter = null;
  let devices = null;
  let lacks = {};
  if (target.gpu) {
    const folder = options.shaders ? Shaders.keepIn(options.shaders) : null;
    const dawn = await packages.import("webgpu");
    const found = await findAdapter(dawn.create, options.adapter ?? null);
    ({ adapter, lacks } = found);
    // Of the known drivers, Mesa's cache the shaders that they build, in a folder that can be set.
    const kept = adapter.info.description.includes("Mesa") ? folder : null;
    shaders = new Shaders(kept, `${device(adapter)} ${packages.version("webgpu")}`);
    devices = installDawn(dawn, found.gpu, (text) => {
      if (shaders.mustBuild(text)) answers.compiling();
    });
  }
  const ort = await packages.import("onnxruntime-web", target.entry);
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  const messages = new Messages(packages.require("protobufjs"));
  runtime = new Runtime(ort, messages, listen, { ...target, devices });
  // Kept open: the device and its shaders are released with the last session, and take seconds to create.
  const { session, placement } = await runtime.loadWithLog(messages.addition());
  const tensor = (value) => new ort.Tensor("float32", [value], [1]);
  runtime.works = async () => {
    const { sum } = await session.run({ a: tensor(2), b: tensor(3) });
    return sum.data[0] === 5;
  };
  let works = false;
  const kept = await findPrograms(async () => (works = await runtime.works()));
  if (!works) throw new Error("onnxruntime-web does not add 2 and 3");
  if (target.mixesPrograms) {
    if (!kept) throw new Error("onnxruntime-web keeps its compiled shaders out of reach");
    programs = kept;
  }
  if (placement !== target.provider) {
    return { outcome: "unavailable", reason: `onnxruntime-web adds on ${placement}.`, fix: null };
  }
  // The adapter that onnxruntime requested, which may differ from the one that was found.
  adapter = devices?.adapter ?? adapter;
  if (adapter) checkAdapter(adapter, options.adapter ?? null);
  const version = packages.version("onnxruntime-web");
  return {
    outcome: "described",
    runtime: "onnxruntime-web",
    version,
    execution_provider: target.provider,
    device: adapter ? device(adapter) : processor(),
    adapter: adapter && adapterWord(adapter.info),
    dtypes: dtypes(!("float16" in lacks)),
    lacks,
    features: target.gpu ? ["shared_buffer", "keep"] : ["keep"],
    threads: ort.env.wasm.numThreads,
    versions: {
      "onnxruntime-web": version,
      node,
      v8: process.versions.v8,
      ...(adapter && { dawn: `webgpu ${packages.version("webgpu")}`, ...facts(adapter) }),
      ...(adapter && { processor: processor() }),
    },
  };
}

/** The answer if an adapter or a whole package is missing; any other error is thrown again. */
function without(error) {
  if (error instanceof BadPackage) return error.answer(options.again);
  if (!(error instanceof NoAdapter)) throw error;
  return { outcome: "unavailable", reason: sentence(error.message), fix: error.fix };
}

/** The answer to run. */
async function run(request) {
  if (runtime.devices?.lost) {
    throw new Error(`the device was lost before this case: ${runtime.devices.lost}`);
  }
  programs?.clear();
  let answer;
  try {
    answer = { outcome: "ran", ...(await runCase(runtime, request)) };
  } catch (error) {
    if (error instanceof Rejected) {
      answer = { outcome: "rejected", ...error.answer };
      // An error that onnxruntime did not throw itself may have left the wasm in an inconsistent state.
      const whole = error.answer.code || (await runtime.works().catch(() => false));
      if (!whole) die(`${error.message} (and nothing works any more)`);
    } else if (error instanceof Unavailable) {
      answer = { outcome: "unavailable", reason: error.message };
    } else {
      await settle(); // an apparent error of this program may result from a lost device
      throw error;
    }
  }
  await settle();
  shaders?.built();
  return answer;
}

/** Wait until the device has done all its work; end if it was lost. */
async function settle() {
  await runtime.devices?.settle();
  if (runtime.devices?.lost) die(`the device was lost: ${runtime.devices.lost}`);
}

/** End as a crashing runtime does, since this process cannot continue: the next case gets a new one. */
function die(message) {
  console.error(message.trim().split("\n")[0]); // without a stack: the last line is quoted
  kill(pid, "SIGABRT"); // not abort(), which prints a stack of Node's own
  for (;;); // until the signal arrives
}

function device({ info }) {
  return [info.vendor, info.architecture, info.device, info.description].filter(Boolean).join(", ");
}

/** Properties that may explain why two adapters differ. */
function facts({ info, features, limits }) {
  const names = Object.keys(Object.getPrototypeOf(limits)).sort(); // a class of getters
  return {
    "adapter vendor": info.vendor,
    "adapter architecture": info.architecture,
    "adapter device": info.device,
    "adapter description": info.description,
    subgroups: `${info.subgroupMinSize} to ${info.subgroupMaxSize}`,
    features: [...features].sort().join(" "),
    limits: names.map((name) => `${name}=${limits[name]}`).join(" "),
  };
}

function sentence(text) {
  return text[0].toUpperCase() + text.slice(1);
}
