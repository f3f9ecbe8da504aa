# SPDX-License-Identifier: Apache-2.0
"""What a worker knows beside its cache specs, as plain data: views of memory, backends, the model's extents.

Nothing here imports vLLM or torch: live objects are read by their attributes, so that recorded ones do too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvferry.layout import Identity, Worker
from kvferry.report import Reason


@dataclass(frozen=True)
class View:
    """A tensor without its bytes. Strides and offset (from the storage's beginning) are in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: Hashable
    address: int
    storage_bytes: int

    @classmethod
    def from_tensor(cls, tensor: Any) -> View:
        """Of a torch tensor, of the meta device too (whose address is 0)."""
        size = tensor.element_size()
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        return cls(
            shape=tuple(tensor.shape),
            strides=tuple(stride * size for stride in tensor.stride()),
            offset=tensor.storage_offset() * size,
            storage=address or ("no address", storage._cdata),
            address=address,
            storage_bytes=storage.nbytes(),
        )


@dataclass(frozen=True)
class LayerFacts:
    """Of one layer: who reads its pages, and how.

    kernel_sizes: the only sizes of kernel blocks that the backend takes, in tokens; empty: it takes any.
    isa: which order CPU attention keeps inside a page; kv_heads: over all ranks.
    """

    backend: str = ""
    kernel_sizes: tuple[int, ...] = ()
    isa: str = ""
    kv_heads: int = 0
    draft: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """Of the model and the process.

    state: what groups of recurrent state are called; key_value: whether ssm lies as (key, value);
    mamba_groups: of Mamba2, over all ranks; fp8: how 8-bit cells are called.
    """

    identity: Identity
    worker: Worker
    layers: Mapping[str, LayerFacts] = field(default_factory=dict)
    state: str = "gdn"
    key_value: bool = False
    mamba_groups: int = 0
    fp8: str = "fp8"


# --- of a live vLLM ------------------------------------------------------------------------------


def worker_of(parallel: Any) -> Worker:
    """The ranks of this process by its ParallelConfig: in an engine ranks count (pp, tp)."""
    tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    dp_size = getattr(parallel, "data_parallel_size", 1)
    return Worker(
        tp_rank=parallel.rank % tp_size,
        tp_size=tp_size,
        pp_rank=parallel.rank // tp_size % pp_size,
        pp_size=pp_size,
        dp_rank=getattr(parallel, "data_parallel_index", parallel.data_parallel_rank) if dp_size > 1 else 0,
        dp_size=dp_size,
    )


def parallel_reasons(parallel: Any) -> Iterable[Reason]:
    """Context parallelism cuts blocks by tokens over ranks, which no document says."""
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size > 1:
            yield Reason(
                code="context_parallel",
                place=name,
                expected="1",
                found=str(size),
                message=f"{name} is {size}: context parallelism is not supported, expected 1",
            )


def identity_of(vllm_config: Any) -> Identity:
    """The model's name (the last part, of a folder), revision and draft model."""
    model = vllm_config.model_config.model
    if os.path.isdir(model):
        model = os.path.basename(os.path.realpath(model))
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = ""
    if speculative is not None:
        draft = str(getattr(speculative, "method", "") or getattr(speculative, "model", "") or "draft")
    return Identity(model, vllm_config.model_config.revision or "", draft)


def layer_index(name: str) -> int | None:
    """The layer's number in the model; None where a name has none or several."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    return int(numbers[0]) if len(numbers) == 1 else None


#: What vLLM 0.32 calls a part of the names of draft models' layers, and of no others.
_DRAFTS = re.compile(r"(?:^|\.)(?:mtp|draft_model|eagle_layers|transformer_block)\.")

#: Draft models whose layers are called "model.layers.N" from 0 on, and the models beside which that is a draft's name,
#: as their own layers' names begin with "language_model.". The same models without images have layers of that name.
_FROM_ZERO = frozenset({"MiniMaxM3MTP", "Gemma4DSparkModel"})
_WRAPPED = frozenset(
    {
        "MiniMaxM3SparseForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
    }
)


def is_draft(name: str, module: Any, vllm_config: Any) -> bool:
    """Whether a layer drafts, by its module, or, where there is none or a runner that does not mark it, by its name."""
    if getattr(module, "is_draft_layer", False):
        return True
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is None:
        return False
    index = layer_index(name)
    if _DRAFTS.search(name) or (index is not None and index >= vllm_config.model_config.get_total_num_hidden_layers()):
        return True
    if not name.startswith("model.layers.") or getattr(vllm_config.model_config, "architecture", "") not in _WRAPPED:
        return False
    models = getattr(getattr(speculative, "draft_model_config", None), "architectures", None) or ()
    return not _FROM_ZERO.isdisjoint(models)


def _kv_heads(name: str, draft: bool, vllm_config: Any) -> int:
    """KV heads over all ranks; of models whose layers differ, the layer's own."""
    model = vllm_config.model_config
    if draft:
        speculative = vllm_config.speculative_config
        model = getattr(speculative, "draft_model_config", None) or model
    index = layer_index(name)
    if not draft and index is not None and hasattr(model.model_arch_config, "__getitem__"):
        return model.model_arch_config[index].total_num_kv_heads
    return model.get_total_num_kv_heads()


def _isa(module: Any, spec: Any) -> str:
    """The order that CPU attention was set to, or would be by vLLM's own choice."""
    isa = getattr(module, "isa", "")
    if isa:
        return str(isa)
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return _get_attn_isa(spec.dtype, spec.block_size, spec.head_size)


def layer_facts(name: str, module: Any, spec: Any, vllm_config: Any) -> LayerFacts:
    """Of a layer of a running worker, from its module and spec."""
    backend = module.get_attn_backend()
    kernel_sizes: tuple[int, ...] = ()
    if hasattr(spec, "num_kv_heads"):
        sizes: Sequence[Any] = backend.get_supported_kernel_block_sizes(spec)
        if all(isinstance(size, int) for size in sizes):
            kernel_sizes = tuple(sizes)
    draft = is_draft(name, module, vllm_config)
    return LayerFacts(
        backend=backend.get_name(),
        kernel_sizes=kernel_sizes,
        isa=_isa(module, spec) if backend.get_name() == "CPU_ATTN" else "",
        kv_heads=_kv_heads(name, draft, vllm_config),
        draft=draft,
    )


def _text_value(vllm_config: Any, *names: str) -> Any:
    text = vllm_config.model_config.hf_text_config
    for name in names:
        value = getattr(text, name, None)
        if value is not None:
            return value
    return None


def model_facts(vllm_config: Any, specs: Mapping[str, Any], worker: Worker | None = None) -> ModelFacts:
    """Of a running worker; `specs` are its layers' own, by name."""
    from vllm.platforms import current_platform

    modules = vllm_config.compilation_config.static_forward_context
    return ModelFacts(
        identity=identity_of(vllm_config),
        worker=worker or worker_of(vllm_config.parallel_config),
        layers={name: layer_facts(name, modules[name], spec, vllm_config) for name, spec in specs.items()},
        state="kda" if _text_value(vllm_config, "linear_attn_config") else "gdn",
        key_value=current_platform.is_cpu(),
        mamba_groups=_text_value(vllm_config, "n_groups", "mamba_n_groups", "mamba_num_groups") or 0,
        fp8="fp8_e5m2" if vllm_config.cache_config.cache_dtype == "fp8_e5m2" else "fp8",
    )
