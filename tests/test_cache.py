"""The cache of bundles: their content, its reproducibility, and its handling of damage.

Damage never leads to other content: a damaged bundle is noticed and created again, and a cache that
cannot be used gives one sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from shipped import shipped_cases

from conformance.base.kept import kept_for
from conformance.base.paths import CACHE_VARIABLE
from conformance.bundle import cache as bundles
from conformance.bundle.cache import (
    Bundle,
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


# Reproducibility


@each_call
def test_the_content_of_a_bundle_never_changes(
    fields: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = next(name for name, its in CALLS.items() if its is fields)
    assert content_digest(Call(**fields), tmp_path) == DIGESTS[name]


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


def test_only_the_generator_determines_the_content() -> None:
    """Each module that creating a bundle imports is in its digest, or listed here with a reason."""
    code = "import sys, conformance.bundle.cache; print(*sys.modules)"
    said, _ = python(code).communicate(timeout=60)
    elsewhere = {"harness"}  # how a step is checked, not its content
    parts = {name.split(".")[1] for name in said.split() if name.startswith("conformance.")}
    assert parts == {*bundles._SOURCES} | elsewhere


# Damage: the next use notices it and makes the whole bundle again


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle that another process has made, some time ago."""
    made = bundle_for(Call(), tmp_path / "cache")
    monkeypatch.setattr(bundles, "_own", {})
    time.sleep(0.02)  # more than a tick of the clock of files
    return made


def check_rebuilt(made: Bundle, before: dict[str, bytes], what: object = None) -> None:
    """Fails unless the bundle, which had the files ``before``, is noticed and made again."""
    assert not intact(made), what
    again = bundle_for(Call(), made.path.parents[2])
    assert again.path == made.path
    assert again.expected[0]["output"].value.any()
    assert [path.name for path in made.path.parent.iterdir()] == [made.path.name]
    assert not made.path.is_symlink()
    assert contents(made.path) == before, what


#: What may have become of the content of a file.
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "first byte": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "last byte": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "half": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"\n",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_any_file_is_noticed(made: Bundle, change: Callable[[bytes], bytes]) -> None:
    before = contents(made.path)
    for name, content in before.items():
        (made.path / name).write_bytes(change(content))
        check_rebuilt(made, before, name)


@pytest.mark.parametrize("instead", [None, os.mkdir, os.mkfifo], ids=["none", "folder", "pipe"])
def test_a_file_that_is_none_is_noticed(
    made: Bundle, instead: Callable[[Path], None] | None
) -> None:
    before = contents(made.path)
    for name in before:
        (made.path / name).unlink()
        if instead is not None:
            instead(made.path / name)
        check_rebuilt(made, before, name)


@pytest.mark.parametrize("instead", ["file", "link", "empty", "another"])
def test_what_is_in_the_place_of_a_bundle_is_replaced(made: Bundle, instead: str) -> None:
    before, aside = contents(made.path), made.path.parents[2] / "aside"
    made.path.rename(aside)
    match instead:
        case "file":
            made.path.touch()
        case "link":
            made.path.symlink_to(aside)
        case "empty":
            made.path.mkdir()
        case "another":
            write_bundle(Call(seed=1), made.path)
    check_rebuilt(made, before)
    assert contents(aside) == before


def test_one_changed_byte_anywhere_in_the_manifest_is_noticed(made: Bundle) -> None:
    """The manifest is what all other files are compared with, and it says where they are."""
    file = made.path / "manifest.json"
    content = file.read_bytes()
    for position in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 7
        file.write_bytes(damaged)
        assert not intact(made), content[position - 20 : position + 20]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "5", '{"files": []}', "[" * 10_000, "\xff", '{"files": {}}']
)
def test_a_manifest_that_is_something_else_is_noticed(made: Bundle, text: str) -> None:
    before = contents(made.path)
    (made.path / "manifest.json").write_text(text, encoding="latin-1")
    check_rebuilt(made, before)


def test_a_cache_that_cannot_be_written_gives_one_sentence(tmp_path: Path) -> None:
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


# Bundles that a runner rewrites, with digests that fit


def reseal(place: Path, **fields: Any) -> None:
    """Rewrites ``fields`` of a manifest, its digest included; its time stays."""
    manifest = place / "manifest.json"
    stat = manifest.stat()
    content = json.loads(manifest.read_text()) | fields
    del content["sha256"]
    manifest.write_bytes(bundles._sealed(content))
    os.utime(manifest, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("own", [False, True])
def test_a_bundle_that_is_rewritten_with_fitting_digests_is_made_anew(
    made: Bundle, own: bool
) -> None:
    before, root = contents(made.path), made.path.parents[2]
    guard(root)
    if own:
        shutil.rmtree(made.path)
        assert bundle_for(Call(), root).path == made.path
    oracle = made.path / "oracle.f64"
    zeros = bytes(oracle.stat().st_size)
    oracle.write_bytes(zeros)
    files = json.loads((made.path / "manifest.json").read_text())["files"]
    reseal(made.path, files={**files, oracle.name: [len(zeros), sha256(zeros).hexdigest()]})
    check_rebuilt(made, before)


#: Fields of a manifest that leave files unread, or outputs unjudged.
FORGED: dict[str, dict[str, Any]] = {
    "no files": {"files": {}},
    "no oracle": {"oracle": []},
    "no steps": {"steps": []},
    "neither": {"steps": [], "oracle": []},
    "unjudged": {"unjudged": "undefined"},
    "unjudged without oracle": {"unjudged": "undefined", "oracle": []},
    "empty tensors": {"oracle": "empty"},
    "another field": {"forged": True},
}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("name", FORGED)
def test_a_manifest_with_a_fitting_digest_is_not_trusted(
    made: Bundle, name: str, guarded: bool
) -> None:
    """Unless it is whole, and from before the first runner: it may list no file with its time."""
    before, fields = contents(made.path), FORGED[name]
    if guarded:
        guard(made.path.parents[2])
    elif name in ("another field", "unjudged without oracle"):
        return  # which is whole
    if name == "empty tensors":
        layout = json.loads(before["manifest.json"])["oracle"]
        fields = {"oracle": [entry | {"shape": [0]} for entry in layout]}
    reseal(made.path, **fields)
    check_rebuilt(made, before)


@pytest.mark.parametrize("level", ["bundle", "folder", "all"])
@pytest.mark.parametrize("linked", [False, True], ids=["renamed", "linked"])
def test_an_old_folder_that_was_not_there_at_the_start_is_not_trusted(
    tmp_path: Path, made: Bundle, level: str, linked: bool
) -> None:
    """A runner has forged a copy of the cache in an earlier run, and puts it in place now."""
    root = tmp_path / "cache"
    shutil.copytree(root, tmp_path / "forged")
    place = {"bundle": made.path, "folder": made.path.parent, "all": root / "bundles"}[level]
    forgery = tmp_path / "forged" / place.relative_to(root)
    reseal(tmp_path / "forged" / made.path.relative_to(root), forged=True)
    time.sleep(0.02)  # more than a tick of the clock of files
    guard(root)
    place.rename(tmp_path / "aside")
    if linked:
        place.symlink_to(forgery)
    else:
        forgery.rename(place)
    assert "forged" not in (bundle_for(Call(), root).path / "manifest.json").read_text()


@pytest.mark.parametrize("name", ["model.onnx", "test_data_set_0", "test_data_set_0/input_0.pb"])
def test_what_is_replaced_and_put_back_is_noticed(tmp_path: Path, made: Bundle, name: str) -> None:
    """Another runner may have read what was there meanwhile."""
    assert untouched(made)
    (made.path / name).rename(tmp_path / "aside")
    (tmp_path / "aside").rename(made.path / name)
    assert not untouched(made)
