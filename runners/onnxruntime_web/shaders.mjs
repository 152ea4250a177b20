// Records which shaders the driver has built before. Building one takes seconds on a software driver,
// and cannot be observed from outside: lavapipe does it when a shader first runs. Mesa caches the
// shaders that it has built, so a list beside its files says which ones are there, also in later processes.

import { createHash } from "node:crypto";
import { accessSync, appendFileSync, constants, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** The shaders that need not be built. Without a folder, only those of this process. */
export class Shaders {
  #list;
  #known = new Set();
  #building = new Set();

  /**
   * Let Mesa cache the shaders that it builds in `folder`. Call it before the driver is loaded. Returns the
   * folder, or null if it cannot be written: shaders are then built in each process.
   */
  static keepIn(folder) {
    try {
      mkdirSync(folder, { recursive: true });
      accessSync(folder, constants.W_OK);
    } catch (error) {
      return notKept(error);
    }
    process.env.MESA_SHADER_CACHE_DIR = folder;
    return folder;
  }

  /** `driver` is a text that changes whenever built shaders become invalid. */
  constructor(folder, driver) {
    this.#list = folder && join(folder, `built-${digest(driver).slice(0, 16)}`);
    if (!this.#list) return;
    try {
      this.#known = new Set(readFileSync(this.#list, "utf8").split("\n"));
    } catch (error) {
      if (error.code !== "ENOENT") throw error;
    }
  }

  /** Record a shader that is about to be used; returns whether it must be built. */
  mustBuild(code) {
    const shader = digest(code);
    if (this.#known.has(shader)) return false;
    this.#building.add(shader);
    return true;
  }

  /** All shaders that had to be built have run. */
  built() {
    if (!this.#building.size) return;
    for (const shader of this.#building) this.#known.add(shader);
    try {
      // Whole lines, because several processes may append to one file.
      if (this.#list) appendFileSync(this.#list, [...this.#building, ""].join("\n"));
    } catch (error) {
      this.#list = notKept(error); // the disk is full, or the cache was cleared
    }
    this.#building.clear();
  }
}

function notKept({ message }) {
  console.error(`built shaders are not kept: ${message}`);
  return null;
}

function digest(text) {
  return createHash("sha256").update(text).digest("hex");
}
