// Tensor files: one TensorProto message each (runners/README.md), read and written by protobufjs.
// Elements stay as the bytes of the file, whatever their type.

import { readFileSync, writeFileSync } from "node:fs";

/** A file of the bundle that is missing or is not a tensor. */
export class BadFile extends Error {}

/**
 * The fields of onnx.proto that this program reads or writes, by onnx.proto's names. Of initializers,
 * which are tensors, only the names.
 */
const SCHEMA = `
syntax = "proto2";
message TensorProto {
  repeated int64 dims = 1;
  optional int32 data_type = 2;
  optional string name = 8;
  optional bytes raw_data = 9;
}
message TypeProto {
  message Tensor { optional int32 elem_type = 1; }
  optional Tensor tensor_type = 1;
}
message ValueInfoProto { optional string name = 1; optional TypeProto type = 2; }
message NodeProto {
  repeated string input = 1;
  repeated string output = 2;
  optional string op_type = 4;
}
message InitializerProto { optional string name = 8; }
message GraphProto {
  repeated NodeProto node = 1;
  optional string name = 2;
  repeated InitializerProto initializer = 5;
  repeated ValueInfoProto input = 11;
  repeated ValueInfoProto output = 12;
}
message OperatorSetIdProto { optional string domain = 1; optional int64 version = 2; }
message ModelProto {
  optional int64 ir_version = 1;
  optional GraphProto graph = 7;
  repeated OperatorSetIdProto opset_import = 8;
}
`;

/** Reads and writes ONNX messages; `protobuf` is the package protobufjs. */
export class Messages {
  #tensor;
  #model;

  constructor(protobuf) {
    const { root } = protobuf.parse(SCHEMA, { keepCase: true });
    this.#tensor = root.lookupType("TensorProto");
    this.#model = root.lookupType("ModelProto");
  }

  /**
   * The tensor in a file: { name, dataType, dims, bytes }, where `dataType` is the number of
   * TensorProto.DataType and `bytes` an ArrayBuffer of its own. Throws BadFile.
   */
  readTensor(path) {
    const file = readBundleFile(path);
    let message;
    try {
      message = this.#tensor.decode(file);
    } catch (error) {
      throw new BadFile(`${path} holds no TensorProto: ${error.message}`);
    }
    // Copied out of the file's buffer: a typed array needs aligned elements.
    const bytes = new Uint8Array(message.raw_data).buffer;
    return { name: message.name, dataType: message.data_type, dims: message.dims.map(Number), bytes };
  }

  /** Write a tensor; `bytes` is a view of its elements. */
  writeTensor(path, { name, dataType, dims, bytes }) {
    const raw_data = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const message = this.#tensor.create({ dims, data_type: dataType, name, raw_data });
    writeFileSync(path, this.#tensor.encode(message).finish());
  }

  /**
   * Whether the model has nodes of this operator, each with an input that only a run provides, so that
   * none of them can be computed while it is loaded. False if the bytes are not a model.
   */
  waitsForInputs(model, operator) {
    let graph;
    try {
      graph = this.#model.decode(model).graph;
    } catch {
      return false;
    }
    const given = new Set(graph?.input.map(({ name }) => name));
    for (const { name } of graph?.initializer ?? []) given.delete(name);
    const nodes = (graph?.node ?? []).filter(({ op_type }) => op_type === operator);
    return nodes.length > 0 && nodes.every(({ input }) => input.some((name) => given.has(name)));
  }

  /** A model of one node that adds two tensors, as bytes; float32 is type 1. */
  addition(elem_type = 1) {
    return this.#oneNode("Add", ["a", "b"], "sum", elem_type);
  }

  /** A model of one node that copies `x` to `y`, as bytes. */
  identity(elem_type) {
    return this.#oneNode("Identity", ["x"], "y", elem_type);
  }

  #oneNode(op_type, inputs, output, elem_type) {
    const value = (name) => ({ name, type: { tensor_type: { elem_type } } });
    return this.#model
      .encode(
        this.#model.create({
          ir_version: 8,
          opset_import: [{ domain: "", version: 14 }],
          graph: {
            name: op_type,
            node: [{ op_type, input: inputs, output: [output] }],
            input: inputs.map(value),
            output: [value(output)],
          },
        }),
      )
      .finish();
  }
}

/** The bytes of a file of the bundle. Throws BadFile. */
export function readBundleFile(path) {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new BadFile(`cannot read ${path}: ${error.message}`);
  }
}
