// onnxruntime-node on its WebGPU provider, which is compiled into its library with a Dawn of its own. JavaScript
// sees neither that Dawn's adapter nor its buffers and shaders, so the adapter is that of the npm package
// webgpu, with the same drivers, and buffers on the device are those of a model that copies a tensor.

import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { dataType } from "../onnxruntime_web/dtypes.mjs";
import { Runtime } from "../onnxruntime_web/execution.mjs";
import { CPU, OPERATOR } from "../onnxruntime_web/placement.mjs";

export const WEBGPU = "WebGpuExecutionProvider";

/** Sessions on WebGPU. */
export class NativeWebGpu extends Runtime {
  #copiers = new Map(); // direction and type → session
  #profiles = null; // a folder

  constructor(ort, messages, more) {
    super(ort, messages, null, { option: "webgpu", provider: WEBGPU, devices: null, more });
    process.on("exit", () => this.#clear());
  }

  #clear() {
    if (this.#profiles) rmSync(this.#profiles, { recursive: true, force: true });
  }

  /** The library logs from C, so a profile says where the nodes of a session ran. */
  async loadWithLog(model) {
    this.#clear(); // a session whose run failed left one
    this.#profiles = mkdtempSync(join(tmpdir(), "gqa-profile-"));
    const profileFilePrefix = join(this.#profiles, "profile");
    return { session: await this.create(model, { enableProfiling: true, profileFilePrefix }) };
  }

  /** The provider on which the operator ran, or all nodes of a graph without it: the CPU if one ran there. */
  placementOf(session) {
    session.endProfiling();
    const [file] = readdirSync(this.#profiles);
    const events = JSON.parse(readFileSync(join(this.#profiles, file), "utf8"));
    this.#clear();
    const nodes = events.map(({ args }) => args).filter((args) => args?.provider);
    const meant = nodes.filter(({ op_name }) => op_name === OPERATOR);
    const providers = (meant.length ? meant : nodes).map(({ provider }) => provider);
    return providers.find((provider) => provider !== WEBGPU) ?? providers[0] ?? CPU;
  }

  /** Outputs in a shared buffer are new tensors. */
  async run(session, feeds, fetches, shared) {
    const outputs = await super.run(session, feeds, fetches, shared);
    for (const tensor of Object.values(outputs)) this.#keep(tensor, shared);
    return outputs;
  }

  async onDevice(tensor, shared) {
    if (shared.has(tensor)) return tensor;
    const copy = await this.#copy(tensor, "gpu-buffer");
    this.#keep(copy, shared);
    return copy;
  }

  /** Remember how a tensor on the device is read: its own `getData` ends the process. */
  #keep(tensor, shared) {
    if (tensor.location === "gpu-buffer") shared.set(tensor, async () => (await this.#copy(tensor, "cpu")).data);
  }

  async #copy(tensor, preferredOutputLocation) {
    const key = `${preferredOutputLocation} ${tensor.type}`;
    if (!this.#copiers.has(key)) {
      const model = this.messages.identity(dataType(tensor.type));
      this.#copiers.set(key, await this.create(model, { preferredOutputLocation }));
    }
    return (await this.#copiers.get(key).run({ x: tensor })).y;
  }
}
