// The shaders that onnxruntime-web's older kernels (JSEP) have compiled, which they cache for all
// sessions of a page. The cache key does not include whether a key/value head has one query head or
// more, so after a model of one kind a model of the other runs its shader, with wrong results.
// The result of a case must not depend on the cases before it, so each begins with an empty cache.

/**
 * The map of compiled shaders, found while `use` runs a first one; null if there is
 * none. The package does not export it: it is the map that receives a pipeline.
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
