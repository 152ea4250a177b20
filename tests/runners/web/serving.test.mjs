import assert from "node:assert/strict";
import { closeSync, openSync, readFileSync } from "node:fs";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { test } from "node:test";

import { Answers, serve } from "../../../runners/onnxruntime_web/serving.mjs";

const folder = mkdtempSync(join(tmpdir(), "serving-"));

/** The lines that `serve` answers to these requests. */
async function served(requests, handlers) {
  const path = join(folder, `${Math.random()}`);
  const descriptor = openSync(path, "w");
  const answers = new Answers(descriptor);
  const input = Readable.from(requests.map((request) => `${JSON.stringify(request)}\n`));
  try {
    await serve(input, answers, handlers(answers));
  } finally {
    closeSync(descriptor);
  }
  return readFileSync(path, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
}

test("compiling is sent once, and only while a case is running", async () => {
  const lines = await served(
    [{ id: 1, cmd: "describe" }, { id: 2, cmd: "run" }, { id: 3, cmd: "run" }],
    (answers) => ({
      describe: async () => (answers.compiling(), { outcome: "described" }),
      run: async ({ id }) => {
        if (id === 2) [1, 2].forEach(() => answers.compiling());
        return { outcome: "ran" };
      },
    }),
  );
  assert.deepEqual(lines, [
    { id: 1, outcome: "described" },
    { id: 2, outcome: "compiling" },
    { id: 2, outcome: "ran" },
    { id: 3, outcome: "ran" },
  ]);
});

test("an unknown command ends the loop", async () => {
  await assert.rejects(served([{ id: 1, cmd: "fly" }], () => ({})), { message: /"fly"/ });
});
