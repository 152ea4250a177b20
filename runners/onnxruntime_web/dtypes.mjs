// The types of tensors: the protocol's names, ONNX's numbers and onnxruntime-web's names.

/**
 * The protocol's name → TensorProto.DataType, the name in onnxruntime-web's Tensor, and the class of
 * typed array that it requires. For float16 that is Float16Array if JavaScript has it, else the bits.
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

/** The protocol's names, without float16 if the adapter does not support it. */
export function dtypes(withFloat16) {
  return Object.keys(KNOWN).filter((word) => withFloat16 || word !== "float16");
}

/**
 * onnxruntime-web's name for a TensorProto.DataType, and the elements in `bytes`, bit for bit; null
 * if its API has no such type.
 */
export function toElements(dataType, bytes) {
  const known = BY_NUMBER.get(dataType);
  return known ? { type: known[0], elements: new known[1](bytes) } : null;
}

/** The TensorProto.DataType of a tensor of onnxruntime-web; undefined for a type that no case uses. */
export function dataType(type) {
  return BY_TYPE.get(type);
}
