// Run cases on onnxruntime-web: node runner.mjs --ep webgpu --modules FOLDER [--adapter NAME]
//
// FOLDER has node_modules with onnxruntime-web, webgpu (Dawn) and protobufjs; --shaders names a folder
// in which built shaders are cached (Mesa's drivers can do that), and --again a command that installs
// the packages anew. Requests come on standard input; answers go to the descriptor --answers,
// standard output by default. launch.py starts this program so that only answers reach that descriptor.

import { argv, exit, kill, pid, stdin, version as node } from "node:process";
import { parseArgs } from "node:util";
import { setFlagsFromString } from "node:v8";

import { findAdapter } from "./adapter.mjs";
import { device } from "./adapter_facts.mjs";
import { installDawn, watchDevices } from "./device.mjs";
import { Engine, withoutAdapter } from "./engine.mjs";
import { Trapped } from "./execution.mjs";
import { takeOutput } from "./log.mjs";
import { BadPackage, Packages } from "./packages.mjs";
import { Answers, ownFault, processor, serve } from "./serving.mjs";
import { Shaders } from "./shaders.mjs";
import { TARGETS } from "./targets.mjs";

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
let engine = null;
let shaders = null;

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
  const wanted = options.adapter ?? null;
  let devices = null;
  let lacks = {};
  let dawn = {};
  if (target.gpu) {
    const folder = options.shaders ? Shaders.keepIn(options.shaders) : null;
    const module = await packages.import("webgpu");
    const found = await findAdapter(module.create, wanted);
    ({ lacks } = found);
    dawn = { dawn: `webgpu ${packages.version("webgpu")}` };
    // Of the known drivers, Mesa's cache the shaders that they build, in a folder that can be set.
    const kept = found.adapter.info.description.includes("Mesa") ? folder : null;
    shaders = new Shaders(kept, `${device(found.adapter)} ${packages.version("webgpu")}`);
    installDawn(module, found.gpu);
    devices = watchDevices((text) => {
      if (shaders.mustBuild(text)) answers.compiling();
    });
  }
  const ort = await packages.import("onnxruntime-web", target.entry);
  engine = new Engine({ ort, protobuf: packages.require("protobufjs"), listen, target, devices, die });
  return engine.describe({
    version: packages.version("onnxruntime-web"),
    wanted,
    lacks,
    versions: { node, v8: process.versions.v8, ...dawn },
    processor: processor(),
  });
}

/** The answer if an adapter or a whole package is missing; any other error is thrown again. */
function without(error) {
  return error instanceof BadPackage ? error.answer(options.again) : withoutAdapter(error);
}

/** The answer to run. */
async function run(request) {
  const answer = await engine.run(request);
  shaders?.built();
  return answer;
}

/** End as a crashing runtime does, since this process cannot continue: the next case gets a new one. */
function die(message) {
  console.error(message.trim().split("\n")[0]); // without a stack: the last line is quoted
  kill(pid, "SIGABRT"); // not abort(), which prints a stack of Node's own
  for (;;); // until the signal arrives
}
