# SPDX-License-Identifier: Apache-2.0
"""A GPU that is not there, as far as vLLM asks for it until its caches have a layout.

For kvferry.vllm._offline only: it changes modules of vLLM and torch in this process, before vLLM has
chosen its platform. What it stubs is named in STUBS.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any

#: name -> compute capability, memory, multiprocessors
GPUS = {
    "sm90": ((9, 0), 80 << 30, 132),
    "sm100": ((10, 0), 180 << 30, 148),
    "sm120": ((12, 0), 96 << 30, 188),
}

#: What a GPU's name ends with where the package `flashinfer` is there, too: vLLM then takes other backends.
FLASHINFER = "-fi"
NAMES = [*GPUS, *(gpu + FLASHINFER for gpu in GPUS)]

STUBS = (
    "the GPU: its capability, memory, number and streams; nothing can be computed on it",
    "vLLM's, FlashAttention's, FlashMLA's and DeepGEMM's compiled kernels for it: modules without content",
    "with -fi, FlashInfer: modules without content, of a version that has all that vLLM asks for",
    "compiling the model and CUDA graphs: as with --enforce-eager, on which no cache hangs",
)

#: Compiled modules that a vLLM for another platform does not have.
COMPILED = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm._deepselect_C",
    "vllm._flashkda_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)


#: Modules that come with these, by whose names others import.
INTERFACES = ("vllm.third_party.flashmla.flash_mla_interface",)


class _Interface(types.ModuleType):
    """A module that has every name; nothing behind a name can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Nothing,), {})


class _Nothing:
    """A stream, event or handle that nobody may wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _platform(gpu: str, capability: tuple[int, int], memory: int, units: int) -> Any:
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    answers = {
        "import_kernels": None,
        "set_device": None,
        "get_device_capability": DeviceCapability(*capability),
        "get_device_name": "a GPU that is not there",
        "get_device_total_memory": memory,
        "get_cuda_runtime_major": 13,
        "is_fully_connected": True,
        "is_pin_memory_available": False,
        "is_integrated_gpu": False,
        "device_count": 1024,
        "num_compute_units": units,
    }

    def answer(value: Any) -> classmethod[Any, Any, Any]:
        return classmethod(lambda cls, *_, **__: value)

    return type(gpu, (cuda.NonNvmlCudaPlatform,), {name: answer(value) for name, value in answers.items()})()


def _torch(capability: tuple[int, int], memory: int, units: int) -> None:
    """torch.cuda's questions that need no device, and names of operators that vLLM's modules keep."""
    import torch
    import torch._ops

    properties = types.SimpleNamespace(
        name="a GPU that is not there",
        major=capability[0],
        minor=capability[1],
        total_memory=memory,
        multi_processor_count=units,
        shared_memory_per_block_optin=227 << 10,
        warp_size=32,
    )
    answers = {
        "current_device": 0,
        "device_count": 1024,
        "get_device_capability": capability,
        "get_device_properties": properties,
        "get_device_name": properties.name,
        "mem_get_info": (memory, memory),
        "synchronize": None,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    for name in ("Stream", "Event", "ExternalStream"):
        setattr(torch.cuda, name, _Nothing)
    torch.cuda.current_stream = lambda *_: _Nothing()
    found = torch._ops._OpNamespace.__getattr__

    def operator(self: Any, name: str) -> Any:
        """A layer's constructor keeps operators by name; a module asks which there are, and gets an honest no."""
        try:
            return found(self, name)
        except AttributeError:
            asked_by_module = sys._getframe(1).f_code.co_name == "<module>"
            if self.name not in ("_C", "_moe_C", "_flashkda_C") or name.startswith("__"):
                raise
            if asked_by_module and "supports" not in name:
                raise
            return lambda *_, **__: False

    torch._ops._OpNamespace.__getattr__ = operator


def _triton(capability: tuple[int, int], units: int) -> None:
    """The driver that Triton asks for its target where kernels are declared; it compiles none."""
    import triton
    from triton.backends.compiler import GPUTarget

    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 10 * capability[0] + capability[1], 32),
        get_current_device=lambda: 0,
        get_device_capability=lambda *_: capability,
        get_active_torch_device=lambda: "meta",
        get_benchmarker=lambda: None,
        get_empty_cache_for_benchmark=lambda: None,
        utils=types.SimpleNamespace(
            get_device_properties=lambda *_: {
                "multiprocessor_count": units,
                "max_shared_mem": 227 << 10,
                "warpSize": 32,
                "max_num_regs": 65536,
            }
        ),
    )
    triton.runtime.driver.set_active(driver)


def _inspect_here() -> None:
    """vLLM looks at model classes in a process of its own, which would not know the stand-in."""
    from vllm.model_executor.models import registry

    def inspect(self: Any) -> Any:
        return registry._ModelInfo.from_model_cls(self.load_model_cls())

    registry._LazyRegisteredModel.inspect_model_cls = inspect


class _FlashInfer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The package `flashinfer`, any of its modules, and any name in them."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "flashinfer":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Interface(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to do."""


def _flashinfer() -> None:
    os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1"
    sys.meta_path.insert(0, _FlashInfer())
    import vllm.utils.flashinfer
    from vllm.config.compilation import PassConfig

    # These look into what the newest one has.
    for name in ("has_flashinfer_sm90_nope_mla", "has_flashinfer_sparse_mla_sm120_config"):
        setattr(vllm.utils.flashinfer, name, lambda *_: True)
    PassConfig.default_fi_allreduce_fusion_max_size_mb = staticmethod(dict)  # of compiled models, and imports them


def stand_in(name: str) -> None:
    """Makes this process one with a GPU of this name. Before anything of vLLM is imported, and once."""
    platforms = sys.modules.get("vllm.platforms")
    chosen = getattr(platforms, "_current_platform", None)
    if chosen is not None:
        if type(chosen).__name__ == name:
            return
        raise RuntimeError(f"a stand-in for {name} comes before vLLM has chosen its platform, found {chosen}")
    for module in COMPILED:
        sys.modules.setdefault(module, types.ModuleType(module))
    for module in INTERFACES:
        sys.modules.setdefault(module, _Interface(module))
    import vllm.platforms
    import vllm.utils.import_utils

    # What indexers need, and a server on such a GPU has.
    vllm.utils.import_utils.has_deep_gemm = lambda: True
    vllm.platforms.vllm_version_matches_substr = lambda _: False
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    gpu = name.removesuffix(FLASHINFER)
    capability, _, units = GPUS[gpu]
    _torch(*GPUS[gpu])
    _triton(capability, units)
    vllm.platforms._current_platform = _platform(name, *GPUS[gpu])
    if gpu != name:
        _flashinfer()
    _inspect_here()
