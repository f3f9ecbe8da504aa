# SPDX-License-Identifier: Apache-2.0
"""Recorded caches of vLLM 0.32: what the mapping makes of them is what the C library derives."""

from math import prod

import pytest
import recorded
from same import check_equal

from kvferry.model import derive
from kvferry.vllm.layout import describe

DERIVED = [name for name in recorded.names() if not recorded.Case(name).needs]
OTHERS = [name for name in recorded.names() if recorded.Case(name).needs]


def test_enough_is_recorded():
    assert (len(DERIVED), len(OTHERS)) == (173, 12)


@pytest.mark.parametrize("name", DERIVED)
def test_as_the_library_derives(name):
    size = recorded.Case(name).worker.tp_size
    for rank in sorted({0, size // 2, size - 1}):
        case = recorded.Case(name, rank)
        found = describe(case.config, case.views, case.facts, "engine")
        options = {**case.options, "tp_rank": rank, "blocks": case.blocks, "engine_id": "engine", "model": "model"}
        config = (recorded.VECTORS / "configs" / case.config_file).read_text()
        expected = derive(config, **options)
        check_equal(found.layout, expected)
        assert found.groups == tuple(group.name for group in found.layout.groups)
        assert [(one.name, one.address) for one in found.segments] == [("kv", 0x10000)]
        found.layout.check_target(describe(case.config, case.views, case.facts, "other").layout)


def held(stream):
    return stream.cell_bytes * prod(axis.extent for axis in stream.axes)


@pytest.mark.parametrize("name", OTHERS)
def test_others_hold_every_real_byte_once(name):
    """Models that the library does not derive: each layer's streams are its real page, no more and no less."""
    case = recorded.Case(name)
    layout = describe(case.config, case.views, case.facts, "engine").layout
    bytes_of = {}
    for stream in layout.streams:
        bytes_of[stream.layer] = bytes_of.get(stream.layer, 0) + held(stream)
        view = case.views[stream.layer]
        assert (stream.pages, stream.page_stride) == (view.shape[0], view.strides[0])
    assert set(bytes_of) == set(case.views)
    for layer, spec in case.specs_by_layer.items():
        ratio = case.views[layer].shape[0] // case.blocks
        assert bytes_of[layer] * ratio == spec.num_heads * spec.num_states * spec.state_content_size_bytes, layer


def test_windows_count_what_comes_before():
    case = recorded.Case("gemma3-27b.tp4")
    groups = describe(case.config, case.views, case.facts, "").layout.groups
    assert {(group.name.rstrip("0123456789"), group.window) for group in groups} == {("swa", 1023), ("attn", 0)}


def test_groups_of_pages_that_nobody_may_cut():
    case = recorded.Case("dsv41.tp8.sm100-fi")
    layout = describe(case.config, case.views, case.facts, "").layout
    formats = {(one.name, one.format) for one in layout.streams if one.name == "latent"}
    assert ("latent", "nvfp4_ds_mla_page32") in formats
    assert all(one.axes[0].extent == 1 for one in layout.streams if one.name == "latent")
    assert {group.kind for group in layout.groups} == {"paged", "ring"}
