"""The execution provider that cases run on: one that is built into the wheel, or a plugin.

A provider makes sessions that use only this provider, without a fallback to another, and describes
itself.
"""

from __future__ import annotations

import glob
import importlib
import os
import re
import sys
from typing import Any

import ort_availability
from availability import Unavailable, first_line, pip, processor_name

CPU = ort_availability.PROVIDERS["cpu"]
CUDA = ort_availability.PROVIDERS["cuda"]

#: ONNX Runtime's name for the device of a built-in provider with separate memory.
DEVICES = {CUDA: "cuda", "WebGpuExecutionProvider": "webgpu", "DmlExecutionProvider": "dml"}

#: What it calls the device of a plugin, by its kind of hardware.
HARDWARE = {"GPU": "gpu", "NPU": "npu"}

LIBRARY = re.compile(r".*\.(so|dylib|dll)(\.[0-9.]+)?", re.IGNORECASE)
#: What installs the modules of plugins that are targets of this suite.
PACKAGES = {"onnxruntime_qnn": "onnxruntime-qnn==2.7.0"}
BUILT_IN = re.compile(r"[A-Za-z]+ExecutionProvider", re.IGNORECASE)

#: How alike, from 0 to 1, a wrong word and a right one are.
ALIKE = 0.8


class BuiltIn:
    """A provider of the wheel. ``number`` is that of its device, ``options`` are its options."""

    def __init__(
        self, onnxruntime: Any, name: str, number: int = 0, options: dict[str, str] | None = None
    ) -> None:
        self.onnxruntime = onnxruntime
        self.name = name
        self.number = number
        self.options = {"device_id": str(number)} if name in DEVICES else {}
        self.options |= options or {}

    def add_to(self, options: Any) -> None:
        """Prepare session options for it: nothing, since a session names it."""

    def session(self, model: bytes, options: Any) -> Any:
        """A session with the model; raises ONNX Runtime's exceptions."""
        return self.onnxruntime.InferenceSession(
            model, options, providers=[(self.name, self.options)], enable_fallback=0
        )

    def memory_device(self) -> Any | None:
        """The OrtDevice of its memory; None: it computes in the processor's memory."""
        kind = DEVICES.get(self.name)
        return kind and self.onnxruntime.OrtDevice.make(kind, self.number)._get_c_device()

    def description(self) -> dict[str, Any]:
        """The fields of the answer to describe that depend on the provider."""
        described: dict[str, Any] = {
            "runtime": "onnxruntime",
            "version": self.onnxruntime.__version__,
            "device": processor_name(),
            "versions": ort_availability.versions(self.onnxruntime, self.name),
        }
        if self.name == CUDA:
            import cuda_device

            gpu = cuda_device.describe(self.number)
            described |= {"device": gpu.words, "adapter": gpu.adapter}
            described["versions"] |= gpu.versions
        elif self.name != CPU:
            described["name"] = f"ort-{self.name.removesuffix('ExecutionProvider').lower()}"
            described["device"] = f"device {self.number} of {self.name}"
        return described


class Plugin:
    """A provider of a shared library, on one of the devices that it offers.

    ``word`` is the library's path, or the Python module with the library. Raises `Unavailable` if
    there is no such library, if ONNX Runtime cannot load it, or if it offers no device ``number``.
    """

    def __init__(
        self, onnxruntime: Any, word: str, number: int = 0, options: dict[str, str] | None = None
    ) -> None:
        self.onnxruntime = onnxruntime
        self.options = options or {}
        self.word = word
        self.library = find_library(word, onnxruntime.get_available_providers())
        self.device = self.register(number)
        self.name = str(self.device.ep_name)

    def register(self, number: int) -> Any:
        """The OrtEpDevice ``number`` of the library, which this method loads into ONNX Runtime."""
        version = self.onnxruntime.__version__
        register = getattr(self.onnxruntime, "register_execution_provider_library", None)
        if register is None:
            reason = f"onnxruntime {version} takes no plugin execution providers; 1.23 and later do"
            wheel = ort_availability.package(self.onnxruntime)
            raise Unavailable(f"{reason}.", pip("install", f"{wheel}>=1.23"))
        known = {device.ep_name for device in self.onnxruntime.get_ep_devices()}
        try:
            register(registered_name(self.word), self.library)
            found = self.onnxruntime.get_ep_devices()
        except Exception as error:  # of any class: the library is a stranger's
            reason = f"onnxruntime {version} cannot load the plugin {self.library}"
            raise Unavailable(f"{reason}: {first_line(error)}") from error
        devices = [
            device
            for device in found
            if device.ep_metadata.get("library_path") == self.library or device.ep_name not in known
        ]
        if not devices:
            raise Unavailable(f"the plugin {self.library} finds no device on this machine.")
        if number >= len(devices):
            there = f"{len(devices)} device{'s' if len(devices) > 1 else ''}"
            raise Unavailable(
                f"the plugin {self.library} finds {there} on this machine; there is no number "
                f"{number}, counted from 0."
            )
        return devices[number]

    def add_to(self, options: Any) -> None:
        """Choose its device in session options."""
        options.add_provider_for_devices([self.device], self.options)

    def session(self, model: bytes, options: Any) -> Any:
        """A session with the model; raises ONNX Runtime's exceptions."""
        # Without enable_fallback=0, Python tries again on the CPU and hides the error.
        return self.onnxruntime.InferenceSession(model, options, enable_fallback=0)

    def memory_device(self) -> Any | None:
        """The OrtDevice of its memory; None: it computes in the processor's memory."""
        state = self.onnxruntime.capi.onnxruntime_pybind11_state
        memory = self.device.memory_info(state.OrtDeviceMemoryType.DEFAULT)
        kind = HARDWARE.get(self.device.device.type.name)
        if memory is None or memory.name == "Cpu" or kind is None:
            return None
        make = self.onnxruntime.OrtDevice.make
        return make(kind, memory.device_id, memory.device_vendor_id)._get_c_device()

    def description(self) -> dict[str, Any]:
        """The fields of the answer to describe that depend on the provider."""
        metadata = dict(self.device.ep_metadata)
        hardware = self.device.device
        of_cpu = hardware.type.name == "CPU"
        # A library that says nothing about its release still has one; its path is in versions.
        version = distribution_version(self.word) or metadata.get("version") or "unknown"
        words = hardware.metadata.get("Description")
        device = (
            words or f"{hardware.vendor} {hardware.type.name}, device {hardware.device_id:#06x}"
        )
        name = plain_name(self.word)
        described = {
            "runtime": name,
            "name": name,
            "version": version,
            "device": processor_name() if of_cpu else device,
            "versions": {
                **ort_availability.versions(self.onnxruntime, self.name),
                "plugin": os.path.basename(self.library),
                **{f"plugin_{key}": text for key, text in metadata.items() if "path" not in key},
            },
        }
        if not of_cpu:
            described["adapter"] = f"{hardware.vendor_id:04x}-{hardware.device_id:04x}"
        return described


Provider = BuiltIn | Plugin


def open_provider(
    onnxruntime: Any, word: str, number: int = 0, options: dict[str, str] | None = None
) -> Provider:
    """The provider of ``--ep ort-plugin:WORD``: a library, a module, or one that is built in.

    Raises `Unavailable`.
    """
    if not BUILT_IN.fullmatch(word):
        return Plugin(onnxruntime, word, number, options)
    there = onnxruntime.get_available_providers()
    if word not in there:
        name = ort_availability.package(onnxruntime)
        raise Unavailable(
            f"{name} {onnxruntime.__version__} in {sys.executable} was built without {word}; "
            f"it has {', '.join(there)}{did_you_mean(word, there) or '.'}"
        )
    if word == CUDA:
        import cuda_availability

        cuda_availability.check(onnxruntime, number)
    return BuiltIn(onnxruntime, word, number, options)


def find_library(word: str, providers: list[str]) -> str:
    """The absolute path of the plugin's library: ``word``, or the one in the module ``word``.

    ``providers`` are the built-in ones. Raises `Unavailable`.
    """
    if LIBRARY.fullmatch(word) or os.sep in word:
        path = os.path.abspath(os.path.expanduser(word))
        if os.path.isdir(path):
            raise Unavailable(f"{path} is a folder, not the library of a plugin.")
        if not os.path.isfile(path):
            raise Unavailable(f"the plugin library {path} does not exist.")
        return path
    try:
        module = importlib.import_module(word)
    except ModuleNotFoundError as error:
        if error.name is not None and word.split(".")[0] == error.name:
            import pkgutil

            modules = [module.name for module in pkgutil.iter_modules()]
            reason = f"the Python module {word} is not installed in {sys.executable}"
            if word in PACKAGES:
                raise Unavailable(f"{reason}.", pip("install", PACKAGES[word])) from error
            hint = did_you_mean(word, [*providers, *modules]) or "."
            raise Unavailable(f"{reason}{hint}") from error
        raise Unavailable(f"importing {word} failed in {sys.executable}: {error}") from error
    except Exception as error:  # of any class: the module is a stranger's
        reason = f"importing {word} failed in {sys.executable}: {first_line(error)}"
        raise Unavailable(reason) from error
    return library_of(word, module)


def registered_name(word: str) -> str:
    """The name under which the plugin is registered: that which its module gives, if it does.

    A plugin can take it for its own name, as Qualcomm's does.
    """
    get = getattr(sys.modules.get(word), "get_ep_name", None)
    return str(get()) if get is not None else "gqa_plugin"


def did_you_mean(word: str, known: list[str]) -> str:
    """The end of a sentence: the known word most similar to ``word``; empty if none is.

    A package ``my-ep`` has the module ``my_ep``, and CPUExecutionProvider is often called cpu.
    """
    import difflib  # slow, and seldom needed

    names = {bare(name): name for name in reversed(known)}  # the first of each
    near = difflib.get_close_matches(bare(word), names, n=1, cutoff=ALIKE)
    return f"; did you mean ort-plugin:{names[near[0]]}?" if near else ""


def bare(word: str) -> str:
    """``word`` without the parts that differ between names of one provider."""
    return word.lower().replace("-", "_").removesuffix("executionprovider")


def library_of(word: str, module: Any) -> str:
    """The path from the module's ``get_library_path``, or the only library in its folder."""
    get = getattr(module, "get_library_path", None)
    if get is not None:
        try:
            return os.path.abspath(str(get()))
        except Exception as error:  # of any class: the module is a stranger's
            raise Unavailable(f"{word}.get_library_path() failed: {first_line(error)}") from error
    folders = getattr(module, "__path__", [])
    names = sorted(name for folder in folders for name in glob.glob(os.path.join(folder, "*")))
    libraries = [name for name in names if LIBRARY.fullmatch(name)]
    if len(libraries) == 1:
        return os.path.abspath(libraries[0])
    there = "no library" if not libraries else f"{len(libraries)} libraries"
    raise Unavailable(
        f"the Python module {word} has {there} and no get_library_path(); give the path of the "
        "plugin's library instead."
    )


def plain_name(word: str) -> str:
    """``word`` as the name of a target: ``/lib/libMy-EP.so`` is my-ep."""
    stem = os.path.basename(word).split(".")[0] if LIBRARY.fullmatch(word) else word
    letters = re.sub(r"[^a-z0-9._-]+", "-", stem.removeprefix("lib").lower()).strip("-._")
    return letters[:40] if letters[:1].isalpha() else f"ep-{letters}"[:40]


def distribution_version(word: str) -> str | None:
    """The version of the installed package of this name; None for a library's path."""
    from importlib import metadata  # slow, and of no use to the other providers

    try:
        return str(metadata.version(word.split(".")[0]))
    except (metadata.PackageNotFoundError, ValueError):
        return None
