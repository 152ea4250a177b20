import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { dataType, dtypes, toElements } from "../../../runners/onnxruntime_web/dtypes.mjs";
import { BadFile, Messages } from "../../../runners/onnxruntime_web/tensor_file.mjs";
import { packages } from "./modules.mjs";

const messages = new Messages(packages.require("protobufjs"));
const folder = mkdtempSync(join(tmpdir(), "tensor-file-"));
let files = 0;

/** A file with these bytes. */
function file(...bytes) {
  const path = join(folder, `${files++}.pb`);
  writeFileSync(path, Buffer.from(bytes));
  return path;
}

const FLOAT16 = 10;

test("reads dims packed or one by one, the type, the name and the bytes", () => {
  const rest = [0x10, 10, 0x42, 1, 0x71, 0x4a, 4, 1, 2, 3, 4]; // data_type 10, name "q", raw_data
  for (const dims of [[0x08, 1, 0x08, 2], [0x0a, 2, 1, 2]]) {
    const tensor = messages.readTensor(file(...dims, ...rest));
    assert.deepEqual(tensor.dims, [1, 2]);
    assert.equal(tensor.dataType, FLOAT16);
    assert.equal(tensor.name, "q");
    assert.deepEqual([...new Uint8Array(tensor.bytes)], [1, 2, 3, 4]);
  }
});

test("a scalar has no dims, and a tensor without elements no bytes", () => {
  assert.deepEqual(messages.readTensor(file(0x10, 1, 0x4a, 4, 0, 0, 128, 63)).dims, []);
  const empty = messages.readTensor(file(0x08, 0, 0x08, 4, 0x10, 1));
  assert.deepEqual(empty.dims, [0, 4]);
  assert.equal(empty.bytes.byteLength, 0);
});

test("a file that is missing or not a tensor throws a BadFile that names it", () => {
  assert.throws(() => messages.readTensor(join(folder, "missing.pb")), BadFile);
  const cut = file(0x4a, 100, 1);
  assert.throws(() => messages.readTensor(cut), (error) => error instanceof BadFile && error.message.includes(cut));
});

test("every pattern of float16 bits survives reading and writing", () => {
  const bits = Uint16Array.from({ length: 65536 }, (_, index) => index);
  const path = join(folder, "float16.pb");
  messages.writeTensor(path, { name: "x", dataType: FLOAT16, dims: [256, 256], bytes: bits });
  const { type, elements } = toElements(FLOAT16, messages.readTensor(path).bytes);
  assert.equal(type, "float16");
  assert.deepEqual(new Uint16Array(elements.buffer), bits);
  assert.equal(dataType(type), FLOAT16);
});

test("int64 keeps all of its bits", () => {
  const values = BigInt64Array.of(-(2n ** 63n), -1n, 2n ** 63n - 1n);
  const path = join(folder, "int64.pb");
  messages.writeTensor(path, { name: "x", dataType: 7, dims: [3], bytes: values });
  assert.deepEqual(toElements(7, messages.readTensor(path).bytes).elements, values);
});

test("only the viewed part of larger memory is written", () => {
  const path = join(folder, "view.pb");
  const view = new Float32Array(Float32Array.of(1, 2, 3, 4).buffer, 4, 2);
  messages.writeTensor(path, { name: "x", dataType: 1, dims: [2], bytes: view });
  const { bytes } = messages.readTensor(path);
  assert.deepEqual([...new Float32Array(bytes)], [2, 3]);
  assert.ok(readFileSync(path).includes(Buffer.from("x")));
});

test("float16 is supported only if the adapter has it, and some types never", () => {
  assert.ok(dtypes(true).includes("float16"));
  assert.ok(!dtypes(false).includes("float16"));
  assert.equal(toElements(16, new ArrayBuffer(2)), null); // bfloat16
});

/** A length-delimited field of protobuf. */
const field = (number, ...content) => [(number << 3) | 2, content.length, ...content];
const text = (word) => [...Buffer.from(word)];

test("a node needs inputs of a run unless each of its inputs is a constant", () => {
  const node = (...inputs) =>
    field(1, ...inputs.flatMap((name) => field(1, ...text(name))), ...field(4, ...text("GQA")));
  const input = (name) => field(11, ...field(1, ...text(name)));
  const initializer = (name) => field(5, ...field(8, ...text(name)), ...field(9, 1, 2, 3, 4));
  const waits = (...graph) =>
    messages.waitsForInputs(Buffer.from(field(7, ...graph.flat())), "GQA");
  assert.ok(waits(node("q", "k"), input("q"), initializer("k")));
  assert.ok(!waits(node("q"), input("q"), initializer("q")));
  assert.ok(!waits(node("k"), node("q"), input("q")));
  assert.ok(!waits(input("q")));
  assert.ok(!messages.waitsForInputs(Buffer.from(field(7, ...node("q"), ...input("q"))), "Add"));
  assert.ok(!messages.waitsForInputs(Buffer.from([0x3a, 100, 1]), "GQA"));
  assert.ok(!messages.waitsForInputs(Buffer.alloc(0), "GQA"));
});
