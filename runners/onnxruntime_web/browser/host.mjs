// What the runner's modules use of Node, in a page: files, which browser_runner.mjs has, and output.

export const { performance } = globalThis;

const { debug } = console;
const files = new Map(); // path → bytes
const written = new Map();

/** Fetch these files, for `readFileSync`, in place of those of the case before. */
export async function fetchFiles(paths) {
  files.clear();
  for (const path of paths) {
    const answer = await fetch(`../../${path}`);
    if (answer.ok) files.set(path, new Uint8Array(await answer.arrayBuffer()));
  }
}

/** Send the files that `writeFileSync` wrote. */
export async function sendFiles() {
  for (const [path, body] of written) await fetch(`../../${path}`, { method: "PUT", body });
  written.clear();
}

export function readFileSync(path) {
  if (!files.has(path)) throw new Error("no such file");
  return files.get(path);
}

export function writeFileSync(path, bytes) {
  written.set(path, bytes.slice());
}

export const format = (...parts) => parts.map(String).join(" ");

/** Output goes to the standard error of the runner. */
export default {
  writeSync: (_, text) => {
    debug(text);
    navigator.sendBeacon("../../log", text);
  },
};
