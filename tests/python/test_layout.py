# SPDX-License-Identifier: Apache-2.0
"""Layout: documents there and back, findings, views, fingerprints."""

import json

import pytest

import kvferry
from kvferry.layout import Axis, Group, Worker
from kvferry.model import derive


def test_there_and_back(example):
    layout = kvferry.Layout.from_dict(example)
    for again in (
        kvferry.Layout.parse(layout.to_json()),
        kvferry.Layout.parse(layout.to_json().encode()),
        kvferry.Layout.parse(layout.to_msgpack()),
    ):
        assert again.to_dict() == layout.to_dict()
    assert layout.to_msgpack()[0] & 0xF0 == 0x80


def test_views(example):
    layout = kvferry.Layout.from_dict(example)
    assert layout.engine_id == "decode-0"
    assert layout.worker == Worker(1, 4, 0, 1, 0, 1)
    assert layout.identity.model == "Qwen/Qwen3.5-35B-A3B"
    assert [(one.name, one.bytes) for one in layout.segments] == [("kv", 108134400), ("ring", 409600)]
    assert layout.groups[1] == Group("attn", "paged", 528, 0, 0, 200)
    assert [group.null_block for group in layout.groups] == [0, 0, -1]
    conv = layout.streams[0]
    assert (conv.layer, conv.name, conv.group, conv.policy) == (
        "model.layers.0.linear_attn",
        "conv.q",
        "gdn0",
        "required",
    )
    assert conv.axes == (Axis("channel", 512, 512, 2048, 6), Axis("row", 0, 3, 3, 2))
    tail = layout.streams[-1]
    assert (tail.policy, tail.aliases, tail.segment) == ("optional", ("model.layers.5.indexer.tail",), "ring")
    assert layout.groups_share(0, 1)
    assert not layout.groups_share(0, 2)


def test_fingerprint_is_the_pages(example):
    digests = kvferry.Layout.from_dict(example).fingerprint()
    assert len(digests) == 6
    assert (digests[0].layer, digests[0].text) == ("", "9606105bcc2b16cb27c4ac4a6a075494")
    assert (digests[2].stream, digests[2].text) == ("ssm", "83379479797679f3cd978cbbe2066029")
    assert digests[5].policy == "optional"


def test_all_findings_at_once(example):
    wrong = json.loads(json.dumps(example))
    wrong["streams"][0]["group"] = "none"
    wrong["streams"][3]["offset"] = 1 << 40
    wrong["streams"][4]["policy"] = "maybe"
    with pytest.raises(kvferry.Refused) as refused:
        kvferry.Layout.from_dict(wrong)
    assert refused.value.status == "malformed"
    places = {reason.code: reason.place for reason in refused.value.reasons}
    assert set(places) == {"value_unknown", "reference_unknown", "page_bounds"}
    assert places["value_unknown"] == "streams[4].policy"
    wrong["streams"][4]["policy"] = "local"
    with pytest.raises(kvferry.Refused) as refused:
        kvferry.Layout.from_dict(wrong)
    assert refused.value.status == "refused"
    assert {"reference_unknown", "page_bounds"} <= refused.value.codes
    for reason in refused.value.reasons:
        assert reason.expected
        assert reason.found
        assert reason.message in str(refused.value)


@pytest.mark.parametrize("data", ["", "[]", b"", b"\x81", b"\xff\xfe", "{", "\ud800", b" {"])
def test_no_document(data):
    with pytest.raises(kvferry.Refused) as refused:
        kvferry.Layout.parse(data)
    assert refused.value.status == "malformed"
    assert refused.value.reasons


def test_compare(example, llama):
    layout = kvferry.Layout.from_dict(example)
    layout.check_target(layout)
    other = json.loads(json.dumps(example))
    other["identity"]["model"] = "another"
    other["streams"][2]["dtype"] = "float16"
    with pytest.raises(kvferry.Refused) as refused:
        layout.check_target(kvferry.Layout.from_dict(other))
    assert refused.value.codes == {"identity_differs", "dtype_differs"}


def test_derive(llama):
    layout = derive(llama, tp_size=4, tp_rank=3, blocks=7, engine_id="p0", model=None)
    assert layout.engine_id == "p0"
    assert layout.worker == Worker(3, 4, 0, 1)
    assert layout.groups[0].blocks == 7
    assert layout.streams[0].axes[0] == Axis("kv_head", 6, 2, 8, layout.streams[0].axes[0].stride)
    with pytest.raises(TypeError, match=r"found tp$"):
        derive(llama, tp=4)
    with pytest.raises(kvferry.Refused) as refused:
        derive(json.loads(llama), tp_size=3, platform="abacus")
    assert {"tp_unfit", "option_unknown"} <= refused.value.codes


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"model": 5}, TypeError),
        ({"tp_size": "2"}, TypeError),
        ({"tp_size": -1}, ValueError),
        ({"blocks": 1 << 64}, ValueError),
    ],
)
def test_derive_takes_values_of_the_options_types(llama, options, kind):
    (name,) = options
    with pytest.raises(kind, match=f"{name}: expected .*, found"):
        derive(llama, **options)


def test_only_text_and_bytes_are_parsed():
    with pytest.raises(TypeError, match="expected text or bytes, found int"):
        kvferry.Layout.parse(5)


def test_indexes_that_c_would_wrap(example):
    layout = kvferry.Layout.from_dict(example)
    with pytest.raises(ValueError, match=r"b: expected 0 to 4294967295, found -1"):
        layout.groups_share(0, -1)
    with pytest.raises(TypeError, match=r"source: expected an integer, found 'a'"):
        kvferry.Plan([layout], layout).pieces("a")
