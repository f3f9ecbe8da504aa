# SPDX-License-Identifier: Apache-2.0
"""The mapping at its edges: refusals, shared caches, several storages, orders of CPU attention, files."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import recorded

import kvferry
from kvferry.layout import Identity, Worker
from kvferry.vllm import layout as vllm_layout
from kvferry.vllm._facts import (
    LayerFacts,
    ModelFacts,
    View,
    identity_of,
    layer_index,
    parallel_reasons,
    worker_of,
)
from kvferry.vllm.layout import describe, document_from_vllm, write_layout

KV = {
    "class": "FullAttentionSpec", "num_kv_heads": 2, "num_heads": 2, "head_size": 32, "head_size_v": 32,
    "dtype": "bfloat16", "kv_quant_mode": "NONE", "state_content_bytes": None, "tokens_per_state": 1,
}  # fmt: skip
MAMBA2 = {
    "class": "MambaSpec", "shapes": [[3, 24], [2, 4, 8]], "dtypes": ["bfloat16", "float32"], "tp_replicated": False,
    "mamba_type": "MAMBA2",
}  # fmt: skip


def dense(shape, offset=0, storage="s", size=2, page=0):
    """A view of pages one after another, each of `page` bytes if given."""
    blocks, heads, states, content = shape
    head = states * content * size
    strides = (page or heads * head, head, content * size, size)
    return View(shape, strides, offset, storage, 4096, offset + blocks * strides[0])


class Set:
    """Layers of one group each, in blocks of 32 tokens, and what is known of them."""

    def __init__(self, blocks=8, block_tokens=32, **model):
        self.groups, self.views, self.layers = [], {}, {}
        self.blocks, self.block_tokens = blocks, block_tokens
        self.model = {"worker": Worker(1, 2, 0, 1), "identity": Identity("m"), **model}

    def add(self, name, fields, view, backend="FLASH_ATTN", **facts):
        spec = recorded.make_spec(fields, self.block_tokens)
        self.groups.append(SimpleNamespace(layer_names=[name], kv_cache_spec=spec))
        if view is not None:
            self.views[name] = view
        self.layers[name] = LayerFacts(backend=backend, **{"kv_heads": 4, **facts})
        return self

    def describe(self):
        config = SimpleNamespace(num_blocks=self.blocks, transfer_groups=tuple(self.groups))
        return describe(config, self.views, ModelFacts(layers=self.layers, **self.model), "engine")

    def refused(self):
        with pytest.raises(kvferry.Refused) as refused:
            self.describe()
        for reason in refused.value.reasons:
            assert reason.expected
            assert reason.found
            assert reason.layer in reason.message
        return refused.value


def test_every_spec_class_is_mapped_or_refused_by_name():
    view = dense((8, 2, 32, 64))
    for name in (*vllm_layout.UNCARRIED, "TPUAttentionSpec"):
        found = Set().add("l.0", {**KV, "class": name}, view).refused()
        assert found.codes == {"spec_unknown"}
        assert name in str(found)


def test_all_reasons_at_once():
    view = dense((8, 2, 32, 64))
    found = (
        Set()
        .add("l.0", KV, view, backend="ABACUS")
        .add("l.1", KV, None)
        .add("l.2", KV, dense((8, 2, 16, 64)))
        .add("l.3", KV, dense((9, 2, 32, 64)))
        .add("l.4", KV, view, kv_heads=8)
        .refused()
    )
    assert [(one.layer, one.code) for one in found.reasons] == [
        ("l.0", "backend_unknown"),
        ("l.1", "cache_missing"),
        ("l.2", "view_unfit"),
        ("l.3", "view_unfit"),
        ("l.4", "heads_unfit"),
    ]


def test_packed_heads_are_refused():
    spec = {**KV, "num_heads": 4, "kv_quant_mode": "NVFP4", "state_content_bytes": 64, "dtype": "uint8"}
    assert Set().add("l.0", spec, dense((8, 4, 32, 64), size=1)).refused().codes == {"view_unfit"}


def test_scales_inside_the_head_are_one_stream():
    spec = {**KV, "dtype": "int8", "kv_quant_mode": "INT8_PER_TOKEN_HEAD", "state_content_bytes": 72}
    (stream,) = Set().add("l.0", spec, dense((8, 2, 32, 72), size=1), "TRITON_ATTN").describe().layout.streams
    assert (stream.name, stream.format, stream.cell_bytes) == ("kv", "int8_per_token_head", 72)
    assert [axis.name for axis in stream.axes] == ["kv_head", "token"]


def test_values_of_another_size():
    spec = {**KV, "head_size_v": 16}
    key, value = Set().add("l.0", spec, dense((8, 2, 32, 48)), "FLASH_ATTN_DIFFKV").describe().layout.streams
    assert (key.offset, key.cell_bytes, value.offset, value.cell_bytes) == (0, 64, 64, 32)


def test_fp8_of_another_kind_has_another_format():
    spec = {**KV, "dtype": "uint8", "kv_quant_mode": "FP8_PER_TENSOR"}
    view = dense((8, 2, 32, 64), size=1)
    for model, form in (({}, "fp8"), ({"fp8": "fp8_e5m2"}, "fp8_e5m2")):
        assert {one.format for one in Set(**model).add("l.0", spec, view).describe().layout.streams} == {form}


def test_a_shared_cache_is_an_alias():
    made = Set().add("l.0", KV, dense((8, 2, 32, 64)))
    made.groups[0].layer_names.append("l.7")
    made.views["l.7"] = made.views["l.0"]
    assert [(one.name, one.aliases) for one in made.describe().layout.streams] == [("k", ("l.7",)), ("v", ("l.7",))]


def test_a_shared_cache_in_a_group_of_several_specs():
    made = Set().add("l.0", KV, dense((8, 2, 32, 64)))
    spec = made.groups[0].kv_cache_spec
    made.groups[0] = SimpleNamespace(
        layer_names=["l.0", "l.7"], kv_cache_spec=SimpleNamespace(block_size=32, kv_cache_specs={"l.0": spec})
    )
    made.views["l.7"] = made.views["l.0"]
    assert {one.aliases for one in made.describe().layout.streams} == {("l.7",)}


def test_each_storage_is_one_segment():
    made = Set().add("l.0", KV, dense((8, 2, 32, 64), storage="a")).add("l.1", KV, dense((8, 2, 32, 64), storage="b"))
    made.views["l.2"] = dense((8, 2, 32, 64), storage="not the transfer's")
    found = made.describe()
    assert [(one.name, one.bytes) for one in found.segments] == [("kv0", 65536), ("kv1", 65536)]
    assert [(one.name, one.bytes) for one in found.layout.segments] == [("kv0", 65536), ("kv1", 65536)]
    assert found.groups == ("attn0", "attn1")


def test_a_view_past_its_storage_is_refused_by_the_library():
    view = replace(dense((8, 2, 32, 64)), storage_bytes=65535)
    with pytest.raises(kvferry.Refused) as refused:
        Set().add("l.0", KV, view).describe()
    assert refused.value.codes == {"page_bounds"}


def test_a_stage_without_layers_of_a_group():
    made = Set().add("l.0", KV, dense((8, 2, 32, 64)))
    empty = SimpleNamespace(layer_names=[], kv_cache_spec=recorded.make_spec(MAMBA2, 32))
    made.groups.insert(0, empty)
    groups = made.describe().layout.groups
    assert [(one.name, one.kind) for one in groups] == [("gdn0", "state"), ("attn", "paged")]


def test_drafts_are_optional():
    made = Set().add("l.0", KV, dense((8, 2, 32, 64))).add("mtp.0", KV, dense((8, 2, 32, 64), 65536), draft=True)
    assert [one.policy for one in made.describe().layout.streams] == ["required", "required", "optional", "optional"]


# --- inside of pages: every element of a page has one place, and it is the kernel's ------------------


def places(stream, page, elements):
    """Each local index of the axes and element of the cell: its byte in the page."""
    found = {(): stream.offset + page * stream.page_stride}
    for axis in stream.axes:
        found = {
            (*index, (axis.name, at)): byte + at * axis.stride
            for index, byte in found.items()
            for at in range(axis.extent)
        }
    return {
        (index, element): byte + element * (stream.cell_bytes // elements)
        for index, byte in found.items()
        for element in range(elements)
    }


def test_cpu_attention_by_dimension():
    key, value = Set().add("l.0", KV, dense((8, 2, 32, 64)), "CPU_ATTN", isa="vec").describe().layout.streams
    for (index, _), byte in places(key, 3, 1).items():
        at = dict(index)
        assert byte == 3 * 8192 + at["kv_head"] * 4096 + 2 * (at["dim"] * 32 + at["token"])
    for (index, dim), byte in places(value, 3, 32).items():
        at = dict(index)
        assert byte == 3 * 8192 + at["kv_head"] * 4096 + 2 * (32 * 32 + at["token"] * 32 + dim)


def test_cpu_attention_in_tiles():
    """amx: k at (t/16)*16*D + (d/2)*32 + (t%16)*2 + d%2, v at N*D + (d/16)*16*N + (t/2)*32 + (d%16)*2 + t%2."""
    key, value = Set().add("l.0", KV, dense((8, 2, 32, 64)), "CPU_ATTN", isa="amx").describe().layout.streams
    assert (key.format, key.tokens_per_state, value.format, value.tokens_per_state) == ("amx", 16, "amx", 2)
    keys, values = places(key, 0, 16 * 32), places(value, 0, 32)
    for token in range(32):
        for dim in range(32):
            inside = dim // 2 * 32 + token % 16 * 2 + dim % 2
            byte = keys[((("kv_head", 1), ("token", token // 16)), inside)]
            assert byte == 4096 + 2 * (token // 16 * 16 * 32 + inside)
            inside = dim % 16 * 2 + token % 2
            byte = values[((("kv_head", 1), ("dim", dim // 16), ("token", token // 2)), inside)]
            assert byte == 4096 + 2 * (32 * 32 + dim // 16 * 16 * 32 + token // 2 * 32 + inside)


def test_cpu_attention_of_other_machines_is_refused():
    made = Set().add("l.0", KV, dense((8, 2, 32, 64)), "CPU_ATTN", isa="neon")
    assert made.refused().codes == {"backend_unknown"}


def test_mamba2():
    """Heads are cut, and the one group is everybody's; SD: rows outermost."""
    view = dense((8, 1, 1, 400), size=1, page=512)
    made = Set(mamba_groups=1, state="mamba").add("l.0", MAMBA2, view, "MAMBA2_ATTN").describe().layout
    assert {group.name for group in made.groups} == {"mamba0"}
    found = {one.name: one for one in made.streams}
    assert set(found) == {"conv.x", "conv.b", "conv.c", "ssm"}
    channel, row = found["conv.x"].axes
    assert (channel.start, channel.extent, channel.global_extent, channel.stride) == (8, 8, 16, 2)
    assert (row.extent, row.stride) == (3, 48)
    channel = found["conv.c"].axes[0]
    assert (channel.start, channel.extent, channel.global_extent) == (0, 8, 8)
    assert found["conv.c"].offset == 32
    assert found["ssm"].offset == 3 * 24 * 2
    assert (found["ssm"].cell_bytes, found["ssm"].axes[0].global_extent) == (4 * 8 * 4, 4)


def test_groups_of_mamba2_are_cut():
    fields = {**MAMBA2, "shapes": [[40, 3], [2, 4, 8]]}
    made = Set(mamba_groups=4).add("l.0", fields, dense((8, 1, 1, 496), size=1), "MAMBA2_ATTN").describe().layout
    channel, row = {one.name: one for one in made.streams}["conv.b"].axes
    assert (channel.start, channel.extent, channel.global_extent, channel.stride) == (16, 16, 32, 6)
    assert row.stride == 2


def test_unknown_states_are_refused():
    view = dense((8, 1, 1, 400), size=1)
    for change in ({"mamba_type": "LINEAR"}, {"shapes": [[3, 24], [2, 4, 8], [0]], "dtypes": ["bfloat16"] * 3}):
        fields = {**MAMBA2, **change}
        if "dtypes" in change:
            view = dense((8, 1, 1, 272), size=1)
        assert Set(mamba_groups=1).add("l.0", fields, view, "MAMBA2_ATTN").refused().codes == {"state_unknown"}
    found = Set(mamba_groups=3).add("l.0", MAMBA2, dense((8, 1, 1, 400), size=1), "MAMBA2_ATTN").refused()
    assert found.codes == {"heads_unfit"}


def test_a_state_that_all_ranks_hold_is_one_cell():
    fields = {**MAMBA2, "tp_replicated": True}
    (stream,) = Set().add("l.0", fields, dense((8, 1, 1, 400), size=1), "SHORT_CONV_ATTN").describe().layout.streams
    assert (stream.name, stream.cell_bytes, stream.axes) == ("state", 400, ())


# --- what a live configuration says ---------------------------------------------------------------


def parallel(**more):
    return SimpleNamespace(
        **{"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "rank": 0, "data_parallel_size": 1}
        | {"data_parallel_rank": 0}
        | more
    )


def test_ranks():
    found = [worker_of(parallel(rank=rank)) for rank in range(6)]
    assert [(one.pp_rank, one.tp_rank) for one in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert worker_of(parallel(rank=6)).pp_rank == 0
    shared = worker_of(parallel(data_parallel_size=4, data_parallel_index=3))
    assert (shared.dp_rank, shared.dp_size) == (3, 4)


def test_context_parallelism_is_refused():
    config = SimpleNamespace(parallel_config=parallel(decode_context_parallel_size=2, prefill_context_parallel_size=1))
    with pytest.raises(kvferry.Refused) as refused:
        document_from_vllm(config, SimpleNamespace(transfer_groups=(), num_blocks=1), {}, "engine")
    assert [(one.code, one.place) for one in refused.value.reasons] == [
        ("context_parallel", "decode_context_parallel_size")
    ]
    assert not list(parallel_reasons(parallel(prefill_context_parallel_size=1)))


def test_identity(tmp_path):
    def config(model, **more):
        return SimpleNamespace(model_config=SimpleNamespace(model=model, revision=more.pop("revision", None)), **more)

    folder = tmp_path / "some-model"
    folder.mkdir()
    assert identity_of(config(str(folder) + "/")) == Identity("some-model")
    assert identity_of(config("maker/model", revision="r")) == Identity("maker/model", "r")
    drafts = SimpleNamespace(method="mtp")
    assert identity_of(config("maker/model", speculative_config=drafts)).draft == "mtp"


def test_layer_numbers():
    assert layer_index("language_model.model.layers.7.self_attn.attn") == 7
    assert layer_index("model.layers.3.attn.1") is None
    assert layer_index("lm_head") is None


# --- files ----------------------------------------------------------------------------------------


def test_files_of_running_workers(tmp_path, monkeypatch):
    layout = Set().add("l.0", KV, dense((8, 2, 32, 64))).describe().layout
    monkeypatch.delenv("KVFERRY_LAYOUT_DIR", raising=False)
    assert write_layout(layout) is None
    monkeypatch.setenv("KVFERRY_LAYOUT_DIR", str(tmp_path / "deep" / "layouts"))
    path = write_layout(layout)
    assert path == tmp_path / "deep" / "layouts" / "engine.dp0pp0tp1.json"
    assert write_layout(layout) == path
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert json.loads(path.read_text()) == layout.to_dict()
    assert path.stat().st_mode & 0o777 == 0o644


def test_file_names_hold_no_path():
    document = Set().add("l.0", KV, dense((8, 2, 32, 64))).describe().layout.to_dict()
    layout = kvferry.Layout.from_dict({**document, "engine_id": "../a b"})
    assert vllm_layout.file_name(layout) == ".._a_b.dp0pp0tp1.json"
