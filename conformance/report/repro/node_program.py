"""Stand-alone programs for onnxruntime-web: a module for Node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.report.repro.checks import (
    CARRIED,
    ELSEWHERE,
    carried_of,
    expected_list,
    is_of_the_variant,
    runs_of,
    seconds_of,
    verdict_if_rejected,
    verdict_if_right,
    wrong_shapes,
)
from conformance.report.repro.model_source import IMPORTS, model_source, quoted
from conformance.results.records import CaseRecord, ResultRecord
from conformance.targets.catalogue import StandaloneProgram, TargetEntry


def node_blocks(
    case: CaseRecord, result: ResultRecord, entry: TargetEntry, program: StandaloneProgram
) -> list[str]:
    """The blocks of the module, which has Python make the model and the inputs."""
    on_gpu = entry.target_class == "gpu"
    call = case.call
    start = [
        'import { execFileSync, spawnSync } from "node:child_process";',
        'import { pathToFileURL } from "node:url";',
        'import { setFlagsFromString } from "node:v8";',
        'setFlagsFromString("--liftoff-only"); // starts within seconds',
        "// Run it in a folder with node_modules.",
        "const from = (path) => import(pathToFileURL(`${process.cwd()}/node_modules/${path}`));",
        "const making = String.raw`",
    ]
    send = [
        "import base64",
        "import json",
        "plain = lambda values: base64.b64encode(values.tobytes()).decode()",
        "types = {name: kind for name, kind, _ in inputs}",
        "sent = [",
        "    {n: [types[n], v.shape, plain(v)] for n, v in call.items()}",
        "    for call in calls",
        "]",
        "model = base64.b64encode(model.SerializeToString()).decode()",
        'print(json.dumps({"model": model, "calls": sent}))',
        "`;",
        'const options = { encoding: "utf8", maxBuffer: 2 ** 30 };',
        'const made = JSON.parse(execFileSync("python3", ["-c", making], options));',
    ]
    tensors = [
        "const arrays = {",
        "  FLOAT: Float32Array, FLOAT16: globalThis.Float16Array ?? Uint16Array,",
        "  INT8: Int8Array, UINT8: Uint8Array, INT32: Int32Array, INT64: BigInt64Array,",
        "};",
        "function tensor([kind, dims, data]) {",
        '  const bytes = Uint8Array.from(Buffer.from(data, "base64"));',
        '  const type = kind === "FLOAT" ? "float32" : kind.toLowerCase();',
        "  return new ort.Tensor(type, new arrays[kind](bytes.buffer), dims);",
        "}",
    ]
    runtime = [
        f'const ort = await from("onnxruntime-web/dist/ort.{program.options}.bundle.min.mjs");',
        "ort.env.wasm.numThreads = 1;",
        'ort.env.logLevel = "error";',
    ]
    blocks = ["\n".join(start[:4])]
    if result.verdict in ("crash", "timeout"):
        blocks.append("\n".join(_node_child(result)))
    blocks += ["\n".join(start[4:]), IMPORTS, *model_source(case), "\n".join(send)]
    if on_gpu:
        blocks.append(_dawn_block(case, result))
    blocks.append("\n".join([*runtime, *tensors]))
    if call.shared_buffer:
        blocks.append(_SHARING)
    blocks.append("\n".join(_node_run(case, result, on_gpu)))
    return [*blocks, _node_check(case, result)]


def _node_child(result: ResultRecord) -> list[str]:
    """Lines that run the rest in a child process, so that a crash of it can be reported."""
    return [
        "if (!process.env.REPRO_CHILD) { // the rest runs in a child process, which may crash",
        '  const env = { ...process.env, REPRO_CHILD: "1" };',
        f'  const options = {{ env, stdio: "inherit", timeout: {1000 * seconds_of(result):g} }};',
        "  const done = spawnSync(process.execPath, [process.argv[1]], options);",
        "  const { error, status, signal } = done;",
        '  if (error?.code === "ETIMEDOUT") console.log("verdict: timeout");',
        "  else if (status || signal) {",
        "    console.log(`the process ended with ${signal ?? status}`);",
        '    console.log("verdict: crash");',
        "  }",
        "  process.exit();",
        "}",
    ]


def _dawn_block(case: CaseRecord, result: ResultRecord) -> str:
    """The block that makes Dawn available as `navigator.gpu`, as in a browser."""
    lines = [
        "// Dawn uses the system's adapter. On Linux VK_DRIVER_FILES=FILE.json selects another",
        "// Vulkan driver: lavapipe's is",
        "// /usr/share/vulkan/icd.d/lvp_icd.json, SwiftShader's is",
        "// /usr/lib/chromium/vk_swiftshader_icd.json.",
        'const dawn = await from("webgpu/index.js");',
        "Object.assign(globalThis, dawn.globals);",
        'if (!globalThis.navigator) Object.defineProperty(globalThis, "navigator", { value: {} });',
        "const gpu = dawn.create([]);",
        'Object.defineProperty(navigator, "gpu", { value: gpu });',
        "const { writeBuffer } = GPUQueue.prototype; // Dawn rejects SharedArrayBuffer: copy",
        "GPUQueue.prototype.writeBuffer = function (buffer, at, data, start = 0, size) {",
        "  const unit = data.BYTES_PER_ELEMENT ?? 1;",
        "  const memory = ArrayBuffer.isView(data) ? data.buffer : data;",
        "  const first = (data.byteOffset ?? 0) + start * unit;",
        "  const bytes = size === undefined ? data.byteLength - start * unit : size * unit;",
        "  const copy = new Uint8Array(memory, first, bytes).slice();",
        "  return writeBuffer.call(this, buffer, at, copy);",
        "};",
        "let lost = null;",
        "const { requestDevice } = GPUAdapter.prototype;",
        "GPUAdapter.prototype.requestDevice = async function (...parameters) {",
        "  const device = await requestDevice.apply(this, parameters);",
        "  device.lost.then(({ reason, message }) => {",
        '    if (reason !== "destroyed") lost = message; // as a session that ends does',
        "  });",
        "  globalThis.device = device;",
        "  return device;",
        "};",
    ]
    empty = any(tensor.shape and 0 in tensor.shape for tensor in case.call.inputs)
    if empty or "createBindGroup" in (result.message or ""):
        lines += [
            "const { createBindGroup } = GPUDevice.prototype; // throws, as in browsers",
            "GPUDevice.prototype.createBindGroup = function (descriptor) {",
            "  const without = descriptor.entries.find(({ resource }) => !resource);",
            "  if (without) throw new TypeError(",
            "    `createBindGroup: the resource of binding ${without.binding} is undefined.`,",
            "  );",
            "  return createBindGroup.call(this, descriptor);",
            "};",
        ]
    return "\n".join(lines)


_SHARING: Final = """// Puts a past and its present in one buffer on the device.
const buffers = new Map();
function onDevice(given) {
  if (buffers.has(given)) return given;
  const { data, type, dims } = given;
  const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
  const size = Math.max(16, Math.ceil(data.byteLength / 16) * 16);
  const usage = STORAGE | COPY_SRC | COPY_DST;
  const buffer = device.createBuffer({ size, usage, mappedAtCreation: true });
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  new Uint8Array(buffer.getMappedRange()).set(bytes);
  buffer.unmap();
  const made = ort.Tensor.fromGpuBuffer(buffer, { dataType: type, dims });
  buffers.set(made, async () => {
    const copy = device.createBuffer({ size, usage: COPY_DST | GPUBufferUsage.MAP_READ });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, copy, 0, size);
    device.queue.submit([encoder.finish()]);
    await copy.mapAsync(GPUMapMode.READ);
    return new data.constructor(copy.getMappedRange().slice(0, data.byteLength));
  });
  return made;
}"""


def _node_run(case: CaseRecord, result: ResultRecord, on_gpu: bool) -> Iterator[str]:
    provider = "webgpu" if on_gpu else "wasm"
    yield "function end(verdict) {"
    yield "  console.log(`verdict: ${verdict}`);"
    yield '  process.stdout.write("", () => process.exit());'
    yield "  return new Promise(() => {});"
    yield "}"
    yield f'const session = {{ executionProviders: ["{provider}"], logSeverityLevel: 3 }};'
    yield "const results = [];"
    yield "let elsewhere = false;"
    yield "try {"
    yield '  const model = Buffer.from(made.model, "base64");'
    if on_gpu and case.call.graph is not None:  # nodes that compute lengths may run on the CPU
        yield "  const loaded = await ort.InferenceSession.create(model, session);"
    elif on_gpu:
        yield '  const alone = { session: { disable_cpu_ep_fallback: "1" } };'
        yield "  const create = (more) =>"
        yield "    ort.InferenceSession.create(model, { ...session, ...more });"
        yield "  const loaded = await create({ extra: alone }).catch((error) => {"
        yield "    const fell = /fallback to CPU EP has been explicitly disabled/;"
        yield "    if (!fell.test(error.message)) throw error;"
        yield "    elsewhere = true;"
        yield "    return create({});"
        yield "  });"
    else:
        yield "  const loaded = await ort.InferenceSession.create(model, session);"
    calls = list(_node_calls(case))
    if runs_of(result) > 1:
        calls = [
            f"  for (let run = 0; run < {runs_of(result)}; run++) {{",
            *_indented(calls),
            "  }",
        ]
    yield from calls
    yield "} catch (error) {"
    yield "  console.log(`rejected: ${error.message ?? error}`);"
    gone = " || lost" if on_gpu else ""
    yield f"  const crashed = error instanceof WebAssembly.RuntimeError{gone};"
    yield f'  await end(crashed ? "crash" : "{verdict_if_rejected(case, result)}");'
    yield "}"
    if on_gpu:
        yield "if (lost) {"
        yield "  console.log(`the device was lost: ${lost}`);"
        yield '  await end("crash");'
        yield "}"
        yield 'if (elsewhere) await end("fallback"); // it ran on the CPU'


def _indented(lines: Sequence[str]) -> list[str]:
    """The lines, indented by one level."""
    return [f"  {line}" for line in lines]


def _node_calls(case: CaseRecord) -> Iterator[str]:
    """The lines that make every call of the case once."""
    carry = CARRIED if case.call.shared_buffer else carried_of(case.call)
    if carry:
        yield "  let carried = {}; // from one call to the next"
    yield "  for (const call of made.calls) {"
    yield "    const given = Object.entries(call).map(([name, sent]) => [name, tensor(sent)]);"
    yield f"    const feeds = {{ ...Object.fromEntries(given){', ...carried' if carry else ''} }};"
    value = "value.data"
    if case.call.shared_buffer:
        value = "buffers.has(value) ? await buffers.get(value)() : value.data"
        yield "    const nulls = loaded.outputNames.map((name) => [name, null]);"
        yield "    const fetches = Object.fromEntries(nulls);"
        for past, present in carry.items():
            yield f"    fetches.{present} = feeds.{past} = onDevice(feeds.{past});"
    into = ", fetches" if case.call.shared_buffer else ""
    yield f"    const outputs = await loaded.run(feeds{into});"
    if carry:
        pairs = ", ".join(f"{past}: outputs.{present}" for past, present in carry.items())
        yield f"    carried = {{ {pairs} }};"
    yield "    results.push({});"
    yield "    for (const [name, value] of Object.entries(outputs)) {"
    yield f"      const data = {value};"
    yield "      results.at(-1)[name] = { dims: value.dims, type: value.type, data };"
    yield "    }"
    yield "  }"


def _node_check(case: CaseRecord, result: ResultRecord) -> str:
    worse = "verdict" if verdict_if_right(case, result) == "accepted" else '"wrong"'
    lines = [
        "// output, call, index, expected value, error budget: the largest errors found",
        expected_list(case, result, "javascript"),
        "function half(bits) {",
        "  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];",
        "  const size = exponent === 31 ? (fraction ? NaN : Infinity)",
        "    : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;",
        "  return bits >> 15 ? -size : size;",
        "}",
        f'let verdict = "{verdict_if_right(case, result)}";',
    ]
    if shapes := wrong_shapes(case, result):
        lines.append("const shapes = [ // output, call, expected shape")
        for output, step, shape in shapes:
            dims = json.dumps([int(dim) for dim in re.findall(r"\d+", shape)])
            lines.append(f"  [{quoted(output)}, {step}, {dims}],")
        lines += [
            "];",
            "for (const [name, call, shape] of shapes) {",
            "  const { dims } = results[call][name];",
            "  console.log(`${name} of step ${call} has shape ${dims} and should have ${shape}`);",
            f"  if (`${{dims}}` !== `${{shape}}`) verdict = {worse};",
            "}",
        ]
    lines += [
        "for (const [name, call, at, want, allowed] of wanted) {",
        "  const { dims, data } = results[call][name];",
        "  const flat = at.reduce((sum, index, axis) => sum * dims[axis] + index, 0);",
        "  const got = data instanceof Uint16Array ? half(data[flat]) : Number(data[flat]);",
        "  const good = got === want || Math.abs(got - want) <= allowed;",
        "  const found = `got ${got}, want ${want}, allowed error ${allowed}`;",
        "  console.log(`${name}[${at}] of step ${call}: ${found}: ${good ? 'correct' : 'WRONG'}`);",
        f"  verdict = good ? verdict : {worse};",
        "}",
    ]
    if runs_of(result) > 1:
        lines += [
            "const half_of_them = results.length / 2;",
            "for (let call = 0; call < half_of_them; call++) {",
            "  for (const [name, { data }] of Object.entries(results[call])) {",
            "    const again = results[call + half_of_them][name].data;",
            "    if (data.every((value, index) => Object.is(value, again[index]))) continue;",
            "    console.log(`two runs differ in ${name}`);",
            f"    verdict = {worse};",
            "  }",
            "}",
        ]
    if is_of_the_variant(result):
        lines.append(f'console.log("{ELSEWHERE}");')
    return "\n".join([*lines, "await end(verdict);"])
