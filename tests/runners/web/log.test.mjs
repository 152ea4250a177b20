import assert from "node:assert/strict";
import { test } from "node:test";

import { logLine } from "../../../runners/onnxruntime_web/log.mjs";
import { Placements } from "../../../runners/onnxruntime_web/placement.mjs";

const GPU = "WebGpuExecutionProvider";

/** The placements that these messages tell of. */
function placements(...messages) {
  const read = new Placements();
  messages.forEach((message) => read.read(message));
  return read;
}

test("a line of onnxruntime's log has a severity and a message", () => {
  const place = "onnxruntime:, session_state.cc:1377 VerifyEachNodeIsAssignedToAnEp";
  const verbose = logLine(`2026-11-21 19:24:40.611656 [V:${place}] Node placements`);
  assert.deepEqual(verbose, { severity: "V", message: "Node placements" });
  const coloured = logLine(`\x1b[1;31m2026-11-21 19:24:40.6 [E:${place}] It failed\x1b[m`);
  assert.deepEqual(coloured, { severity: "E", message: "It failed" });
  assert.equal(logLine("Aborted(). Build with -sASSERTIONS for more info."), null);
});

test("all nodes on one provider", () => {
  const all = placements("Node placements", ` All nodes placed on [${GPU}]. Number of nodes: 1`);
  assert.equal(all.of(GPU), GPU);
  const cpu = " All nodes placed on [CPUExecutionProvider]. Number of nodes: 2";
  assert.equal(placements("Node placements", cpu).of(GPU), "CPUExecutionProvider");
});

test("of several placements, that of the operator counts, and of several operators the one elsewhere", () => {
  const add = [` Node(s) placed on [CPUExecutionProvider]. Number of nodes: 1`, "  Add (add)"];
  const gqa = [` Node(s) placed on [${GPU}]. Number of nodes: 1`, "  GroupQueryAttention (gqa)"];
  assert.equal(placements("Node placements", ...add, ...gqa).of(GPU), GPU);
  const stray = [...add, "  GroupQueryAttention (second)"];
  assert.equal(placements("Node placements", ...stray, ...gqa).of(GPU), "CPUExecutionProvider");
});

test("without the operator all nodes count, and without nodes it ran on the CPU", () => {
  const add = [` Node(s) placed on [CPUExecutionProvider]. Number of nodes: 1`, "  Add (add)"];
  const mul = [` Node(s) placed on [${GPU}]. Number of nodes: 1`, "  Mul (mul)"];
  assert.equal(placements("Node placements", ...mul, ...add).of(GPU), "CPUExecutionProvider");
  assert.equal(placements("Node placements").of(GPU), "CPUExecutionProvider");
});

test("a log without placements proves nothing", () => {
  assert.throws(() => placements(" All nodes placed on [X]. Number of nodes: 1").of(GPU));
});
