// The output of the wasm, onnxruntime and Dawn: it goes to standard error, never among the answers,
// and of onnxruntime's own log only errors do. Its verbose lines say where nodes are placed.

import fs from "node:fs";
import { format } from "node:util";

const STDOUT = 1;
const STDERR = 2;

/** `2026-11-21 19:24:39.2 [V:onnxruntime:, session_state.cc:1380 Function] message`, maybe with colours. */
const ORT_LINE = /^(?:\x1b\[[\d;]*m)*\S+ \S+ \[([VIWEF]):onnxruntime:[^\]]*\] ?(.*)$/s;

/** Splits onnxruntime's log lines into severity and message; null for any other text. */
export function logLine(text) {
  const match = ORT_LINE.exec(text);
  return match && { severity: match[1], message: match[2].replace(/\x1b\[[\d;]*m/g, "") };
}

/**
 * Intercepts everything that is printed. Must be called before onnxruntime is imported. Returns
 * `listen(listener)`: from now on `listener` gets the message of each line of onnxruntime's log,
 * or nothing if it is null.
 */
export function takeOutput() {
  let listener = null;
  const { writeSync } = fs;
  const take = (text) => {
    const line = logLine(text);
    if (line && listener) listener(line.message);
    if (!line || "EF".includes(line.severity)) writeSync(STDERR, text.endsWith("\n") ? text : `${text}\n`);
  };
  // Emscripten's code prints with this function in Node, and looks it up for each line.
  fs.writeSync = (descriptor, data, ...rest) =>
    (descriptor === STDOUT || descriptor === STDERR) && typeof data === "string"
      ? (take(data), data.length)
      : writeSync(descriptor, data, ...rest);
  for (const name of ["log", "info", "debug", "warn", "error", "trace"]) {
    console[name] = (...parts) => take(format(...parts));
  }
  return (next) => {
    listener = next;
  };
}
