import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { Shaders } from "../../../runners/onnxruntime_web/shaders.mjs";

const folder = join(mkdtempSync(join(tmpdir(), "shaders-")), "deeper");
assert.equal(Shaders.keepIn(folder), folder);

test("a shader counts as built once it has run, also for later processes of the same driver", () => {
  assert.equal(process.env.MESA_SHADER_CACHE_DIR, folder);
  const first = new Shaders(folder, "Mesa 25.0.7");
  assert.ok(first.mustBuild("one"));
  assert.ok(first.mustBuild("one"));
  first.built();
  assert.ok(!first.mustBuild("one"));
  assert.ok(first.mustBuild("two")); // and its process is killed
  const second = new Shaders(folder, "Mesa 25.0.7");
  assert.ok(!second.mustBuild("one"));
  assert.ok(second.mustBuild("two"));
  assert.ok(new Shaders(folder, "Mesa 25.1.0").mustBuild("one"));
});

test("without a folder shaders are built in each process", () => {
  const here = new Shaders(null, "SwiftShader");
  assert.ok(here.mustBuild("one"));
  here.built();
  assert.ok(!here.mustBuild("one"));
  assert.ok(new Shaders(null, "SwiftShader").mustBuild("one"));
});

test("if nothing can be cached the case continues", () => {
  const file = join(folder, "file");
  writeFileSync(file, "");
  assert.equal(Shaders.keepIn(join(file, "below")), null);
  assert.equal(process.env.MESA_SHADER_CACHE_DIR, folder);
  const cleared = join(folder, "cleared");
  const shaders = new Shaders(Shaders.keepIn(cleared), "Mesa 25.0.7");
  assert.ok(shaders.mustBuild("one"));
  rmSync(cleared, { recursive: true });
  shaders.built();
  assert.ok(!shaders.mustBuild("one"));
});
