"""The cache of bundles: their content, its reproducibility, and its handling of damage.

Damage never leads to other content: a damaged bundle is noticed and created again, and a cache that
cannot be used gives one sentence.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from shipped import shipped_cases

from conformance.base.array_types import NUMPY
from conformance.base.kept import kept_for
from conformance.base.paths import CACHE_VARIABLE, cache_root
from conformance.bundle import cache as bundles
from conformance.bundle.cache import (
    Bundle,
    BundleError,
    CacheSize,
    bundle_for,
    cache_size,
    clear_cache,
    content_digest,
    digest_of,
    guard,
    intact,
    untouched,
    write_bundle,
)
from conformance.case.call import Call
from conformance.case.tensors import steps_of

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary prompt": {
        "sequence_length": 5,
        "batch_size": 2,
        "rotary": "half_split",
        "position_ids": True,
    },
    "packed ragged float16 decode": {
        "dtype": "float16",
        "past_sequence_length": 9,
        "batch_size": 2,
        "total_sequence_lengths": (10, 4),
        "key_value": "packed",
    },
    "bfloat16 loop in a shared buffer": {
        "dtype": "bfloat16",
        "loop": (3, 1, 1),
        "max_sequence_length": 8,
        "shared_buffer": True,
        "local_window_size": 2,
    },
    "borrowed cache": {
        "key_value": "zero_length",
        "past_sequence_length": 8,
        "presents": "none",
        "softcap": 2.0,
        "attention_bias": "one_head",
        "head_sink": True,
    },
    "quantised cache": {
        "dtype": "float16",
        "cache_dtype": "int8",
        "past_sequence_length": 4,
        "k_quant_type": "PER_TENSOR",
        "v_quant_type": "PER_CHANNEL",
        "kv_cache_bit_width": 8,
        "inputs": {"k_scale": "connected", "v_scale": "connected"},
    },
}

#: Digests of what runners read of these calls. A change here changes every case: new numbers, a
#: new model or a new oracle. That may be intended; then earlier results belong to other bundles.
DIGESTS = {
    "plain": "5d60d21fc0f9839ec90d07f3f834c7763077a0240d70c82857e1b130d80db38c",
    "rotary prompt": "952e596814a8bb3b058cedf879cda6e9dec5f43874772a3ee9d4dd2125c1dc96",
    "packed ragged float16 decode": (
        "83db09977503405bf21d99d88c363e145ee5b94b17306f0dfea961da16d09ae8"
    ),
    "bfloat16 loop in a shared buffer": (
        "9336870dc9e4ac5cc2be71f608a46c5d357072bce985544856993eb3c2635554"
    ),
    "borrowed cache": "fda7eeb5383fa4720adde5fb569a21459bd6f0aae2d06d58d25540712d7a3476",
    "quantised cache": "d31580f01c9797e21184571566645e578fb434250c9fb3c23d67b6ec3e754b00",
}

each_call = pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def files_of(made: Bundle) -> list[str]:
    return sorted(contents(made.path))


def python(code: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """A process that runs ``code``; returns its standard output."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


# The content of a bundle


def test_the_layout_is_that_of_onnxs_backend_tests(tmp_path: Path) -> None:
    made = bundle_for(Call(past_sequence_length=3), tmp_path)
    assert files_of(made) == [
        "case.json",
        "manifest.json",
        "model.onnx",
        "oracle.f64",
        "oracle.where.z",
        *(f"test_data_set_0/input_{position}.pb" for position in range(7)),
        *(f"test_data_set_0/output_{position}.pb" for position in range(3)),
    ]
    assert made.unjudged is None
    digest = digest_of(Call(past_sequence_length=3))
    assert made.path == tmp_path / "bundles" / digest[:2] / digest


def test_a_loop_has_a_data_set_for_each_call(tmp_path: Path) -> None:
    made = bundle_for(Call(loop=(2, 1, 1)), tmp_path)
    sets = {file.partition("/")[0] for file in files_of(made) if "/" in file}
    assert sets == {"test_data_set_0", "test_data_set_1", "test_data_set_2"}
    assert len(list(made.path.glob("test_data_set_2/input_*.pb"))) == 7
    assert len(list(made.path.glob("test_data_set_2/output_*.pb"))) == 3


@each_call
def test_onnx_reads_every_file_as_the_graph_declares_it(fields: dict[str, Any]) -> None:
    made = bundle_for(Call(**fields))
    model = onnx.load(str(made.path / "model.onnx"))
    onnx.checker.check_model(model)
    for step in steps_of(Call(**fields)):
        folder = made.path / f"test_data_set_{step.index}"
        sides = {"input": model.graph.input, "output": model.graph.output}
        if made.unjudged is not None:
            sides["output"] = []  # type: ignore[assignment]
        assert len(list(folder.iterdir())) == sum(map(len, sides.values()))
        for side, values in sides.items():
            for position, value in enumerate(values):
                tensor = onnx.load_tensor(str(folder / f"{side}_{position}.pb"))
                declared = value.type.tensor_type
                assert tensor.name == value.name
                assert tensor.data_type == declared.elem_type
                assert len(tensor.dims) == len(declared.shape.dim), value.name
                for dim, size in zip(declared.shape.dim, tensor.dims, strict=True):
                    assert dim.WhichOneof("value") != "dim_value" or dim.dim_value == size
                assert tensor.HasField("raw_data")


def test_inputs_and_outputs_match_the_step(tmp_path: Path) -> None:
    call = Call(sequence_length=3, batch_size=2, rotary="interleaved", dtype="float16")
    made = bundle_for(call, tmp_path)
    (step,), (plan,) = steps_of(call), made.steps
    assert list(plan.files) == [tensor.name for tensor in step.inputs if tensor.connected]
    for tensor in step.inputs:
        if tensor.connected:
            array = numpy_helper.to_array(
                onnx.load_tensor(str(made.path / plan.files[tensor.name]))
            )
            assert (array.shape, array.dtype) == (tensor.shape, NUMPY[tensor.dtype])


def test_outputs_are_the_oracles_values_rounded_and_zero_where_undefined(tmp_path: Path) -> None:
    call = Call(sequence_length=4, batch_size=2, total_sequence_lengths=(4, 2), dtype="float16")
    made = bundle_for(call, tmp_path)
    (expected,) = made.expected
    assert list(expected) == ["output", "present_key", "present_value"]
    for position, (name, wanted) in enumerate(expected.items()):
        file = made.path / f"test_data_set_0/output_{position}.pb"
        array = numpy_helper.to_array(onnx.load_tensor(str(file)))
        undefined = np.isnan(wanted.unit)
        assert wanted.dtype == "float16"
        assert array.dtype == np.float16
        assert array.shape == wanted.value.shape == wanted.unit.shape
        assert undefined.any()
        assert not array[undefined].any(), name
        exact = wanted.value[~undefined].astype(np.float16)
        assert np.array_equal(array[~undefined], exact)


def test_the_past_of_a_later_call_is_the_oracles_present_of_the_one_before(tmp_path: Path) -> None:
    """For other tools; a run uses the runtime's own."""
    made = bundle_for(Call(loop=(2, 1), key_value="packed"), tmp_path)
    past = onnx.load_tensor(str(made.path / "test_data_set_1/input_1.pb"))
    present = onnx.load_tensor(str(made.path / "test_data_set_0/output_1.pb"))
    assert (past.name, present.name) == ("past_key", "present_key")
    assert past.raw_data == present.raw_data


def test_a_loop_is_judged_with_the_errors_of_its_own_presents(tmp_path: Path) -> None:
    """Rows that a step carries over from the one before have the errors of that one."""
    first, second = bundle_for(Call(loop=(3, 1), rotary="half_split"), tmp_path).expected
    before, after = first["present_key"].unit, second["present_key"].unit
    assert (before > 0).all()
    assert np.array_equal(after[:, :, :3], before)


def test_plans_list_what_is_read_carried_and_shared(tmp_path: Path) -> None:
    first, second = bundle_for(Call(**CALLS["bfloat16 loop in a shared buffer"]), tmp_path).steps[
        :2
    ]
    carry = {"past_key": "present_key", "past_value": "present_value"}
    share = {"present_key": "past_key", "present_value": "past_value"}
    assert (first.carry, second.carry) == ({}, carry)
    assert first.share == second.share == share
    assert first.files.keys() - second.files.keys() == {"past_key", "past_value"}
    assert second.files["query"] == "test_data_set_1/input_0.pb"
    plain = bundle_for(Call(), tmp_path).steps[0]
    assert (plain.carry, plain.share) == ({}, {})


def test_the_bundle_contains_the_case(tmp_path: Path) -> None:
    made = bundle_for(Call(softcap=2.0, dtype="float16"), tmp_path)
    said = json.loads((made.path / "case.json").read_text())
    assert (said["softcap"], said["dtype"], said["scale"]) == (2.0, "float16", None)


def test_an_undefined_call_has_no_values_and_a_reason(tmp_path: Path) -> None:
    made = bundle_for(Call(num_heads=3), tmp_path)
    assert made.expected == ({},)
    assert made.unjudged is not None
    assert made.unjudged.startswith("num_heads 3 must be a positive multiple of kv_num_heads 2")
    assert not list(made.path.rglob("output_*.pb"))


@pytest.mark.parametrize("cache_dtype", ["int8", "uint8", "float8e4m3fn"])
def test_expected_outputs_of_a_quantised_cache_have_its_dtype(
    cache_dtype: Any, tmp_path: Path
) -> None:
    bits = 4 if cache_dtype == "uint8" else 8
    kinds: dict[str, Any] = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_CHANNEL"}
    call = Call(past_sequence_length=3, cache_dtype=cache_dtype, kv_cache_bit_width=bits, **kinds)
    made = bundle_for(call, tmp_path)
    (expected,) = made.expected
    assert {name: wanted.dtype for name, wanted in expected.items()} == {
        "output": "float32",
        "present_key": cache_dtype,
        "present_value": cache_dtype,
    }
    assert expected["present_key"].value.shape == (1, 2, 4, 8 if bits == 4 else 16)


def test_a_loop_carries_codes_and_their_errors(tmp_path: Path) -> None:
    """A key that may have either of two codes stays uncertain in the later steps."""
    kinds: dict[str, Any] = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    call = Call(
        dtype="float16", cache_dtype="int8", rotary="half_split", loop=(8, 1), seed=5, **kinds
    )
    first, second = (step["present_key"] for step in bundle_for(call, tmp_path).expected)
    np.testing.assert_array_equal(second.value[:, :, :8], first.value)
    np.testing.assert_allclose(second.unit[:, :, :8], first.unit)
    assert set(np.unique(first.unit)) == {0.0, 1.0}


def test_a_loop_that_becomes_undefined_has_no_values(tmp_path: Path) -> None:
    """The second step is beyond the buffer: the first is not judged either."""
    made = bundle_for(Call(loop=(4, 4, 1), max_sequence_length=6), tmp_path)
    assert made.unjudged is not None
    assert made.expected == ({}, {}, {})
    assert not list(made.path.rglob("output_*.pb"))
    assert not (made.path / "test_data_set_2/input_3.pb").exists()  # no past for the first step


def test_onnxruntime_runs_a_bundle_unchanged(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    made = bundle_for(Call(**CALLS["rotary prompt"]), tmp_path)
    tensors = [onnx.load_tensor(str(file)) for file in made.path.glob("*/input_*.pb")]
    session = onnxruntime.InferenceSession(
        str(made.path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    results = session.run(None, {t.name: numpy_helper.to_array(t) for t in tensors})
    for position, result in enumerate(results):
        file = made.path / f"test_data_set_0/output_{position}.pb"
        wanted = numpy_helper.to_array(onnx.load_tensor(str(file)))
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


# Reproducibility


@each_call
def test_the_content_of_a_bundle_never_changes(
    fields: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = next(name for name, its in CALLS.items() if its is fields)
    assert content_digest(Call(**fields), tmp_path) == DIGESTS[name]


def test_another_process_makes_the_same_bytes(tmp_path: Path) -> None:
    """With another hash seed, locale, time zone and number of threads."""
    code = (
        "import json, sys; from pathlib import Path; from conformance.bundle.cache import *\n"
        "from conformance.case.call import Call\n"
        "for text in sys.argv[2:]: bundle_for(Call.model_validate_json(text), Path(sys.argv[1]))\n"
    )
    here, there = tmp_path / "here", tmp_path / "there"
    calls = [Call(**fields) for fields in CALLS.values()]
    process = python(
        code,
        there,
        *(call.model_dump_json() for call in calls),
        PYTHONHASHSEED="7",
        LC_ALL="C",
        TZ="Asia/Kathmandu",
        OMP_NUM_THREADS="1",
    )
    for call in calls:
        bundle_for(call, here)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert contents(here) == contents(there)
    assert len(contents(here)) > 50


def test_every_field_changes_the_bundle() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"dtype": "float16"},
        {"seed": 1},
        {"softcap": 0.5},
        {"softcap": float("inf")},
        {"softcap": float("nan")},
        {"attributes": {"scale": 1}},
        {"attributes": {"scale": 1.0}},
        {"attributes": {"scale": float("inf")}},
        {"attributes": {"scale": float("-inf")}},
        {"attributes": {"scale": None}},
        {"inputs": {"query": {"data": [float("inf")]}}},
        {"inputs": {"query": {"data": [float("nan")]}}},
        {"inputs": {"query": {"data": [0.0]}}},
        {"inputs": {"query": {"data": [-0.0]}}},
        {"inputs": {"k_norm_weight": "omitted"}},
        {"outputs": {"output_qk": "omitted"}},
        {"loop": (1, 1)},
    ]
    assert len({digest_of(Call(**fields)) for fields in others}) == len(others)


def test_every_shipped_case_has_its_own_bundle() -> None:
    cases = shipped_cases()
    assert len({digest_of(case.call, case.relation) for case in cases}) == len(cases)


def test_a_changed_generator_changes_the_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(Call())
    monkeypatch.setattr(bundles, "generator_digest", lambda: "another")
    assert digest_of(Call()) != before


def test_only_the_generator_determines_the_content() -> None:
    """Each module that creating a bundle imports is in its digest, or listed here with a reason."""
    code = "import sys, conformance.bundle.cache; print(*sys.modules)"
    said, _ = python(code).communicate(timeout=60)
    elsewhere = {"harness"}  # how a step is checked, not its content
    parts = {name.split(".")[1] for name in said.split() if name.startswith("conformance.")}
    assert parts == {*bundles._SOURCES} | elsewhere


# Damage


@pytest.fixture
def made(tmp_path: Path) -> Bundle:
    return bundle_for(Call(sequence_length=2), tmp_path / "cache")


def rebuilt(made: Bundle, before: dict[str, bytes]) -> bool:
    """Whether the next use notices the damage and creates the whole bundle again."""
    assert not intact(made)
    again = bundle_for(Call(sequence_length=2), made.path.parents[2])
    assert again.path == made.path
    assert [path.name for path in made.path.parent.iterdir()] == [made.path.name]
    return contents(made.path) == before


def test_an_intact_bundle_is_reused(made: Bundle) -> None:
    times = {file: file.stat().st_mtime_ns for file in made.path.rglob("*")}
    again = bundle_for(Call(sequence_length=2), made.path.parents[2])
    assert intact(made)
    assert times == {file: file.stat().st_mtime_ns for file in made.path.rglob("*")}
    assert again.steps == made.steps
    assert again.expected[0].keys() == made.expected[0].keys()
    for name, wanted in made.expected[0].items():
        assert np.array_equal(again.expected[0][name].value, wanted.value)
        assert np.array_equal(again.expected[0][name].unit, wanted.unit, equal_nan=True)


def test_one_changed_byte_in_any_file_is_noticed(made: Bundle) -> None:
    before = contents(made.path)
    for name, content in before.items():
        for position in (0, len(content) // 2, len(content) - 1):
            damaged = bytearray(content)
            damaged[position] ^= 1
            (made.path / name).write_bytes(damaged)
            assert rebuilt(made, before), (name, position)


def test_one_changed_byte_anywhere_in_the_manifest_is_noticed(made: Bundle) -> None:
    """The manifest is what all other files are compared with, and it says where they are."""
    file = made.path / "manifest.json"
    content = file.read_bytes()
    for position in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 7
        file.write_bytes(damaged)
        assert not intact(made), content[position - 20 : position + 20]
    file.write_bytes(content)
    assert intact(made)


@pytest.mark.parametrize("length", [0, 0.5, 0.999], ids=["empty", "half", "almost whole"])
def test_a_shortened_file_is_noticed(made: Bundle, length: float) -> None:
    before = contents(made.path)
    for name, content in before.items():
        (made.path / name).write_bytes(content[: int(len(content) * length)])
        assert rebuilt(made, before), name


def test_a_longer_file_is_noticed(made: Bundle) -> None:
    before = contents(made.path)
    for name, content in before.items():
        (made.path / name).write_bytes(content + b"\n")
        assert rebuilt(made, before), name


def test_a_missing_file_is_noticed(made: Bundle) -> None:
    before = contents(made.path)
    for name in before:
        (made.path / name).unlink()
        assert rebuilt(made, before), name


@pytest.mark.parametrize("linked", [False, True], ids=["file", "link"])
def test_a_bundle_that_is_no_folder_is_replaced(made: Bundle, linked: bool) -> None:
    before = contents(made.path)
    aside = made.path.parents[2] / "aside"
    made.path.rename(aside)
    if linked:
        made.path.symlink_to(aside)
    else:
        made.path.touch()
    assert rebuilt(made, before)
    assert not made.path.is_symlink()
    assert contents(aside) == before


def test_a_file_that_is_a_folder_is_noticed(made: Bundle) -> None:
    before = contents(made.path)
    for name in ("manifest.json", "model.onnx", "test_data_set_0/input_0.pb"):
        (made.path / name).unlink()
        (made.path / name).mkdir()
        assert rebuilt(made, before), name


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "5", '{"files": []}', "[" * 10_000, "\xff", '{"files": {}}']
)
def test_a_manifest_that_is_something_else_is_noticed(made: Bundle, text: str) -> None:
    before = contents(made.path)
    (made.path / "manifest.json").write_text(text, encoding="latin-1")
    assert rebuilt(made, before)


def test_a_partially_written_bundle_is_replaced(tmp_path: Path) -> None:
    """As after a power failure: the folder exists, its files do not, or they are empty."""
    call = Call()
    whole = contents(bundle_for(call, tmp_path / "whole").path)
    digest = digest_of(call)
    for number, kept in enumerate(({}, {"model.onnx": b""}, dict(list(whole.items())[:5]))):
        place = tmp_path / str(number) / "bundles" / digest[:2] / digest
        for name, content in kept.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        place.mkdir(parents=True, exist_ok=True)
        assert contents(bundle_for(call, tmp_path / str(number)).path) == whole


def test_leftovers_of_a_killed_process_are_not_a_bundle(tmp_path: Path) -> None:
    call, digest = Call(), digest_of(Call())
    aside = tmp_path / "bundles" / digest[:2] / f".{digest}.{'0123' * 8}"
    aside.mkdir(parents=True)
    write_bundle(call, aside)
    assert cache_size(tmp_path).bundles == 0
    made = bundle_for(call, tmp_path)
    assert made.path.name == digest
    assert cache_size(tmp_path).bundles == 1
    clear_cache(tmp_path)
    assert not aside.exists()


def test_no_temporary_files_are_left_beside_a_bundle(made: Bundle) -> None:
    assert list(made.path.parent.iterdir()) == [made.path]


# Concurrency

MAKE_TWENTY = """
import sys
from pathlib import Path
from conformance.bundle.cache import bundle_for
from conformance.case.call import Call
calls = [Call(seed=seed, dtype="float16") for seed in range(20)]
print("ready", flush=True)
sys.stdin.readline()
for call in calls:
    made = bundle_for(call, Path(sys.argv[1]))
    wanted = made.expected[0]["output"]
    assert made.unjudged is None and wanted.value.shape == wanted.unit.shape == (1, 1, 64)
    print(made.path.name, flush=True)
"""


def start_together(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def test_four_processes_can_create_the_same_bundles_at_once(tmp_path: Path) -> None:
    processes = [python(MAKE_TWENTY, tmp_path) for _ in range(4)]
    start_together(processes)
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    names = [digest_of(Call(seed=seed, dtype="float16")) for seed in range(20)]
    assert said == ["".join(f"{name}\n" for name in names)] * 4
    assert sorted(path.name for path in (tmp_path / "bundles").glob("*/*")) == sorted(names)
    for seed in range(20):
        write_bundle(Call(seed=seed, dtype="float16"), tmp_path / str(seed))
        assert contents(tmp_path / str(seed)) == contents(
            tmp_path / "bundles" / names[seed][:2] / names[seed]
        )


def test_the_cache_may_be_deleted_while_it_is_in_use(tmp_path: Path) -> None:
    again_and_again = MAKE_TWENTY.replace("for call in calls:", "for call in calls * 5:")
    made = 0
    with python(again_and_again, tmp_path) as process:
        start_together([process])
        assert process.stdout is not None
        for made, _ in enumerate(process.stdout, 1):
            if made % 5 == 0:
                clear_cache(tmp_path)
    assert process.returncode == 0
    assert made == 100


# A cache that cannot be used


def sentence(root: Path) -> str:
    with pytest.raises(BundleError) as caught:
        bundle_for(Call(), root)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


def test_a_cache_path_below_a_file_gives_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert sentence(file / "cache") == (
        f"The bundle cache cannot be written: {file}/cache: Not a directory."
        f" Set {CACHE_VARIABLE} to a writable folder with enough space."
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_full_disk_gives_one_sentence_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write = bundles.write_new

    def full(name: str, content: bytes, **more: Any) -> None:
        if name == "model.onnx":
            write(name, content[:10], **more)
            raise OSError(number, os.strerror(number))
        write(name, content, **more)

    monkeypatch.setattr(bundles, "write_new", full)
    assert f"cannot be written: {tmp_path}: {os.strerror(number)}." in sentence(tmp_path)
    assert contents(tmp_path) == {}
    monkeypatch.undo()
    assert intact(bundle_for(Call(), tmp_path))


def test_a_file_size_limit_gives_one_sentence(tmp_path: Path) -> None:
    """A real error in the middle of a file: no file may grow beyond 300 bytes."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from conformance.bundle.cache import bundle_for, BundleError\n"
        "from conformance.case.call import Call\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "try: bundle_for(Call(), Path(sys.argv[1]))\n"
        "except BundleError as error: print(error)\n"
    )
    said, _ = python(code, tmp_path).communicate(timeout=60)
    assert said == (
        f"The bundle cache cannot be written: {tmp_path}: File too large."
        f" Set {CACHE_VARIABLE} to a writable folder with enough space.\n"
    )
    assert contents(tmp_path) == {}


def test_a_cache_that_loses_data_gives_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is never as long as what was written, however often it is tried."""

    def lose(call: Call, folder: Path, *more: Any) -> dict[str, bytes]:
        files = write_bundle(call, folder, *more)
        os.truncate(folder / "model.onnx", 3)
        return files

    monkeypatch.setattr(bundles, "write_bundle", lose)
    assert sentence(tmp_path) == (
        f"Files written to the bundle cache do not stay intact: {tmp_path}."
        f" Set {CACHE_VARIABLE} to another folder."
    )


def test_a_read_only_cache_still_works(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *rest: Any, **more: Any) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert bundle_for(Call(sequence_length=2), made.path.parents[2]).path == made.path


# Its location, its size, and clearing it


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_elsewhere")
def test_the_cache_is_in_the_platforms_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_root().is_relative_to(tmp_path)
    assert cache_root().name == "gqa-conformance"
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert cache_root().name == "gqa-conformance"


@pytest.mark.usefixtures("_elsewhere")
def test_the_environment_variable_sets_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CACHE_VARIABLE == "GQA_CACHE"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.setenv(CACHE_VARIABLE, "below/here")
    assert cache_root() == tmp_path / "below/here"
    made = bundle_for(Call())
    assert made.path.is_absolute()  # a runner gets an absolute path
    assert made.path.is_relative_to(tmp_path / "below/here")


def test_tests_do_not_touch_the_users_cache(shared_cache: Path) -> None:
    assert cache_root() == shared_cache


def test_the_cache_size_is_reported(tmp_path: Path) -> None:
    assert cache_size(tmp_path) == CacheSize(0, 0)
    for seed in range(3):
        bundle_for(Call(seed=seed), tmp_path)
    held = cache_size(tmp_path)
    assert held == CacheSize(3, sum(map(len, contents(tmp_path / "bundles").values())))


def test_only_changed_folders_of_the_cache_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_for(Call(), tmp_path)
    held, walk, walked = cache_size(tmp_path), os.walk, []
    monkeypatch.setattr(os, "walk", lambda folder: walked.append(folder.name) or walk(folder))
    assert cache_size(tmp_path) == held
    assert not walked
    added = bundle_for(Call(seed=1), tmp_path)
    assert cache_size(tmp_path).bundles == held.bundles + 1
    assert walked == [added.path.parent.name]
    for damaged in ("[", "{}", '{"00": 1}', "[[1]]"):
        (tmp_path / "kept" / "sizes.json").write_text(damaged)
        assert cache_size(tmp_path).bundles == held.bundles + 1


def test_clearing_follows_a_link_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "bundles").symlink_to(tmp_path / "disk")
    bundle_for(Call(), tmp_path / "cache")
    assert clear_cache(tmp_path / "cache").bundles == 1
    assert not contents(tmp_path / "disk")
    assert os.listdir(tmp_path / "cache") == ["bundles"]


def test_clearing_removes_what_the_suite_keeps_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    bundle_for(Call(), tmp_path)
    kept_for("0" * 64, lambda: 1)
    (tmp_path / "shaders" / "mesa_shader_cache" / "0a").mkdir(parents=True)
    (tmp_path / "shaders" / f"built-{'0' * 16}").touch()
    held = cache_size(tmp_path)
    for name in ("notes.txt", "inputs/thesis.txt", "shaders/mine", "kept/ab/notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("mine")
    mine = {name: text for name, text in contents(tmp_path).items() if text == b"mine"}
    assert (len(mine), cache_size(tmp_path)) == (4, held)
    assert clear_cache(tmp_path) == held
    assert contents(tmp_path) == mine
    assert not (tmp_path / "bundles").exists()
    assert clear_cache(tmp_path) == CacheSize(0, 0)
    assert clear_cache(tmp_path / "nowhere") == CacheSize(0, 0)


def test_a_cache_that_cannot_be_cleared_gives_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_for(Call(), tmp_path)

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(BundleError) as caught:
        clear_cache(tmp_path)
    assert str(caught.value) == (
        f"The cache cannot be removed: {tmp_path}/bundles: Permission denied."
    )
    assert cache_size(tmp_path).bundles == 1


def test_the_digests_of_a_manifest_are_those_of_the_files(made: Bundle) -> None:
    """So another tool can check a bundle with nothing but SHA-256."""
    said = json.loads((made.path / "manifest.json").read_text())
    found = contents(made.path)
    del found["manifest.json"]
    assert said["files"] == {
        name: [len(content), hashlib.sha256(content).hexdigest()] for name, content in found.items()
    }


# Bundles that a runner rewrites


def forge(made: Bundle) -> None:
    """Rewrites a bundle, its digests included, so that other values are expected."""
    for file in made.path.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes())  # the same content, changed now
    oracle = made.path / "oracle.f64"
    oracle.write_bytes(bytes(oracle.stat().st_size))
    manifest = json.loads((made.path / "manifest.json").read_text())
    del manifest["sha256"]
    content = oracle.read_bytes()
    manifest["files"]["oracle.f64"] = [len(content), hashlib.sha256(content).hexdigest()]
    (made.path / "manifest.json").write_bytes(bundles._sealed(manifest))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundles, "_guarded", {})
        assert bundles._open(made.path) is not None  # the digests fit


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle that another process has made, some time ago."""
    made = bundle_for(Call(), tmp_path)
    monkeypatch.setattr(bundles, "_own", {})
    time.sleep(0.02)  # more than a tick of the clock of files
    return made


def test_a_bundle_that_is_rewritten_with_fitting_digests_is_made_anew(
    tmp_path: Path, elsewhere: Bundle
) -> None:
    guard(tmp_path)
    assert intact(elsewhere)
    good = elsewhere.expected[0]["output"].value
    forge(elsewhere)
    assert np.array_equal(bundle_for(Call(), tmp_path).expected[0]["output"].value, good)


def test_a_bundle_that_this_process_has_made_may_be_new(tmp_path: Path) -> None:
    guard(tmp_path)
    made = bundle_for(Call(), tmp_path)
    before = (made.path / "manifest.json").stat().st_mtime_ns
    assert intact(made)
    bundle_for(Call(), tmp_path)
    assert (made.path / "manifest.json").stat().st_mtime_ns == before
    forge(made)
    assert np.any(bundle_for(Call(), tmp_path).expected[0]["output"].value)


def test_a_bundle_that_another_process_makes_meanwhile_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard(tmp_path)
    made = bundle_for(Call(), tmp_path)
    monkeypatch.setattr(bundles, "_own", {})
    before = (made.path / "manifest.json").stat().st_ino
    assert bundle_for(Call(), tmp_path).path == made.path
    assert (made.path / "manifest.json").stat().st_ino == before


def test_a_bundle_in_the_place_of_another_is_noticed(tmp_path: Path, elsewhere: Bundle) -> None:
    other = bundle_for(Call(seed=1), tmp_path)
    shutil.rmtree(elsewhere.path)
    shutil.copytree(other.path, elsewhere.path)
    assert not intact(elsewhere)


def reseal(place: Path, **fields: Any) -> None:
    """Rewrites ``fields`` of a manifest, its digest included."""
    manifest = json.loads((place / "manifest.json").read_text()) | fields
    del manifest["sha256"]
    (place / "manifest.json").write_bytes(bundles._sealed(manifest))


def empty_oracle(made: Bundle) -> list[dict[str, Any]]:
    """The layout of an oracle that expects empty tensors."""
    layout = json.loads((made.path / "manifest.json").read_text())["oracle"]
    return [entry | {"shape": [0]} for entry in layout]


def test_a_manifest_that_alone_was_rewritten_is_not_trusted(
    tmp_path: Path, elsewhere: Bundle
) -> None:
    """Whatever it says: it lists no file whose time would show the change."""
    guard(tmp_path)
    for fields in (
        {"files": {}, "oracle": empty_oracle(elsewhere)},
        {"unjudged": "undefined", "oracle": []},
        {"forged": True},
    ):
        manifest = elsewhere.path / "manifest.json"
        kept, stat = manifest.read_bytes(), manifest.stat()
        reseal(elsewhere.path, **fields)
        os.utime(manifest, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert bundles._open(elsewhere.path) is None, fields
        assert not intact(elsewhere)
        (found,) = bundle_for(Call(), tmp_path).expected
        assert {name: wanted.value.shape for name, wanted in found.items()} == {
            name: wanted.value.shape for name, wanted in elsewhere.expected[0].items()
        }
        assert found["output"].value.any()
        manifest.write_bytes(kept)
        bundles._own.clear()


@pytest.mark.parametrize("level", ["bundle", "folder", "all"])
@pytest.mark.parametrize("linked", [False, True], ids=["renamed", "linked"])
def test_an_old_folder_that_was_not_there_at_the_start_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, linked: bool
) -> None:
    """A runner has forged a copy of the cache in an earlier run, and puts it in place now."""
    root = tmp_path / "cache"
    made = bundle_for(Call(), root)
    shutil.copytree(root, tmp_path / "forged")
    place = {"bundle": made.path, "folder": made.path.parent, "all": root / "bundles"}[level]
    forgery = tmp_path / "forged" / place.relative_to(root)
    reseal(tmp_path / "forged" / made.path.relative_to(root), forged=True)
    monkeypatch.setattr(bundles, "_own", {})
    time.sleep(0.02)  # more than a tick of the clock of files
    guard(root)
    place.rename(tmp_path / "aside")
    if linked:
        place.symlink_to(forgery)
    else:
        forgery.rename(place)
    assert bundles._open(made.path) is None
    assert "forged" not in (bundle_for(Call(), root).path / "manifest.json").read_text()


@pytest.mark.parametrize(
    "fields",
    [
        {"files": {}},
        {"oracle": []},
        {"steps": []},
        {"steps": [], "oracle": []},
        {"unjudged": "undefined"},
        {"oracle": "empty"},
    ],
    ids=str,
)
def test_a_manifest_must_be_whole(made: Bundle, fields: dict[str, Any]) -> None:
    """All files that the steps need, and all outputs of each, as large as the oracle is."""
    if fields == {"oracle": "empty"}:
        fields = {"oracle": empty_oracle(made)}
    before = contents(made.path)
    reseal(made.path, **fields)
    assert rebuilt(made, before)


@pytest.mark.parametrize("name", ["model.onnx", "test_data_set_0"])
def test_what_is_replaced_and_put_back_is_noticed(
    tmp_path: Path, elsewhere: Bundle, name: str
) -> None:
    """Another runner may have read what was there meanwhile."""
    assert untouched(elsewhere)
    (elsewhere.path / name).rename(tmp_path / "aside")
    (tmp_path / "aside").rename(elsewhere.path / name)
    assert not untouched(elsewhere)


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx"])
def test_a_file_that_is_a_pipe_is_noticed(tmp_path: Path, elsewhere: Bundle, name: str) -> None:
    (elsewhere.path / name).unlink()
    os.mkfifo(elsewhere.path / name)
    assert not intact(elsewhere)
    assert intact(bundle_for(Call(), tmp_path))


def test_a_change_of_an_input_is_noticed_without_reading(elsewhere: Bundle) -> None:
    assert untouched(elsewhere)
    file = elsewhere.path / "test_data_set_0" / "input_0.pb"
    stat = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not untouched(elsewhere)
    file.unlink()
    assert not untouched(elsewhere)
