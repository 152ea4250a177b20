// A fake onnxruntime-web that fails as the environment variable FAULT says. It supports one model: y
// is x, unchanged.

import fs from "node:fs";

const { FAULT } = process.env;

export const env = { wasm: {}, webgpu: {} };

export class Tensor {
  constructor(type, data, dims) {
    Object.assign(this, { type, data, dims, location: "cpu" });
  }

  async getData() {
    return this.data;
  }
}

/** A line of onnxruntime's log, as its wasm prints it. */
function log(severity, message) {
  fs.writeSync(1, `2026-11-21 12:00:00.1 [${severity}:onnxruntime:, fake.cc:1 Fake] ${message}\n`);
}

let sessions = 0;
let broken = false;

export class InferenceSession {
  outputNames = ["y"];

  static async create() {
    // The first one is the runner's own, at its start.
    const first = sessions++ === 0;
    if (FAULT === "load" && !first) throw new Error("Can't create a session. ERROR_CODE: 9, no");
    log("I", "Initializing session.");
    if (FAULT !== "silent") {
      log("V", "Node placements");
      log("V", " All nodes placed on [CPUExecutionProvider]. Number of nodes: 1");
    }
    const session = new InferenceSession();
    session.first = first;
    return session;
  }

  async run(feeds) {
    if (this.first) return { sum: { data: [broken ? 6 : 5] } };
    const faults = {
      hang: () => {
        for (;;);
      },
      trap: () => {
        throw new WebAssembly.RuntimeError("memory access out of bounds");
      },
      refuse: () => {
        throw new Error("failed to call OrtRun(). ERROR_CODE: 2, ERROR_MESSAGE: no such head");
      },
      memory: () => {
        throw new RangeError("Array buffer allocation failed");
      },
      number: () => {
        throw 123456; // a C++ exception that nobody turned into words
      },
      breaks: () => {
        broken = true;
        throw new TypeError("Required member is undefined");
      },
      prints: () => {
        console.log("printed");
        fs.writeSync(1, "printed by wasm\n");
        process.stdout.write("printed by node\n");
        log("W", "a warning");
        log("E", "an error");
      },
      exits: () => process.exit(0),
    };
    faults[FAULT]?.();
    return { y: feeds.x };
  }

  async release() {}
}
