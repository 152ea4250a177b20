// Run cases on onnxruntime-web in Chromium: node browser_runner.mjs --ep webgpu --modules FOLDER --browser PATH
//
// The other options are those of runner.mjs. The browser, which has no window, opens a page that this program serves
// to it alone. The page (browser/page.mjs) has the modules of the runner in Node; it gets requests as events.

import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createReadStream, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { basename, extname, join, relative } from "node:path";
import { argv, env, exit, kill, pid, stdin } from "node:process";
import { buffer, json, text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { BadPackage, Packages } from "./packages.mjs";
import { Answers, ownFault, processor, serve } from "./serving.mjs";
import { TARGETS } from "./targets.mjs";

const FLAGS = [
  "--headless",
  "--no-sandbox", // root and containers have none; it opens only our page
  "--js-flags=--liftoff-only", // as in Node
  "--enable-unsafe-webgpu", // the adapter's name, and WebGPU on Linux
  "--disable-gpu-watchdog", // a software GPU can compile a shader for minutes
  "--disable-hang-monitor",
  "--disable-breakpad",
  "--disable-crash-reporter",
  // It asks no host for anything.
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-quic",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];
const OWN_FOLDERS = ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "TMPDIR"]; // where it leaves files, too
const TYPES = { ".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm" };

const { values: options } = parseArgs({
  args: argv.slice(2),
  options: {
    ep: { type: "string" },
    modules: { type: "string" },
    browser: { type: "string" },
    adapter: { type: "string" },
    shaders: { type: "string" }, // a browser keeps none
    again: { type: "string" },
    opening: { type: "string", default: "90" }, // the most seconds until the page asks for requests
    answers: { type: "string", default: "1" },
  },
});
const answers = new Answers(Number(options.answers));
const secret = randomUUID();
const folders = { runner: fileURLToPath(new URL(".", import.meta.url)), modules: join(options.modules, "node_modules") };
// The browser's socket is in it, and the path of a socket has at most 107 bytes.
const parent = Buffer.byteLength(tmpdir()) > 40 && existsSync("/tmp") ? "/tmp" : tmpdir();
const profile = mkdtempSync(join(parent, "gqa-"));
// However this process ends, this shell ends the browser and removes what it wrote; its last processes may still write.
const script = 'read -r browser && read -r _; kill -9 $browser; for _ in 1 2 3 4; do rm -rf -- "$1"; sleep 1; done';
const remover = spawn("/bin/sh", ["-c", script, "sh", profile], { detached: true, stdio: ["pipe", "ignore", "ignore"] });
remover.unref();

let description = null; // a promise of the answer, once it was asked for
let browser = null;
let events = null; // the answer to the page's request for events; null until it is there
let answered = null; // takes the answer to the request in progress
let out = null; // the folder of its outputs

const server = createServer((request, response) => {
  respond(request, response).catch((error) => fail(`browser_runner.mjs: ${ownFault(error)}`));
});

try {
  await serve(stdin, answers, { describe: () => (description ??= describe().catch(without)), run });
} catch (error) {
  fail(`browser_runner.mjs: ${ownFault(error)}`);
}
if (browser) {
  end();
  await once(browser, "close"); // its processes are gone, so nothing is written any more
}
rmSync(profile, { recursive: true, force: true });
remover.kill();
exit(0);

/** The answer to describe; starts the browser. */
async function describe() {
  const packages = new Packages(options.modules);
  const entry = relative(folders.modules, packages.file("onnxruntime-web", TARGETS[options.ep].entry));
  if (![undefined, "swiftshader", "gpu"].includes(options.adapter)) {
    return { outcome: "unavailable", reason: "A browser takes no Vulkan driver.", fix: "use --adapter swiftshader" };
  }
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const page = new URLSearchParams({
    ep: options.ep,
    entry: `/${secret}/modules/${entry}`,
    version: packages.version("onnxruntime-web"),
    processor: processor(),
    ...(options.adapter && { adapter: options.adapter }),
  });
  const adapter = options.adapter === "swiftshader" ? "--use-webgpu-adapter=swiftshader" : "--enable-features=Vulkan";
  const address = `http://127.0.0.1:${server.address().port}/${secret}/runner/browser/page.html?${page}`;
  browser = spawn(options.browser, [...FLAGS, adapter, `--user-data-dir=${profile}`, address], {
    env: { ...env, ...Object.fromEntries(OWN_FOLDERS.map((name) => [name, profile])) },
    stdio: ["ignore", "ignore", "pipe"],
  });
  remover.stdin.write(`${browser.pid}\n`);
  const said = text(browser.stderr);
  const starts = new Promise((resolve) => (answered = resolve));
  browser.on("error", ({ message }) => answered({ ended: message }));
  browser.on("exit", async (code, signal) => {
    const without = `it ended with ${signal ?? `status ${code}`} and said nothing`;
    answered({ ended: cause(await said) || without });
  });
  const late = () => answered({ ended: `it did not open the page within ${options.opening} s` });
  const patience = setTimeout(late, 1000 * options.opening);
  const { ended } = await starts;
  clearTimeout(patience);
  if (ended !== undefined) {
    return { outcome: "unavailable", reason: `${options.browser} does not start: ${ended.replace(/\.$/, "")}.`, fix: null };
  }
  browser.removeAllListeners("exit").on("exit", () => die("the browser ended"));
  return ask({ cmd: "describe" });
}

/** The line of the browser's output that says why it ended: the fatal one, or else the last one. */
function cause(output) {
  const lines = output.trim().split("\n");
  return lines.find((line) => line.includes(":FATAL:")) ?? lines.at(-1);
}

/** The answer if a package cannot be loaded; any other error is thrown again. */
function without(error) {
  if (error instanceof BadPackage) return error.answer(options.again);
  throw error;
}

/** The answer to run. */
function run(request) {
  folders.bundle = request.bundle;
  out = request.out;
  return ask(request);
}

/** What the page answers to a request. */
function ask(request) {
  events.write(`data: ${JSON.stringify(request)}\n\n`);
  return new Promise((resolve) => (answered = resolve));
}

/** Respond to a request of the page. */
async function respond(request, response) {
  const [, given, what, ...rest] = decodeURIComponent(request.url.split("?")[0]).split("/");
  if (given !== secret || rest.includes("..")) {
    response.writeHead(404).end();
  } else if (what === "requests") {
    response.writeHead(200, { "Content-Type": "text/event-stream" }).flushHeaders();
    events = response.on("close", () => die("the page crashed"));
    answered({});
  } else if (request.method === "GET") {
    const file = createReadStream(join(folders[what], ...rest));
    // Only an isolated page has a clock that is fine enough for a small call: steps of 5 µs, not 100.
    response.setHeader("Cross-Origin-Opener-Policy", "same-origin");
    response.setHeader("Cross-Origin-Embedder-Policy", "require-corp");
    response.setHeader("Content-Type", TYPES[extname(request.url.split("?")[0])] ?? "application/octet-stream");
    file.on("error", () => response.writeHead(404).end()).pipe(response);
  } else if (request.method === "PUT") {
    writeFileSync(join(out, basename(rest.join("/"))), await buffer(request));
    response.end();
  } else {
    response.end();
    if (what === "log") console.error((await text(request)).trimEnd());
    else if (what === "compiling") answers.compiling();
    else if (what === "answer") answered(await json(request));
    else if (what === "died") die(await json(request));
    else fail(`browser_runner.mjs: ${await json(request)}`);
  }
}

/** End as a crashing runtime does: the next case gets a new browser. */
function die(message) {
  console.error(message.split("\n")[0]);
  end();
  kill(pid, "SIGABRT");
  for (;;);
}

/** End for a fault of this program. */
function fail(message) {
  console.error(message);
  end();
  exit(1);
}

/** End the browser; the shell removes what it wrote. */
function end() {
  events?.removeAllListeners("close");
  browser?.removeAllListeners("exit").kill("SIGKILL");
}
