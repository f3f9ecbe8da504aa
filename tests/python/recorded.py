# SPDX-License-Identifier: Apache-2.0
"""KVCacheConfigs of vLLM 0.32 built again from tests/vectors: stand-ins with what the mapping reads."""

import functools
import json
from math import prod
from types import SimpleNamespace

from conftest import SOURCE

from kvferry.layout import Worker
from kvferry.vllm._facts import LayerFacts, ModelFacts, View, identity_of, is_draft

VECTORS = SOURCE / "tests" / "vectors"
ITEM_BYTES = {"bfloat16": 2, "float32": 4, "uint8": 1, "float8_e4m3fn": 1, "int8": 1}


class DType:
    """As torch's: a name behind a prefix, and a size."""

    def __init__(self, name):
        self.name, self.itemsize = name, ITEM_BYTES[name]

    def __str__(self):
        return f"torch.{self.name}"


class Spec:
    """What vLLM's specs compute, by the page above them: N, C and the heads."""

    def __init__(self, block_size, fields):
        self.block_size = block_size
        self.__dict__.update(fields)

    @property
    def num_states(self):
        return self.block_size // self.tokens_per_state if self.tokens_per_state > 0 else 1

    @property
    def state_content_size_bytes(self):
        if hasattr(self, "shapes"):
            return sum(prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True))
        return self.state_content_bytes or (self.head_size + self.head_size_v) * self.dtype.itemsize


def make_spec(fields, block_size):
    fields = dict(fields)
    name = fields.pop("class")
    if "shapes" in fields:
        fields["dtypes"] = tuple(DType(one) for one in fields["dtypes"])
        fields["shapes"] = tuple(tuple(shape) for shape in fields["shapes"])
        fields.update(num_heads=1, tokens_per_state=-1, mamba_type=SimpleNamespace(name=fields["mamba_type"]))
    else:
        fields["dtype"] = DType(fields["dtype"])
        fields["kv_quant_mode"] = SimpleNamespace(name=fields["kv_quant_mode"])
    return type(name, (Spec,), {})(block_size, fields)


@functools.cache
def load(name):
    return json.loads((VECTORS / name).read_text())


def text_config(config):
    path = VECTORS / "configs" / config
    config = json.loads(path.read_text())
    return config.get("text_config", config)


def formula(pair, blocks):
    return pair if isinstance(pair, int) else pair[0] + pair[1] * blocks


class Case:
    """One recorded worker: `config` is its KVCacheConfig, `views` its tensors, `facts` what else it knows."""

    def __init__(self, name, tp_rank=0):
        recorded = load("vllm-0.32-specs.json")
        self.name, self.specs = name, recorded["specs"]
        self.patterns, self.parts = recorded["patterns"], recorded["cases"][name]["groups"]
        main = next((one for one in load("vllm-0.32.json") if one["name"] == name), {})
        self.source = main if "groups" in main else {**recorded["cases"][name], "options": {}}
        self.needs = main.get("needs", "")
        self.options = {key: value for key, value in self.source["options"].items()}
        params = self.source.get("params", {})
        size, pp_size = (
            self.options.get("tp_size", params.get("tp", 1)),
            self.options.get("pp_size", params.get("pp", 1)),
        )
        pp_rank = self.options.get("pp_rank", params.get("pp_rank", 0)) or 0
        self.worker = Worker(tp_rank, size, pp_rank, pp_size)
        self.blocks = self.source["blocks"]
        self.config_file = self.source["config"]
        self.text = text_config(self.config_file)
        self._build()

    def _names(self, part):
        return [self.patterns[run[0]].format(index) for run in part["layers"] for index in run[1:]]

    def _block_tokens(self, group):
        if "block_tokens" in self.source:
            return self.source["block_tokens"][group]
        return self.source["groups"][group]["block_tokens"]

    def _build(self):
        groups, specs = [], {}
        for index, parts in enumerate(self.parts):
            own = {}
            for part in parts:
                spec = make_spec(self.specs[part["spec"]], self._block_tokens(index))
                own.update(dict.fromkeys(self._names(part), spec))
            specs.update(own)
            layers = list(own)
            wrapped = SimpleNamespace(block_size=self._block_tokens(index), kv_cache_specs=own)
            groups.append(
                SimpleNamespace(layer_names=layers, kv_cache_spec=wrapped if len(parts) > 1 else own[layers[0]])
            )
        self.config = SimpleNamespace(num_blocks=self.blocks, transfer_groups=tuple(groups))
        self.specs_by_layer = specs
        self.views = self._views()
        self.facts = self._facts()

    def _views(self):
        views, parts = {}, iter([part for group in self.parts for part in group])
        for tensor in self.source["tensors"]:
            names = self._names(next(parts))
            assert (names[0], len(names)) == (tensor["first"], tensor["count"])
            for index, name in enumerate(names):
                views[name] = View(
                    shape=tuple(tensor["shape"]),
                    strides=tuple(tensor["strides"]),
                    offset=formula(tensor["offset"], self.blocks)
                    + index * formula(tensor["layer_stride"], self.blocks),
                    storage="storage",
                    address=0x10000,
                    storage_bytes=formula(tensor["size"], self.blocks),
                )
        return views

    def _facts(self):
        layers = self.text["num_hidden_layers"]
        vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(method="mtp"),
            model_config=SimpleNamespace(
                get_total_num_hidden_layers=lambda: layers, model="recorded/model", revision=None
            ),
        )
        heads = self.text.get("num_key_value_heads") or self.text["num_attention_heads"]
        return ModelFacts(
            identity=identity_of(vllm_config),
            worker=self.worker,
            layers={
                name: LayerFacts(
                    backend=spec.backend,
                    kernel_sizes=tuple(getattr(spec, "kernel_sizes", ())),
                    isa="vec" if spec.backend == "CPU_ATTN" else "",
                    kv_heads=heads,
                    draft=is_draft(name, None, vllm_config),
                )
                for name, spec in self.specs_by_layer.items()
            },
            state="kda" if "linear_attn_config" in self.text else "gdn",
            key_value=self.options.get("platform") == "cpu",
        )


def names():
    return list(load("vllm-0.32-specs.json")["cases"])
