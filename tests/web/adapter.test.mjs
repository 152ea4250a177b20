import assert from "node:assert/strict";
import { test } from "node:test";

import { NoAdapter, adapterWord, checkAdapter, findAdapter } from "../../runners/onnxruntime_web/adapter.mjs";

const SWIFTSHADER = { vendor: "google", architecture: "swiftshader", device: "", description: "SwiftShader Device" };
const H200 = { vendor: "nvidia", architecture: "hopper", device: "", description: "NVIDIA H200" };

/** A `create` of Dawn's whose adapter has this info. */
const dawn = (info) => () => ({ requestAdapter: async () => info && { info } });

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
