// Runs cases in a page: it takes requests from browser_runner.mjs, as events, and sends it the answers.

import { checkAdapter, lacking, NoAdapter } from "../adapter_facts.mjs";
import { watchDevices } from "../device.mjs";
import { Engine, withoutAdapter } from "../engine.mjs";
import { Trapped } from "../execution.mjs";
import { takeOutput } from "../log.mjs";
import { TARGETS } from "../targets.mjs";
import { fetchFiles, sendFiles } from "./host.mjs";

const { ep, adapter = null, entry, version, processor } = Object.fromEntries(new URLSearchParams(location.search));
const target = TARGETS[ep];
const send = (what, value) => fetch(`../../${what}`, { method: "POST", body: JSON.stringify(value) });
const listen = takeOutput();
let engine = null;

new EventSource("../../requests").onmessage = async ({ data }) => {
  const request = JSON.parse(data);
  try {
    const answer = request.cmd === "describe" ? await describe().catch(withoutAdapter) : await run(request);
    await send("answer", answer);
  } catch (error) {
    await send(error instanceof Trapped ? "died" : "fault", `${error.name}: ${error.message}`);
  }
};

async function describe() {
  let devices = null;
  let lacks = {};
  if (target.gpu) {
    const found = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
    if (!found) throw new NoAdapter("the browser finds no WebGPU adapter.", "use --adapter swiftshader");
    checkAdapter(found, adapter);
    lacks = lacking(found, null);
    const seen = new Set();
    devices = watchDevices((shader) => {
      if (!seen.has(shader)) send("compiling");
      seen.add(shader);
    });
  }
  const ort = await import(entry);
  engine = new Engine({ ort, protobuf, listen, target, devices, die });
  const { fullVersionList } = await navigator.userAgentData.getHighEntropyValues(["fullVersionList"]);
  const { version: release } = fullVersionList.find(({ brand }) => brand === "Chromium");
  const browser = `Chromium ${release}`;
  const answer = await engine.describe({ version, wanted: adapter, lacks, versions: { browser }, processor });
  return answer.device ? { ...answer, device: `${browser}, ${answer.device}` } : answer;
}

async function run(request) {
  const files = request.steps.flatMap((step) => Object.values(step.files));
  await fetchFiles(["model.onnx", ...files].map((name) => `bundle/${name}`));
  const answer = await engine.run({ ...request, bundle: "bundle", out: "out" });
  await sendFiles();
  return answer;
}

function die(message) {
  throw new Trapped(message);
}
