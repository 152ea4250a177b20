import assert from "node:assert/strict";
import { test } from "node:test";

import { findPrograms } from "../../../runners/onnxruntime_web/programs.mjs";

test("the map of compiled shaders is the one that receives a pipeline", async () => {
  const { set } = Map.prototype;
  const programs = new Map();
  const found = await findPrograms(async () => {
    new Map().set("a", { shape: [1] }).set("b", null);
    programs.set("key", { computePipeline: {} });
  });
  assert.equal(found, programs);
  assert.deepEqual([...programs.keys()], ["key"]);
  assert.equal(Map.prototype.set, set);
});

test("no map is found if no shader is cached, and an error leaves Map unchanged", async () => {
  const { set } = Map.prototype;
  assert.equal(await findPrograms(async () => {}), null);
  await assert.rejects(findPrograms(() => Promise.reject(new Error("no"))), /no/);
  assert.equal(Map.prototype.set, set);
});
