// Where a session's nodes run, from onnxruntime's log at severity "verbose" while it creates the
// session. The JavaScript API does not report it: a node that the GPU's provider does not support
// goes to the CPU silently.

/** The operator of the cases. */
export const OPERATOR = "GroupQueryAttention";
export const CPU = "CPUExecutionProvider";

/** Reads the log lines of the creation of one session. */
export class Placements {
  #said = false;
  #provider = null;
  #nodes = []; // [operator or null, provider]

  /** Read the message of one line. */
  read(message) {
    if (message.trim() === "Node placements") {
      this.#said = true;
      return;
    }
    if (!this.#said) return;
    const placed = /^\s*(All nodes|Node\(s\)) placed on \[(\w+)\]/.exec(message);
    if (placed) {
      this.#provider = placed[2];
      if (placed[1] === "All nodes") this.#nodes.push([null, placed[2]]);
      return;
    }
    const node = /^\s+(\w+) \(.*\)\s*$/.exec(message);
    if (node && this.#provider) this.#nodes.push([node[1], this.#provider]);
  }

  /**
   * The provider on which the operator runs. Of several nodes, one that runs elsewhere than
   * `wanted` counts; for a graph without the operator all nodes count, and one without nodes
   * was computed while it was loaded, which the CPU does. Throws if the log did not say.
   */
  of(wanted) {
    if (!this.#said) throw new Error("onnxruntime did not log where its nodes are placed");
    const meant = this.#nodes.filter(([operator]) => operator === OPERATOR || operator === null);
    const providers = (meant.length ? meant : this.#nodes).map(([, provider]) => provider);
    return providers.find((provider) => provider !== wanted) ?? (providers.length ? wanted : CPU);
  }
}
