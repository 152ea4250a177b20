// The npm packages that the tests use: those of the folder that MODULES names.

import { Packages } from "../../../runners/onnxruntime_web/packages.mjs";

export const packages = new Packages(process.env.MODULES);
