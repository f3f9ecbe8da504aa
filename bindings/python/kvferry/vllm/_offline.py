# SPDX-License-Identifier: Apache-2.0
"""Layouts of every worker of a server that does not run: vLLM's own code, from its options to its tensors.

The installed vLLM makes its configuration, the model's modules, cache specs, groups, strides and views. What a
running server has and this has not is stubbed, and named in STUBS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvferry.layout import Worker
from kvferry.report import Refused
from kvferry.vllm import layout as vllm_layout
from kvferry.vllm._gpu import NAMES, stand_in
from kvferry.vllm._gpu import STUBS as GPU_STUBS
from kvferry.vllm._version import importing, warn_of_another

#: What is not the running server's.
STUBS = (
    "weights: modules are made on torch's meta device and nothing is loaded",
    "memory: caches are tensors of the meta device, without an address",
    "processes: groups of ranks know their sizes and ranks and cannot communicate",
    "tensor-parallel ranks of a stage are described from its first one's caches, which vLLM keeps equal",
    "the memory for caches, where no option says it: 16 GiB a worker",
    "the tokenizer: it is not loaded",
)

DEFAULT_MEMORY = 16 << 30


class _Ranks:
    """Where vLLM asks a group of torch's."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = (lambda: rank), (lambda: size)


class _Group:
    """A rank of a group that cannot communicate: vLLM asks for its sizes while it makes modules."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = self.rank_in_group = rank
        self.local_rank = 0
        self.world_size = size
        self.ranks = list(range(size))
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.first_rank, self.last_rank = 0, size - 1
        self.unique_name = "kvferry:0"
        self.device_communicator = self.mq_broadcaster = None
        self.device_group = self.cpu_group = _Ranks(rank, size)
        self.use_custom_op_call = False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a layout without a server has groups of ranks that cannot communicate; asked: {name}")


@contextlib.contextmanager
def _groups(worker: Worker) -> Iterator[None]:
    """vLLM's parallel state as a worker of these ranks has it."""
    from vllm.distributed import parallel_state

    alone = ("_DCP", "_PCP", "_INNER_DP_WORLD")
    groups = {
        "_WORLD": _Group(worker.pp_rank * worker.tp_size + worker.tp_rank, worker.tp_size * worker.pp_size),
        "_TP": _Group(worker.tp_rank, worker.tp_size),
        "_ETP": _Group(worker.tp_rank, worker.tp_size),
        "_EP": _Group(worker.tp_rank, worker.tp_size),
        "_EPLB": _Group(worker.tp_rank, worker.tp_size),
        "_PP": _Group(worker.pp_rank, worker.pp_size),
        "_DP": _Group(worker.dp_rank, worker.dp_size),
        **{name: _Group(0, 1) for name in alone},
    }
    before = {name: getattr(parallel_state, name) for name in groups if hasattr(parallel_state, name)}
    for name in before:
        setattr(parallel_state, name, groups[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(parallel_state, name, value)


@dataclass
class _Stage:
    """A pipeline stage: its configuration, its layers' specs, and the orders that its backends take."""

    config: Any
    worker: Worker
    specs: dict[str, Any]
    orders: list[str]


def _on_meta() -> Any:
    """Every tensor on the meta device, those that are asked for on a GPU too."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnMeta(TorchFunctionMode):
        def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            device = kwargs.get("device")
            if device is not None and (isinstance(device, int) or torch.device(device).type == "cuda"):
                kwargs["device"] = "meta"
            return func(*args, **kwargs)

    return OnMeta()


def _make_modules(config: Any, worker: Worker) -> None:
    """The model's modules of this stage, and on the last one the draft model's."""
    import torch
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    context = config.compilation_config.static_forward_context
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"), _on_meta():
        initialize_model(vllm_config=config)
        speculative = config.speculative_config
        if speculative is None or speculative.draft_model_config is None or worker.pp_rank != worker.pp_size - 1:
            return
        before = set(context)
        draft = replace(config, kernel_config=config.kernel_config)
        initialize_model(vllm_config=draft, model_config=speculative.draft_model_config)
        context.update(draft.compilation_config.static_forward_context)
    for name in set(context) - before:
        if isinstance(context[name], AttentionLayerBase):
            context[name].is_draft_layer = True


def _stage(engine_args: Any, worker: Worker) -> _Stage:
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    config = engine_args.create_engine_config()
    config.parallel_config.rank = worker.pp_rank * worker.tp_size + worker.tp_rank
    with set_current_vllm_config(config, check_compile=False), _groups(worker):
        _make_modules(config, worker)
        current_platform.update_block_size_for_backend(config)
        specs = get_kv_cache_spec(config)
        orders = get_supported_kv_cache_layouts(get_current_attn_backends(config))
    return _Stage(config, worker, specs, [order.name for order in orders])


def _attention_groups(config: Any, kv_cache_config: Any) -> list[list[Any]]:
    """vLLM's attention groups, as far as kernel blocks hang on them."""
    from vllm.v1.worker.utils import AttentionGroup

    modules = config.compilation_config.static_forward_context
    found = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        made: dict[Any, Any] = {}
        if group.kv_cache_spec.has_layer_views:
            for layer, spec in vllm_layout.layer_specs(group).items():
                backend = modules[layer].get_attn_backend()
                key = (backend.full_cls_name(), spec)
                if key not in made:
                    made[key] = AttentionGroup(backend, [], spec, index)
                made[key].layer_names.append(layer)
        found.append(list(made.values()))
    return found


def _caches(stage: _Stage, kv_cache_config: Any) -> dict[str, Any]:
    """A tensor a layer, as a worker would hand them to its connector."""
    import torch
    from vllm.v1.worker.gpu.attn_utils import get_shared_kv_cache_layers
    from vllm.v1.worker.utils import (
        add_kv_sharing_layers_to_kv_cache_groups,
        allocate_kv_cache,
        prepare_kernel_block_sizes,
    )

    shared = get_shared_kv_cache_layers(stage.config)
    add_kv_sharing_layers_to_kv_cache_groups(shared, kv_cache_config.kv_cache_groups)
    kernel_sizes = prepare_kernel_block_sizes(kv_cache_config, _attention_groups(stage.config, kv_cache_config))
    order = stage.config.cache_config.get_resolved_kv_cache_layout()
    caches = allocate_kv_cache(kv_cache_config, torch.device("meta"), order, kernel_sizes)
    caches.update({layer: caches[target] for layer, target in shared.items()})
    return caches


def describe_workers(engine_args: Any, engine_id: str) -> Iterator[vllm_layout.Described]:
    """The documents of all workers that a server with these EngineArgs would have, stage by stage."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    tp_size, pp_size = engine_args.tensor_parallel_size, engine_args.pipeline_parallel_size
    stages = [_stage(engine_args, Worker(0, tp_size, rank, pp_size)) for rank in range(pp_size)]
    # The engine core decides for all of them, with its own configuration.
    core = stages[0].config
    with set_current_vllm_config(core, check_compile=False):
        register_all_kvcache_specs(core)
        specs = [spec for stage in stages for spec in stage.specs.values()]
        order = resolve_kv_cache_layout(core, [stage.orders for stage in stages], specs)
        memory = core.cache_config.kv_cache_memory_bytes or DEFAULT_MEMORY
        configs = get_kv_cache_configs(core, [stage.specs for stage in stages], [memory] * pp_size)
    for stage, kv_cache_config in zip(stages, configs, strict=True):
        stage.config.cache_config.kv_cache_layout = order.name
        with set_current_vllm_config(stage.config, check_compile=False), _groups(stage.worker):
            caches = _caches(stage, kv_cache_config)
            for rank in range(tp_size):
                worker = replace(stage.worker, tp_rank=rank)
                yield vllm_layout.document_from_vllm(stage.config, kv_cache_config, caches, engine_id, worker)


# --- the command ---------------------------------------------------------------------------------

_ABOUT = """Prints the layout documents of every worker of `vllm serve` with the same options, one a line, by
running the installed vLLM's own cache code without weights and without a GPU. Stubbed are:
"""


def _asked_gpu(arguments: Sequence[str]) -> str:
    """--gpu's value: it is needed before vLLM's own options can be known."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--gpu", default="")
    return str(early.parse_known_args(list(arguments))[0].gpu)


def _parser() -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(
        prog="python -m kvferry.vllm.layout",
        description=_ABOUT + "".join(f"* {stub}\n" for stub in STUBS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own = parser.add_argument_group("kvferry")
    own.add_argument("--layout-dir", help="write a file for each worker there and print the files' names")
    own.add_argument("--gpu", choices=NAMES, help="as a server on such a GPU, where there is none")
    own.add_argument("--engine-id", default="", help="the documents' engine_id; default: the model's name")
    return EngineArgs.add_cli_args(parser)


def _cause(error: BaseException) -> str:
    """What went wrong; of an error without a text also where."""
    if isinstance(error.__cause__, StopIteration):  # Python's own words for it name nothing
        error = error.__cause__
    name = type(error).__name__
    if text := str(error):
        worded = isinstance(error, (AssertionError, ImportError, RuntimeError, ValueError))
        return text if worded else f"{name}: {text}"
    *_, frame = traceback.extract_tb(error.__traceback__) or [None]
    return f"{name} in {frame.name} ({frame.filename}:{frame.lineno}: {frame.line})" if frame else name


def _fail(said: str, error: Exception) -> int:
    """Status 1: the traceback for those who look after vLLM, and last the cause."""
    traceback.print_exception(error)
    print(f"kvferry.vllm.layout: {said}: {_cause(error)}", file=sys.stderr)
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Status 0: all printed; 1: refused, with every reason on stderr; 2: wrong use."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    gpu = _asked_gpu(sys.argv[1:] if arguments is None else arguments)
    try:
        with importing():
            if gpu in NAMES:
                stand_in(gpu)
            from vllm.engine.arg_utils import EngineArgs
        warn_of_another()
    except ImportError as error:
        print(f"kvferry.vllm.layout: vLLM is needed and cannot be imported: {error}", file=sys.stderr)
        return 2
    try:
        given = _parser().parse_args(arguments)
        given.skip_tokenizer_init = True
        if given.gpu:
            given.enforce_eager = True
        engine_args = EngineArgs.from_cli_args(given)
        for stub in STUBS + (GPU_STUBS if given.gpu else ()):
            print(f"kvferry.vllm.layout: stubbed: {stub}", file=sys.stderr)
        engine_id = given.engine_id or os.path.basename(os.path.normpath(engine_args.model))
        with importing():
            found = list(describe_workers(engine_args, engine_id))
    except Refused as refused:
        for reason in refused.reasons:
            print(f"kvferry.vllm.layout: {reason}", file=sys.stderr)
        return 1
    except Exception as error:  # whatever vLLM says, or fails with, when it does not start so
        return _fail("vLLM refuses", error)
    try:
        for described in found:
            if given.layout_dir:
                print(vllm_layout.write_layout(described.layout, given.layout_dir))
            else:
                print(json.dumps(described.layout.to_dict()))
    except OSError as error:
        return _fail("the documents cannot be written", error)
    return 0
