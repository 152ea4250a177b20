// What an adapter is called, and what it has: the same in Node and in a browser.

/** There is no such adapter: `message` is one sentence, `fix` a command or null. */
export class NoAdapter extends Error {
  constructor(message, fix = null) {
    super(message);
    this.fix = fix;
  }
}

/** The drivers that compute on the processor, and how to install each on Linux. */
export const SOFTWARE = {
  swiftshader: "apt-get install chromium libvulkan1",
  lavapipe: "gqa setup lavapipe",
};

/** What kernels of attention use if an adapter has it, and the name of that in WebGPU. */
const USED = { float16: "shader-f16", subgroups: "subgroups" };

/** What the adapter lacks of that: the protocol's name → the command that mends it, or null. */
export function lacking({ features }, fix) {
  const missing = Object.keys(USED).filter((name) => !features.has(USED[name]));
  return Object.fromEntries(missing.map((name) => [name, fix]));
}

/** Throws NoAdapter if `wanted` names another adapter than this one. */
export function checkAdapter({ info }, wanted) {
  const word = adapterWord(info);
  if (wanted === "gpu" && (info.isFallbackAdapter || word in SOFTWARE)) {
    throw new NoAdapter(`the only adapter is ${word}, which is no GPU.`);
  }
  if (wanted in SOFTWARE && word !== wanted) {
    throw new NoAdapter(`the adapter is ${word}, and not ${wanted}, which was asked for.`);
  }
}

/** A one-word name of the adapter: a software driver's name, or vendor and architecture of a GPU. */
export function adapterWord(info) {
  const text = `${info.architecture} ${info.device} ${info.description}`.toLowerCase();
  if (text.includes("llvmpipe")) return "lavapipe";
  if (text.includes("swiftshader")) return "swiftshader";
  const word = [info.vendor, info.architecture].filter(Boolean).join("-") || info.description;
  return word.toLowerCase().replace(/[^a-z0-9._]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 60) || "unnamed";
}

/** The device that it is on, in words. */
export function device({ info }) {
  return [info.vendor, info.architecture, info.device, info.description].filter(Boolean).join(", ");
}

/** Properties that may explain why two adapters differ. */
export function facts({ info, features, limits }) {
  const names = Object.keys(Object.getPrototypeOf(limits)).sort(); // a class of getters
  return {
    "adapter vendor": info.vendor,
    "adapter architecture": info.architecture,
    "adapter device": info.device,
    "adapter description": info.description,
    subgroups: `${info.subgroupMinSize} to ${info.subgroupMaxSize}`,
    features: [...features].sort().join(" "),
    limits: names.map((name) => `${name}=${limits[name]}`).join(" "),
  };
}
