// The npm packages of a folder, wherever it is: the one that `gqa setup webgpu` installed, or a user's
// own build. Node resolves a bare name relative to the file that imports it, where they are not.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** A package cannot be loaded; `damaged` if reinstalling it might help. */
export class BadPackage extends Error {
  constructor(message, damaged) {
    super(message);
    this.damaged = damaged;
  }

  /** The answer of a runner; `again` is the command that reinstalls the packages, if there is one. */
  answer(again) {
    return { outcome: "unavailable", reason: this.message, fix: (this.damaged && again) || null };
  }
}

/** The packages in `folder`/node_modules. Every method that reads one throws BadPackage on failure. */
export class Packages {
  constructor(folder) {
    this.folder = folder;
  }

  /** Its version. */
  version(name) {
    return this.#manifest(name).version;
  }

  /** The namespace of an ES module: of the package, or of one of its entries, such as "./webgpu". */
  async import(name, entry = ".") {
    return import(pathToFileURL(this.file(name, entry))).catch((error) => this.#refuse(name, error));
  }

  /** The file of such an entry. */
  file(name, entry = ".") {
    const { exports, main } = this.#manifest(name);
    const file = exports ? forImport(exports[entry]) : main;
    if (!file) throw new BadPackage(`${name} ${this.version(name)} has no entry ${entry}.`, false);
    return this.#at(name, file);
  }

  /** The exports of a CommonJS package. */
  require(name) {
    try {
      return createRequire(this.#at(name, "package.json"))(name);
    } catch (error) {
      return this.#refuse(name, error);
    }
  }

  #manifest(name) {
    try {
      return JSON.parse(readFileSync(this.#at(name, "package.json"), "utf8"));
    } catch (error) {
      return this.#refuse(name, error);
    }
  }

  #refuse(name, { code, message }) {
    const why = message.split("\n")[0].replace(/ imported from .*|\.$/, "");
    // If a library does not match the system's own, reinstalling it does not help.
    const damaged = code !== "ERR_DLOPEN_FAILED";
    throw new BadPackage(`${name} in ${this.folder} cannot be loaded: ${why}.`, damaged);
  }

  #at(name, file) {
    return join(this.folder, "node_modules", name, file);
  }
}

/** The file that `import` resolves to, of an entry of a manifest's "exports". */
function forImport(target) {
  return typeof target === "object" ? forImport(target.import ?? target.default) : target;
}
