// The shaders that onnxruntime-web's older kernels (JSEP) have compiled, which they keep for all
// sessions of a page. What they keep them by leaves out whether a key-value head has one query head or
// more, so that after a model of the one kind a model of the other runs its shader, and is wrong.
// What a case shows must not hang on the cases before it, so each begins with none.

/**
 * The map in which compiled shaders are kept, found while `use` runs a first one; null if there is
 * none. The package exports no way to it: it is the map that is given a pipeline.
 */
export async function findPrograms(use) {
  const { set } = Map.prototype;
  let found = null;
  Map.prototype.set = function (key, value) {
    if (value?.computePipeline) found = this;
    return set.call(this, key, value);
  };
  try {
    await use();
  } finally {
    Map.prototype.set = set;
  }
  return found;
}
