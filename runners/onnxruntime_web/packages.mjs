// The npm packages of a folder, wherever it lies: what `gqa setup webgpu` installed, or a build of
// one's own. Node looks for a bare name beside the file that imports it, which is not there.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** The packages in `folder`/node_modules. */
export class Packages {
  constructor(folder) {
    this.folder = folder;
  }

  /** Whether the package is there. */
  has(name) {
    return existsSync(this.#at(name, "package.json"));
  }

  /** Its version. */
  version(name) {
    return this.#manifest(name).version;
  }

  /** The namespace of an ES module: of the package, or of one of its entries, such as "./webgpu". */
  import(name, entry = ".") {
    const { exports, main } = this.#manifest(name);
    const file = exports ? forImport(exports[entry]) : main;
    if (!file) throw new Error(`${name} ${this.version(name)} has no entry ${entry}`);
    return import(pathToFileURL(this.#at(name, file)));
  }

  /** What a CommonJS package exports. */
  require(name) {
    return createRequire(this.#at(name, "package.json"))(name);
  }

  #manifest(name) {
    return JSON.parse(readFileSync(this.#at(name, "package.json"), "utf8"));
  }

  #at(name, file) {
    return join(this.folder, "node_modules", name, file);
  }
}

/** The file that `import` takes, of an entry of a manifest's "exports". */
function forImport(target) {
  return typeof target === "object" ? forImport(target.import ?? target.default) : target;
}
