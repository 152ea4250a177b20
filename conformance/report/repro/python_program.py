"""Stand-alone programs in Python: for ONNX Runtime, and for the package tract."""

from __future__ import annotations

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
from conformance.report.repro.model_source import BITS, IMPORTS, model_source, quoted
from conformance.results.records import CallInput, CallOutput, CaseRecord, ResultRecord
from conformance.targets.catalogue import StandaloneProgram, TargetEntry, device_word


def onnxruntime_blocks(
    case: CaseRecord, result: ResultRecord, entry: TargetEntry, program: StandaloneProgram
) -> list[str]:
    """The blocks of a program for ONNX Runtime's Python package."""
    return _blocks(case, result, _onnxruntime(case, result, entry, program))


def tract_wheel_blocks(
    case: CaseRecord, result: ResultRecord, entry: TargetEntry, program: StandaloneProgram
) -> list[str]:
    """The blocks of a program for the Python package tract."""
    return _blocks(case, result, [_tract_wheel(case, result)])


def _blocks(case: CaseRecord, result: ResultRecord, run: list[str]) -> list[str]:
    child = [_child(result)] if result.verdict in ("crash", "timeout") else []
    return [IMPORTS, *child, *model_source(case), *run, check_block(case, result)]


def _child(result: ResultRecord) -> str:
    """A block that runs the rest in a child process, so that a crash of it can be reported."""
    return f"""import os
import subprocess
import sys
if "REPRO_CHILD" not in os.environ:  # the rest runs in a child process, which may crash
    command = [sys.executable, os.path.abspath(__file__)]
    inner = {{**os.environ, "REPRO_CHILD": "1"}}
    try:
        status = subprocess.run(command, env=inner, timeout={seconds_of(result):g}).returncode
        if status:
            print("the process ended with status", status, "(negative: the signal)")
            print("verdict: crash")
    except subprocess.TimeoutExpired as error:
        print("no answer within", error.timeout, "s")
        print("verdict: timeout")
    sys.exit()"""


def _onnxruntime(
    case: CaseRecord, result: ResultRecord, entry: TargetEntry, program: StandaloneProgram
) -> list[str]:
    call = case.call
    provider = entry.execution_provider or "cpu"
    device = device_word(provider)
    first = ["import onnxruntime"]
    if program.environment:
        settings = [f'os.environ["{name}"] = "{v}"' for name, v in program.environment.items()]
        first = ["import os", *settings, *first]
    if device == "cuda":
        first += [
            'if hasattr(onnxruntime, "preload_dlls"):',
            "    onnxruntime.preload_dlls()  # CUDA's libraries, where pip installed them",
        ]
    options = [
        "options = onnxruntime.SessionOptions()",
        f"options.intra_op_num_threads = {program.threads}",
        "options.log_severity_level = 3",
    ]
    if (device != "cpu" or program.plugin) and call.graph is None:
        # In a graph, nodes that compute lengths may run on the CPU.
        options += ['options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")']
    named = quoted(provider)
    if program.provider_options:
        chosen = [f"{quoted(k)}: {quoted(v)}" for k, v in program.provider_options.items()]
        named = f"({named}, {{{', '.join(chosen)}}})"
    made_with = f"providers=[{named}]"
    if program.plugin:
        first += _plugin_import(program.plugin)
        options += _plugin_options()
        made_with = "enable_fallback=0"  # or Python tries again on the CPU
    session = [
        "names = [name for name, _, _ in outputs]",
        "results = []",
        "try:",
        "    session = onnxruntime.InferenceSession(",
        f"        model.SerializeToString(), options, {made_with}",
        "    )",
    ]
    if device != "cpu":
        session += [
            f'    if "{provider}" not in session.get_providers():',
            '        print("it would run on", session.get_providers())',
            '        print("verdict: fallback")',
            "        raise SystemExit",
        ]
    end = [
        "except Exception as error:",
        '    print("rejected:", error)',
        f'    print("verdict: {verdict_if_rejected(case, result)}")',
        "    raise SystemExit",
    ]
    loop, inner = "calls", "    "
    if runs_of(result) > 1:
        loop = "calls * 2"
    carry = carried_of(call)
    fresh = [f"{inner}    if call is calls[0]:", f"{inner}        carried = {{}}"]
    tensors: list[CallInput | CallOutput] = [*call.inputs, *call.outputs]
    odd = {str(tensor.dtype) for tensor in tensors if tensor.state == "connected"} & {*BITS}
    if not call.shared_buffer and not odd:
        feeds = "{**call, **carried}" if carry else "call"
        body = [
            *(["    carried = {}  # from one call to the next"] if carry else []),
            f"    for call in {loop}:",
            *(fresh if runs_of(result) > 1 and carry else []),
            f"        made = session.run(names, {feeds})",
            "        results.append(dict(zip(names, made)))",
        ]
        if carry:
            pairs = ", ".join(f'{quoted(p)}: results[-1]["{n}"]' for p, n in carry.items())
            body.append(f"        carried = {{{pairs}}}")
        return ["\n".join([*first, *options, *session, *body, *end])]
    helper = [
        "def given(name, bits):",
        '    """An OrtValue over the bits of an input or output."""',
        "    kind = {n: t for n, t, _ in inputs + outputs}[name]",
        "    number = getattr(onnx.TensorProto, kind)",
        "    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, number)",
    ]
    first = ["import ctypes", *first]
    reading = _reading()
    body = [
        "    carried = {}  # from one call to the next",
        f"    for call in {loop}:",
        *(fresh if runs_of(result) > 1 else []),
        "        feeds = {name: given(name, bits) for name, bits in call.items()} | carried",
        "        binding = session.io_binding()",
    ]
    if call.shared_buffer:
        body += [
            "        shared = {}  # one memory for past and present, kept between calls",
            "        for past, present in ("
            + ", ".join(f'("{p}", "{n}")' for p, n in CARRIED.items())
            + "):",
            "            value = feeds.pop(past)",
            "            if past not in carried:",
            '                bits = call[past].view(f"u{call[past].itemsize}")',
            "                make = onnxruntime.OrtValue.ortvalue_from_numpy",
            f'                value = make(bits, "{device}", 0)',
            "            kind = {n: getattr(onnx.TensorProto, t) for n, t, _ in inputs}[past]",
            f'            place = ("{device}", 0, kind, value.shape(), value.data_ptr())',
            "            binding.bind_input(past, *place)",
            "            shared[past] = shared[present] = value",
        ]
    body += [
        "        for name, value in feeds.items():",
        "            binding.bind_ortvalue_input(name, value)",
        "        for name in names:",
    ]
    if call.shared_buffer:
        body += [
            "            if name in shared:",
            "                kind = {n: getattr(onnx.TensorProto, t) for n, t, _ in outputs}[name]",
            "                value = shared[name]",
            f'                place = ("{device}", 0, kind, value.shape(), value.data_ptr())',
            "                binding.bind_output(name, *place)",
            "            else:",
            '                binding.bind_output(name, "cpu")',
        ]
    else:
        body += ['            binding.bind_output(name, "cpu")']
    body += [
        "        binding.synchronize_inputs()",
        "        session.run_with_iobinding(binding)",
        "        binding.synchronize_outputs()",
        "        made = dict(zip(names, binding.get_outputs()))"
        + (" | {n: v for n, v in shared.items() if n in names}" if call.shared_buffer else ""),
        "        results.append({name: read(name, value) for name, value in made.items()})",
    ]
    if call.shared_buffer:
        body.append(
            "        carried = {past: shared[past] for past in "
            f"({', '.join(map(quoted, CARRIED))})}}"
        )
    elif carry:
        pairs = ", ".join(f'{quoted(p)}: made["{n}"]' for p, n in carry.items())
        body.append(f"        carried = {{{pairs}}}")
    return [
        "\n".join(first),
        "\n".join(helper),
        reading,
        "\n".join([*options, *session, *body, *end]),
    ]


def _plugin_import(word: str) -> list[str]:
    """Lines that set ``library`` to the path of the plugin's library."""
    if "/" in word or not word.replace(".", "").isidentifier():
        return [f"library = {quoted(word)}"]
    return [f"import {word}", f"library = {word}.get_library_path()"]


def _plugin_options() -> list[str]:
    """Lines that load the library, and choose its first device."""
    return [
        "known = {device.ep_name for device in onnxruntime.get_ep_devices()}",
        'onnxruntime.register_execution_provider_library("plugin", library)',
        "devices = onnxruntime.get_ep_devices()",
        "devices = [device for device in devices if device.ep_name not in known]",
        "options.add_provider_for_devices(devices[:1], {})",
    ]


def _reading() -> str:
    """The source of a helper that reads an OrtValue of any type."""
    return '''def read(name, value):
    """The contents of an OrtValue of any type, as numbers."""
    kind = {n: t for n, t, _ in outputs}[name]
    word = {"BFLOAT16": "u2", "FLOAT8E4M3FN": "u1", "FLOAT16": "f2", "FLOAT": "f4"}.get(kind)
    word = word or {"INT8": "i1", "UINT8": "u1"}[kind]
    count = math.prod(value.shape())
    if value.device_name() == "cpu":
        raw = ctypes.string_at(value.data_ptr(), count * np.dtype(word).itemsize) if count else b""
    else:
        raw = value.numpy().tobytes()
    bits = np.frombuffer(raw, word).reshape(value.shape())
    if kind == "BFLOAT16":
        return (bits.astype("u4") << 16).view("f4")
    if kind == "FLOAT8E4M3FN":
        exponent, fraction = (bits >> 3 & 15).astype("f8"), (bits & 7).astype("f8")
        size = np.where(exponent, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
        size = np.where(bits & 127 == 127, np.nan, size)
        return np.where(bits >> 7, -size, size)
    return bits.copy()'''


def _tract_wheel(case: CaseRecord, result: ResultRecord) -> str:
    carry = carried_of(case.call)
    pairs = ", ".join(f'{quoted(p)}: results[-1]["{n}"]' for p, n in carry.items())
    lines = [
        "import os",
        "import tempfile",
        'os.environ.setdefault("RAYON_NUM_THREADS", "1")',
        'os.environ["RUST_LIB_BACKTRACE"] = "0"',
        "import tract",
        'path = os.path.join(tempfile.mkdtemp(), "model.onnx")',
        "onnx.save(model, path)",
        'words = {"float32": "f32", "float16": "f16", "int8": "i8", "uint8": "u8", "int32": "i32"}',
        'words["int64"] = "i64"',
        "results = []",
        "try:",
        *(["    carried = {}  # from one call to the next"] if carry else []),
        f"    for call in calls{' * 2' if runs_of(result) > 1 else ''}:",
        *(
            ["        if call is calls[0]:", "            carried = {}"]
            if runs_of(result) > 1 and carry
            else []
        ),
        f"        feeds = {'{**call, **carried}' if carry else 'call'}",
        "        loaded = tract.onnx().load(path)",
        "        for number in range(loaded.input_count()):",
        "            values = feeds[loaded.input_name(number)]",
        '            fact = ",".join([*map(str, values.shape), words[str(values.dtype)]])',
        "            loaded.set_input_fact(number, fact)",
        "        ready = loaded.into_model()",
        "        order = [ready.input_name(number) for number in range(ready.input_count())]",
        '        ready = tract.runtime_for_name("default").prepare(ready)',
        "        made = ready.run([feeds[name] for name in order])",
        "        made = [value.to_numpy() for value in made]",
        "        results.append({name: v for (name, _, _), v in zip(outputs, made)})",
        *([f"        carried = {{{pairs}}}"] if carry else []),
        "except tract.TractError as error:",
        '    print("rejected:", error)',
        f'    print("verdict: {verdict_if_rejected(case, result)}")',
        "    raise SystemExit",
    ]
    return "\n".join(lines)


def check_block(case: CaseRecord, result: ResultRecord) -> str:
    """The last block of a Python program: compares `results` with the expected elements."""
    lines = [
        "# output, call, index, expected value, error budget: the largest errors found",
        expected_list(case, result, "python"),
        f'verdict = "{verdict_if_right(case, result)}"',
    ]
    worse = "verdict" if verdict_if_right(case, result) == "accepted" else '"wrong"'
    if shapes := wrong_shapes(case, result):
        lines += ["shapes = [  # output, call, expected shape"]
        lines += [f"    ({quoted(output)}, {step}, {shape})," for output, step, shape in shapes]
        lines += [
            "]",
            "for name, call, shape in shapes:",
            "    got = results[call][name].shape",
            '    print(f"{name} of step {call} has shape {got} and should have {shape}")',
            f"    verdict = verdict if got == shape else {worse}",
        ]
    lines += [
        "for name, call, at, want, allowed in wanted:",
        "    values = results[call][name]",
        "    got = float(values[at]) if len(at) == values.ndim else math.nan",
        "    good = got == want or abs(got - want) <= allowed",
        '    found = f"got {got:.9g}, want {want:.9g}, allowed error {allowed:.3g}"',
        "    word = 'correct' if good else 'WRONG'",
        '    print(f"{name}{list(at)} of step {call}: {found}: {word}")',
        f"    verdict = verdict if good else {worse}",
    ]
    if runs_of(result) > 1:
        lines += [
            "for name in results[0]:",
            "    calls_made = len(results) // 2",
            "    pairs = zip(results[:calls_made], results[calls_made:])",
            "    if any(one[name].tobytes() != other[name].tobytes() for one, other in pairs):",
            '        print(f"two runs differ in {name}")',
            f"        verdict = {worse}",
        ]
    if is_of_the_variant(result):
        lines.append(f'print("{ELSEWHERE}")')
    return "\n".join([*lines, 'print("verdict:", verdict)'])
