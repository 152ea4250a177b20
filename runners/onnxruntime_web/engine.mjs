// onnxruntime-web on one execution provider: starts it, describes it and runs cases. The same in Node and in
// a page of a browser.

import { NoAdapter, adapterWord, checkAdapter, device, facts } from "./adapter_facts.mjs";
import { dtypes } from "./dtypes.mjs";
import { Rejected, Runtime, Unavailable, runCase } from "./execution.mjs";
import { findPrograms } from "./programs.mjs";
import { Messages } from "./tensor_file.mjs";

/** The runtime; `describe` comes first. */
export class Engine {
  #runtime;
  #target;
  #programs = null; // compiled shaders that must not outlive a case
  #die;

  /**
   * `ort` and `protobuf` are the packages, `listen` is from `takeOutput`, and `devices` from `watchDevices`,
   * or null. `die(message)` ends what cannot go on, as a crash; it does not return.
   */
  constructor({ ort, protobuf, listen, target, devices, die }) {
    ort.env.wasm.numThreads = 1;
    ort.env.logLevel = "error";
    this.#runtime = new Runtime(ort, new Messages(protobuf), listen, { ...target, devices });
    this.#target = target;
    this.#die = die;
  }

  /**
   * The answer to describe, about the adapter that `wanted` names and `lacks` describes. `versions` are of
   * everything else; `processor` is in words.
   */
  async describe({ version, wanted, lacks, versions, processor }) {
    const { gpu, provider, mixesPrograms } = this.#target;
    const runtime = this.#runtime;
    const { ort, devices } = runtime;
    // Kept open: the device and its shaders are released with the last session, and take seconds to create.
    const { session, placement } = await runtime.loadWithLog(runtime.messages.addition());
    const tensor = (value) => new ort.Tensor("float32", [value], [1]);
    runtime.works = async () => {
      const { sum } = await session.run({ a: tensor(2), b: tensor(3) });
      return sum.data[0] === 5;
    };
    let works = false;
    const kept = await findPrograms(async () => (works = await runtime.works()));
    if (!works) throw new Error("onnxruntime-web does not add 2 and 3");
    if (mixesPrograms) {
      if (!kept) throw new Error("onnxruntime-web keeps its compiled shaders out of reach");
      this.#programs = kept;
    }
    if (placement !== provider) {
      return { outcome: "unavailable", reason: `onnxruntime-web adds on ${placement}.`, fix: null };
    }
    // The adapter that onnxruntime requested, which may differ from the one that was found.
    const adapter = devices?.adapter ?? null;
    if (adapter) checkAdapter(adapter, wanted);
    return {
      outcome: "described",
      runtime: "onnxruntime-web",
      version,
      execution_provider: provider,
      device: adapter ? device(adapter) : processor,
      adapter: adapter && adapterWord(adapter.info),
      dtypes: dtypes(!("float16" in lacks)),
      lacks,
      features: [...(gpu ? ["shared_buffer"] : []), "keep", "may_be_rejected"],
      threads: ort.env.wasm.numThreads,
      versions: {
        "onnxruntime-web": version,
        ...versions,
        ...(adapter && { ...facts(adapter), processor }),
      },
    };
  }

  /** The answer to run. */
  async run(request) {
    const runtime = this.#runtime;
    if (runtime.devices?.lost) {
      throw new Error(`the device was lost before this case: ${runtime.devices.lost}`);
    }
    this.#programs?.clear();
    let answer;
    try {
      answer = { outcome: "ran", ...(await runCase(runtime, request)) };
    } catch (error) {
      if (error instanceof Rejected) {
        answer = { outcome: "rejected", ...error.answer };
        // An error that onnxruntime did not throw itself may have left the wasm in an inconsistent state.
        const whole = error.answer.code || (await runtime.works().catch(() => false));
        if (!whole) this.#die(`${error.message} (and nothing works any more)`);
      } else if (error instanceof Unavailable) {
        answer = { outcome: "unavailable", reason: error.message };
      } else {
        await this.#settle(); // an apparent error of this program may result from a lost device
        throw error;
      }
    }
    await this.#settle();
    return answer;
  }

  /** Wait until the device has done all its work; end if it was lost. */
  async #settle() {
    const { devices } = this.#runtime;
    await devices?.settle();
    if (devices?.lost) this.#die(`the device was lost: ${devices.lost}`);
  }
}

/** The answer if there is no adapter; any other error is thrown again. */
export function withoutAdapter(error) {
  if (!(error instanceof NoAdapter)) throw error;
  const [first, ...rest] = error.message;
  return { outcome: "unavailable", reason: first.toUpperCase() + rest.join(""), fix: error.fix };
}
