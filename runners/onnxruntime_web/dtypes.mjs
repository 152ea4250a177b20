// The types of tensors: the protocol's words, ONNX's numbers and onnxruntime-web's words.

/**
 * The protocol's word → TensorProto.DataType, the word of onnxruntime-web's Tensor, and the class of
 * typed array that it wants. For float16 that is Float16Array where JavaScript has it, else the bits.
 */
const KNOWN = {
  float32: [1, "float32", Float32Array],
  uint8: [2, "uint8", Uint8Array],
  int8: [3, "int8", Int8Array],
  int32: [6, "int32", Int32Array],
  int64: [7, "int64", BigInt64Array],
  float16: [10, "float16", globalThis.Float16Array ?? Uint16Array],
};

const BY_NUMBER = new Map(Object.values(KNOWN).map(([number, ...rest]) => [number, rest]));
const BY_TYPE = new Map(Object.values(KNOWN).map(([number, type]) => [type, number]));

/** The protocol's words, without float16 where the adapter has none. */
export function dtypes(withFloat16) {
  return Object.keys(KNOWN).filter((word) => withFloat16 || word !== "float16");
}

/**
 * onnxruntime-web's word for a TensorProto.DataType, and the elements in `bytes`, bit for bit; null
 * if its API has no such type.
 */
export function toElements(dataType, bytes) {
  const known = BY_NUMBER.get(dataType);
  return known ? { type: known[0], elements: new known[1](bytes) } : null;
}

/** The TensorProto.DataType of a tensor of onnxruntime-web; undefined for one that no case has. */
export function dataType(type) {
  return BY_TYPE.get(type);
}
