import assert from "node:assert/strict";
import { test } from "node:test";

import { findAdapter, softwareDriver } from "../../../runners/onnxruntime_web/adapter.mjs";
import { NoAdapter, adapterWord, checkAdapter } from "../../../runners/onnxruntime_web/adapter_facts.mjs";

const SWIFTSHADER = { vendor: "google", architecture: "swiftshader", device: "", description: "SwiftShader Device" };
const H200 = { vendor: "nvidia", architecture: "hopper", device: "", description: "NVIDIA H200" };

const LAVAPIPE = { vendor: "mesa", architecture: "software", device: "", description: "llvmpipe: Mesa 25" };
const EVERY = ["shader-f16", "subgroups"];

/** A `create` of Dawn's whose adapter has this info and these features. */
const dawn = (info, features = EVERY) => () => ({
  requestAdapter: async () => info && { info, features: new Set(features) },
});

/** A `create` of Dawn's that finds lavapipe with its driver, if it works, and else SwiftShader. */
const bySelection = (works) => () => {
  const isLavapipe = /lvp_icd/.test(process.env.VK_DRIVER_FILES);
  if (isLavapipe && !works) return dawn(null)();
  return isLavapipe ? dawn(LAVAPIPE)() : dawn(SWIFTSHADER, ["subgroups"])();
};

/** What `findAdapter` finds with these variables, and the driver that they name afterwards. */
async function foundWith(create, wanted, variables = {}) {
  const names = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
  const before = names.map((name) => process.env[name]);
  for (const name of names) delete process.env[name];
  Object.assign(process.env, variables);
  try {
    const { adapter, lacks } = await findAdapter(create, wanted);
    return [adapterWord(adapter.info), lacks, process.env.VK_DRIVER_FILES];
  } finally {
    for (const [at, name] of names.entries()) {
      if (before[at] === undefined) delete process.env[name];
      else process.env[name] = before[at];
    }
  }
}

const onLinux = { skip: process.platform !== "linux" };
const withLavapipe = { skip: softwareDriver("lavapipe") === null && "needs lavapipe: gqa setup lavapipe" };

test("lavapipe is taken before SwiftShader", withLavapipe, async () => {
  assert.deepEqual(await foundWith(bySelection(true), null), ["lavapipe", {}, softwareDriver("lavapipe")]);
  assert.deepEqual(await foundWith(bySelection(false), null), ["swiftshader", { float16: "gqa setup lavapipe" }, undefined]);
});

test("a GPU is taken before lavapipe, and a driver that the environment names", withLavapipe, async () => {
  const use = { float16: "use --adapter lavapipe" };
  assert.deepEqual(await foundWith(dawn(H200, ["subgroups"]), null), ["nvidia-hopper", use, undefined]);
  const named = { VK_ICD_FILENAMES: "/a/driver.json" };
  assert.deepEqual(await foundWith(bySelection(true), null, named), ["swiftshader", use, undefined]);
});

test("an adapter that lacks nothing needs no command", onLinux, async () => {
  assert.deepEqual(await foundWith(dawn(H200), "gpu"), ["nvidia-hopper", {}, undefined]);
  assert.deepEqual(await foundWith(dawn(LAVAPIPE, ["shader-f16"]), null), ["lavapipe", { subgroups: null }, undefined]);
});

test("a driver that the environment names and that has no adapter is named", onLinux, async () => {
  await assert.rejects(foundWith(dawn(null), null, { VK_DRIVER_FILES: "/a/driver.json" }), {
    message: /VK_DRIVER_FILES/,
    fix: "unset VK_DRIVER_FILES VK_ICD_FILENAMES",
  });
  await assert.rejects(foundWith(dawn(null), null), { fix: "gqa setup lavapipe" });
});

test("an adapter's name can be used in a target's name", () => {
  assert.equal(adapterWord(SWIFTSHADER), "swiftshader");
  assert.equal(adapterWord({ vendor: "mesa", architecture: "software", device: "", description: "llvmpipe: Mesa 25" }), "lavapipe");
  assert.equal(adapterWord(H200), "nvidia-hopper");
  assert.equal(adapterWord({ vendor: "", architecture: "", device: "", description: "(R) Übergraphics 5" }), "r-bergraphics-5");
  assert.equal(adapterWord({ vendor: "", architecture: "", device: "", description: "" }), "unnamed");
});

test("a requested GPU is a GPU", async () => {
  const { adapter } = await findAdapter(dawn(H200), "gpu");
  assert.equal(adapter.info, H200);
  await assert.rejects(findAdapter(dawn(SWIFTSHADER), "gpu"), { message: /swiftshader, which is no GPU/ });
});

test("an adapter other than the requested one is rejected", () => {
  assert.throws(() => checkAdapter({ info: H200 }, "lavapipe"), {
    name: "Error",
    message: "the adapter is nvidia-hopper, and not lavapipe, which was asked for.",
  });
  checkAdapter({ info: SWIFTSHADER }, "swiftshader");
  checkAdapter({ info: H200 }, "/a/driver.json");
  checkAdapter({ info: H200 }, null);
});

test("without an adapter the message names the requirement and the command", async () => {
  await assert.rejects(findAdapter(dawn(null), "gpu"), (error) => error instanceof NoAdapter && /Vulkan/.test(error.message));
});

test("a driver named by the user is used or nothing", { skip: process.platform !== "linux" }, async () => {
  await assert.rejects(findAdapter(dawn(H200), "/nowhere/icd.json"), { message: /\/nowhere\/icd\.json/ });
});
