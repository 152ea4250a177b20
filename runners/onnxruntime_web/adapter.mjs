// Finds the requested adapter, and creates a `navigator.gpu` that has it. On Linux that is a choice of
// Vulkan drivers, each described by a small JSON file (ICD) that the loader reads.

import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";

/** Folders in which the loader searches for drivers. */
const DRIVERS = ["/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"];

/** Folders in which browsers keep the SwiftShader that they ship. */
const BROWSERS = [
  "/usr/lib/chromium",
  "/usr/lib/chromium-browser",
  "/usr/lib64/chromium-browser",
  "/opt/google/chrome",
];

/** There is no such adapter: `message` is one sentence, `fix` a command or null. */
export class NoAdapter extends Error {
  constructor(message, fix = null) {
    super(message);
    this.fix = fix;
  }
}

/** The drivers that compute on the processor, and how to install each. */
const ENOUGH = {
  swiftshader: "apt-get install chromium libvulkan1",
  lavapipe: "apt-get install mesa-vulkan-drivers libvulkan1 (Mesa 25 or later)",
};

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
 * has. `wanted` is "swiftshader", "lavapipe", "gpu", an ICD file, or null for whatever there is.
 */
export function drivers(wanted) {
  if (process.platform !== "linux") {
    if (wanted?.endsWith(".json")) throw new NoAdapter("a Vulkan driver can be chosen on Linux alone.");
    return [null];
  }
  if (wanted === "gpu") return [null];
  if (wanted === "swiftshader" || wanted === "lavapipe") {
    const file = softwareDriver(wanted);
    if (!file) throw new NoAdapter(`there is no ${wanted} here.`, ENOUGH[wanted]);
    return [file];
  }
  if (wanted !== null) {
    if (!existsSync(wanted)) throw new NoAdapter(`the driver ${wanted} does not exist.`);
    return [wanted];
  }
  const brought = softwareDriver("swiftshader");
  return brought ? [null, brought] : [null];
}

/**
 * `{ gpu, adapter }`: the object that belongs on `navigator`, and the adapter that it gives.
 * `create` is Dawn's. Throws NoAdapter.
 */
export async function findAdapter(create, wanted) {
  for (const driver of drivers(wanted)) {
    if (driver) process.env.VK_DRIVER_FILES = process.env.VK_ICD_FILENAMES = driver;
    const gpu = create([]);
    const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) continue;
    checkAdapter(adapter, wanted);
    return { gpu, adapter };
  }
  const of = wanted && wanted !== "gpu" ? ` with ${wanted}` : "";
  throw new NoAdapter(
    `Dawn finds no WebGPU adapter${of} (a Vulkan driver and libvulkan.so.1 are needed).`,
    ENOUGH[wanted] ?? ENOUGH.swiftshader,
  );
}

/** Throws NoAdapter if `wanted` names another adapter than this one. */
export function checkAdapter({ info }, wanted) {
  const word = adapterWord(info);
  if (wanted === "gpu" && (info.isFallbackAdapter || word in ENOUGH)) {
    throw new NoAdapter(`the only adapter is ${word}, which is no GPU.`);
  }
  if (wanted in ENOUGH && word !== wanted) {
    throw new NoAdapter(`the adapter is ${word}, and not ${wanted}, which was asked for.`);
  }
}

/** A one-word name of the adapter: a software driver's name, or vendor and architecture of a GPU. */
export function adapterWord(info) {
  const text = `${info.device} ${info.description}`.toLowerCase();
  if (text.includes("llvmpipe")) return "lavapipe";
  if (text.includes("swiftshader")) return "swiftshader";
  const word = [info.vendor, info.architecture].filter(Boolean).join("-") || info.description;
  return word.toLowerCase().replace(/[^a-z0-9._]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 60) || "unnamed";
}
