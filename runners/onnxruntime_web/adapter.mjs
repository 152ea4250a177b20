// Finds the requested adapter, and creates a `navigator.gpu` that has it. On Linux that is a choice of
// Vulkan drivers, each described by a small JSON file (ICD) that the loader reads.

import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";

import { NoAdapter, SOFTWARE, adapterWord, checkAdapter, lacking } from "./adapter_facts.mjs";

/** Folders in which the loader searches for drivers. */
const DRIVERS = ["/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"];

/** The variables that name the drivers for the loader. */
const VARIABLES = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/** Folders in which browsers keep the SwiftShader that they ship. */
const BROWSERS = [
  "/usr/lib/chromium",
  "/usr/lib/chromium-browser",
  "/usr/lib64/chromium-browser",
  "/opt/google/chrome",
];

/** The ICD file of a software driver; null if there is none. */
export function softwareDriver(name) {
  const places =
    name === "swiftshader"
      ? [...BROWSERS, ...DRIVERS].map((folder) => [folder, /^vk_swiftshader_icd\.json$/])
      : DRIVERS.map((folder) => [folder, /^lvp_icd.*\.json$/]);
  for (const [folder, pattern] of places) {
    const file = existsSync(folder) && readdirSync(folder).find((each) => pattern.test(each));
    if (file) return join(folder, file);
  }
  return null;
}

/**
 * The drivers to try, in this order: files, or null for what the system or the caller's environment
 * has. `wanted` is "swiftshader", "lavapipe", "gpu", an ICD file, or null for whatever there is; `named`
 * is whether the environment names drivers, which are then the only ones.
 */
export function drivers(wanted, named = false) {
  if (process.platform !== "linux") {
    if (wanted?.endsWith(".json")) throw new NoAdapter("a Vulkan driver can be chosen on Linux only.");
    return [null];
  }
  if (wanted === "gpu") return [null];
  if (wanted in SOFTWARE) {
    const file = softwareDriver(wanted);
    if (!file) throw new NoAdapter(`${wanted} is not installed.`, SOFTWARE[wanted]);
    return [file];
  }
  if (wanted !== null) {
    if (!existsSync(wanted)) throw new NoAdapter(`the driver ${wanted} does not exist.`);
    return [wanted];
  }
  if (named) return [null];
  return [null, ...["lavapipe", "swiftshader"].map(softwareDriver).filter(Boolean)];
}

/**
 * `{ gpu, adapter, lacks, … }`: the object that belongs on `navigator`, the adapter that it gives, and
 * what that lacks, each with the command that mends it, or null. `create` is Dawn's. A software
 * adapter without float16 is taken only if no other driver has an adapter. Afterwards, the environment names
 * the drivers with which it was found. Throws NoAdapter.
 */
export async function findAdapter(create, wanted) {
  const onLinux = process.platform === "linux";
  const named = wanted === null && VARIABLES.some((name) => process.env[name]);
  let found = null;
  for (const driver of drivers(wanted, named)) {
    if (driver) for (const name of VARIABLES) process.env[name] = driver;
    const gpu = create([]);
    const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) continue;
    const word = adapterWord(adapter.info);
    const isFree = wanted === null && !named && word in SOFTWARE;
    const other = isFree ? SOFTWARE.lavapipe : "use --adapter lavapipe";
    const fix = onLinux && word !== "lavapipe" ? other : null;
    const lacks = lacking(adapter, fix);
    const poor = word in SOFTWARE && "float16" in lacks;
    if (!poor || !found) found = { gpu, adapter, lacks, files: VARIABLES.map((name) => process.env[name]) };
    if (!poor) break;
  }
  if (found) {
    for (const [at, name] of VARIABLES.entries()) {
      if (found.files[at] === undefined) delete process.env[name];
      else process.env[name] = found.files[at];
    }
    checkAdapter(found.adapter, wanted);
    return found;
  }
  const of = wanted && wanted !== "gpu" ? ` with ${wanted}` : "";
  if (named) {
    throw new NoAdapter(
      "Dawn finds no WebGPU adapter with the drivers that VK_DRIVER_FILES or VK_ICD_FILENAMES names.",
      "unset VK_DRIVER_FILES VK_ICD_FILENAMES",
    );
  }
  throw new NoAdapter(
    `Dawn finds no WebGPU adapter${of} (a Vulkan driver and libvulkan.so.1 are needed).`,
    onLinux && wanted !== "gpu" ? (SOFTWARE[wanted] ?? SOFTWARE.lavapipe) : null,
  );
}
