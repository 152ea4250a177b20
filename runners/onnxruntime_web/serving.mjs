// The loop of requests and answers: JSON lines (runners/README.md).

import { writeSync } from "node:fs";
import { availableParallelism, cpus } from "node:os";
import { createInterface } from "node:readline";

/** Writes answers, whole lines, to a descriptor that nothing else writes to. */
export class Answers {
  #descriptor;
  #compiling = null;

  constructor(descriptor) {
    this.#descriptor = descriptor;
  }

  /** Write one message. */
  send(message) {
    let rest = Buffer.from(`${JSON.stringify(message)}\n`);
    while (rest.length) rest = rest.subarray(writeSync(this.#descriptor, rest));
  }

  /** From now on a request is in progress: `compiling` is sent once if it builds a shader. */
  begin(id) {
    this.#compiling = id;
  }

  /** A shader is about to be built: the request may take longer. */
  compiling() {
    if (this.#compiling === null) return;
    this.send({ id: this.#compiling, outcome: "compiling" });
    this.#compiling = null;
  }

  /** Answer the request. */
  answer(id, answer) {
    this.#compiling = null;
    this.send({ id, ...answer });
  }
}

/** Answer each request with the result of `describe` or `run`, until there are no more. */
export async function serve(input, answers, { describe, run }) {
  for await (const line of createInterface({ input, crlfDelay: Infinity })) {
    const request = JSON.parse(line);
    if (request.cmd === "describe") {
      answers.answer(request.id, await describe());
    } else if (request.cmd === "run") {
      answers.begin(request.id);
      answers.answer(request.id, await run(request));
    } else {
      throw new Error(`unknown command ${JSON.stringify(request.cmd)}`);
    }
  }
}

/** The line about an error of the runner itself. */
export function ownFault({ name, message, stack }) {
  const place = /[\w.]+\.mjs:\d+/.exec(stack ?? "");
  return `${name}: ${message}${place ? ` (${place[0]})` : ""}`;
}

/** The processor's model, and the number of cores that this process may use. */
export function processor() {
  return `${cpus()[0]?.model ?? process.arch}, ${availableParallelism()} cores`;
}
