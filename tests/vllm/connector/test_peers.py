# SPDX-License-Identifier: Apache-2.0
"""The option peer_layouts: a server starts if it fits the documents in a folder; if not, it is told every reason."""

import json
import os
import pickle

import pytest
from conftest import engine
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorRole

from kvferry.layout import Layout
from kvferry.plan import Plan
from kvferry.report import Refused
from kvferry.vllm import _peers
from kvferry.vllm._peers import OwnDocument, read_folder
from kvferry.vllm.connector import KvferryConnector
from kvferry.vllm.layout import write_layout

LAYERS, HEADS, BLOCKS, TOKENS = 4, 4, 8, 16


def worker(engine_id, tp=(0, 1), pp=(0, 1), **changes):
    """The document of one of a server's workers: keys and values of four layers, four heads."""
    own = HEADS // tp[1]
    page, head = own * TOKENS * 64, TOKENS * 64
    stages = LAYERS // pp[1]
    layers = range(pp[0] * stages, (pp[0] + 1) * stages)
    axes = [
        {"name": "kv_head", "start": tp[0] * own, "extent": own, "global": HEADS, "stride": head},
        {"name": "token", "extent": TOKENS, "stride": 64},
    ]
    streams = [
        {
            "layer": f"layers.{layer}",
            "name": name,
            "group": "attn",
            "dtype": "bfloat16",
            "segment": "kv",
            "offset": (2 * at + half) * BLOCKS * page,
            "pages": BLOCKS,
            "page_stride": page,
            "page_tokens": TOKENS,
            "tokens_per_state": 1,
            "axes": axes,
            "cell_bytes": 64,
            **changes.get("stream", {}),
        }
        for at, layer in enumerate(layers)
        for half, name in enumerate("kv")
    ]
    return Layout.from_dict(
        {
            "format": "kvferry-layout/1",
            "engine_id": engine_id,
            "worker": {"tp_rank": tp[0], "tp_size": tp[1], "pp_rank": pp[0], "pp_size": pp[1]},
            "identity": {"model": "m", **changes.get("identity", {})},
            "segments": [{"name": "kv", "bytes": 2 * len(layers) * BLOCKS * page}],
            "groups": [{"name": "attn", "kind": "paged", "block_tokens": TOKENS}],
            "streams": streams,
        }
    )


def server(engine_id, tp=1, pp=1, **changes):
    return [worker(engine_id, (rank, tp), (stage, pp), **changes) for stage in range(pp) for rank in range(tp)]


def folder_of(path, *servers):
    for workers in servers:
        for layout in workers:
            write_layout(layout, path)
    return str(path)


def start(attention, role, own, **options):
    """The part of a start in which vLLM hands the workers' documents to the scheduler's half, by stage and rank."""
    config = engine(role, **options)
    config.kv_transfer_config.engine_id = own[0].engine_id
    given = {}
    for layout in own:
        connector = KvferryConnector(config, KVConnectorRole.WORKER, attention)
        connector.worker._layout = layout
        metadata = pickle.loads(pickle.dumps(connector.get_handshake_metadata()))
        if metadata is not None:
            given[layout.worker.pp_rank, layout.worker.tp_rank] = metadata
    KvferryConnector(config, KVConnectorRole.SCHEDULER, attention).set_xfer_handshake_metadata_pp_aware(given)
    return given


@pytest.fixture(name="said")
def logged(monkeypatch):
    said = []
    monkeypatch.setattr(_peers.logger, "info", lambda text, *values: said.append(text % values))
    return said


ROLES = ["kv_producer", "kv_consumer", "kv_both"]
FITTING = {
    "one and one": (server("here"), [server("there")]),
    "two halves": (server("here", tp=2), [server("there")]),
    "other stages": (server("here", tp=4), [server("there", tp=2, pp=2)]),
    "two engines": (server("here", pp=2), [server("there", tp=2, pp=2), server("elsewhere", tp=4)]),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", FITTING)
def test_a_server_that_fits_starts(attention, tmp_path, said, case, role):
    own, peers = FITTING[case]
    start(attention, role, own, peer_layouts=folder_of(tmp_path, *peers))
    assert len(said) == 1
    assert "all fits this server, engine here: " in said[0]
    for workers in peers:
        assert f"{workers[0].engine_id} ({len(workers)} worker" in said[0]


@pytest.mark.parametrize("role", ROLES)
def test_without_the_option_nothing_is_handed_over_or_looked_at(attention, role):
    assert start(attention, role, server("here", tp=2, pp=2)) == {}


UNFIT = {
    "another model": ({"identity": {"model": "other"}}, {"identity_differs"}),
    "another revision": ({"identity": {"revision": "2"}}, {"identity_differs"}),
    "another type": ({"stream": {"dtype": "float16"}}, {"dtype_differs"}),
    "scaled cells": ({"stream": {"format": "fp8", "dtype": "uint8"}}, {"dtype_differs", "format_differs"}),
    "both": (
        {"stream": {"dtype": "float16"}, "identity": {"model": "other"}},
        {"dtype_differs", "identity_differs"},
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", UNFIT)
def test_a_server_that_does_not_fit_is_refused_with_every_reason(attention, tmp_path, case, role):
    changes, codes = UNFIT[case]
    own, there = server("here", tp=2, pp=2), server("there", tp=4, **changes)
    folder = folder_of(tmp_path, there)
    with pytest.raises(Refused) as refused:
        start(attention, role, own, peer_layouts=folder)
    assert refused.value.codes == codes
    text = str(refused.value)
    ways = {
        "kv_consumer": f"engine there in {folder} cannot serve this server, engine here (",
        "kv_producer": f"this server, engine here, cannot serve engine there in {folder} (",
    }
    for one, way in ways.items():
        assert text.count(f"kvferry: peer_layouts: {way}") == (role in (one, "kv_both"))


@pytest.mark.parametrize("role", ["kv_consumer", "kv_producer"])
def test_reasons_are_those_of_a_check_each_once(attention, tmp_path, role):
    """Over all workers of the side that gets: those of different layers and workers are counted, not listed."""
    own, there = server("here", tp=2, pp=2), server("there", tp=4, stream={"dtype": "float16"})
    sources, targets = (there, own) if role == "kv_consumer" else (own, there)
    expected = {}
    for target in targets:
        with pytest.raises(Refused) as refused:
            Plan(sources, target)
        expected.update((str(reason), reason) for reason in refused.value.reasons)
    with pytest.raises(Refused) as refused:
        start(attention, role, own, peer_layouts=folder_of(tmp_path, there))
    assert list(map(str, refused.value.reasons)) == list(expected)
    head, *lines = str(refused.value).splitlines()
    assert head.endswith(f"(2 reasons; {len(expected)} over all layers and workers):")
    others = f" [and {len(expected) // 2 - 1} more of other layers or workers]"
    assert lines == [f"  {next(text for text in expected if f', stream {name}:' in text)}{others}" for name in "kv"]


def test_one_reason_is_said_as_it_is(attention, tmp_path):
    folder = folder_of(tmp_path, server("there", identity={"model": "other"}))
    with pytest.raises(Refused) as refused:
        start(attention, "kv_consumer", server("here"), peer_layouts=folder)
    head, line = str(refused.value).splitlines()
    assert head.endswith("engine here (1 reason):")
    assert line == f"  {refused.value.reasons[0]}"


def test_a_worker_of_the_sources_that_lacks_a_part_is_found(attention, tmp_path):
    """One side has two of four layers: the other wants all of them, and serves less than it has."""
    half = [Layout.from_dict({**one.to_dict(), "streams": one.to_dict()["streams"][:4]}) for one in server("there")]
    folder = folder_of(tmp_path, half)
    start(attention, "kv_producer", server("here", tp=2), peer_layouts=folder)
    with pytest.raises(Refused) as refused:
        start(attention, "kv_consumer", server("here", tp=2), peer_layouts=folder)
    assert refused.value.codes == {"stream_missing"}
    assert "here tp1/2 pp0/1, layer layers.3, stream v" in "".join(map(str, refused.value.reasons))


def test_each_engine_that_does_not_fit_is_named(attention, tmp_path):
    folder = folder_of(
        tmp_path,
        server("fits", tp=2),
        server("other", identity={"model": "other"}),
        server("old", tp=2, stream={"dtype": "float16"}),
    )
    with pytest.raises(Refused) as refused:
        start(attention, "kv_consumer", server("here"), peer_layouts=folder)
    text = str(refused.value)
    assert "engine other in" in text
    assert "engine old in" in text
    assert "engine fits in" not in text
    assert refused.value.codes == {"identity_differs", "dtype_differs"}


def test_reasons_that_were_not_kept_are_counted(attention, tmp_path, monkeypatch):
    def plan(sources, target):
        raise Refused("much", "refused", Refused.of([_peers.Reason("c", "m")]).reasons, dropped=3)

    monkeypatch.setattr(_peers, "Plan", plan)
    with pytest.raises(Refused, match=r"\n  c: m\n  and 6 more, of which no details were kept$") as refused:
        start(attention, "kv_consumer", server("here", tp=2), peer_layouts=folder_of(tmp_path, server("there")))
    assert refused.value.dropped == 6


def test_a_refusal_without_a_reason_is_one(attention, tmp_path, monkeypatch):
    def plan(sources, target):
        raise Refused("nobody knows", "refused")

    monkeypatch.setattr(_peers, "Plan", plan)
    with pytest.raises(Refused, match="nobody knows"):
        start(attention, "kv_both", server("here"), peer_layouts=folder_of(tmp_path, server("there")))


# --- folders ---------------------------------------------------------------------------------------


def test_no_folder(attention, tmp_path):
    for path, why in ((tmp_path / "gone", "No such file or directory"), (tmp_path / "file", "Not a directory")):
        (tmp_path / "file").write_text("{}")
        with pytest.raises(ValueError, match=f"^kvferry: peer_layouts: {path}: expected a folder .*, found: {why}$"):
            start(attention, "kv_consumer", server("here"), peer_layouts=str(path))


def test_an_empty_folder(attention, tmp_path):
    """What is hidden, or not written to its end, does not count."""
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "tmpabc.part").write_text("{")
    with pytest.raises(ValueError, match=f"{tmp_path}: expected a folder of layout documents, found none in it$"):
        start(attention, "kv_consumer", server("here"), peer_layouts=str(tmp_path))


def test_every_file_that_is_no_document_is_named(attention, tmp_path):
    folder = folder_of(tmp_path, server("there"))
    document = server("there")[0].to_dict()
    (tmp_path / "a.json").write_text('{"format": ')
    (tmp_path / "b.json").write_text(json.dumps({**document, "streams": [{**document["streams"][0], "dtype": 3}]}))
    (tmp_path / "c.bin").write_bytes(b"\xff\x00")
    (tmp_path / "d").mkdir()
    with pytest.raises(ValueError, match=r"^kvferry: peer_layouts: 4 faults:\n") as error:
        start(attention, "kv_consumer", server("here"), peer_layouts=folder)
    text = str(error.value)
    for name in ("a.json", "b.json", "c.bin"):
        assert f"{tmp_path / name} is no layout document" in text
    assert f"{tmp_path / 'd'}: expected a layout document, found: Is a directory" in text
    assert "streams[0].dtype" in text


def test_what_is_no_file_or_too_large_is_not_read(attention, tmp_path):
    """To open a pipe without a writer would not end, and this file is larger than any memory."""
    folder = folder_of(tmp_path, server("there"))
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(ValueError, match=r"^kvferry: peer_layouts: 2 faults:\n") as error:
        start(attention, "kv_consumer", server("here"), peer_layouts=folder)
    text = str(error.value)
    assert f"{tmp_path / 'pipe'}: expected a layout document, found: Not a regular file" in text
    assert f"{tmp_path / 'large'}: expected a layout document of at most 67108864 bytes, found {1 << 42} bytes" in text


def test_a_server_is_not_its_own_other_side(attention, tmp_path, said):
    """Its documents of this start and of an earlier one, where both sides write into one folder."""
    folder = folder_of(tmp_path, server("here", tp=4), server("here"))
    with pytest.raises(ValueError, match=f"{folder}: expected documents of the other side, found .* engine here$"):
        start(attention, "kv_consumer", server("here"), peer_layouts=folder)
    start(attention, "kv_consumer", server("here"), peer_layouts=folder_of(tmp_path, server("there")))
    assert said == ["kvferry: peer_layouts: all fits this server, engine here: there (1 worker)"]


def test_documents_in_either_form_are_read(tmp_path):
    """JSON and msgpack."""
    for index, layout in enumerate(server("there", tp=2)):
        (tmp_path / str(index)).write_bytes(layout.to_msgpack() if index else layout.to_json().encode())
    assert [one.worker.tp_rank for one in read_folder(str(tmp_path))["there"]] == [0, 1]


def test_documents_of_several_starts_are_none_of_one_server(tmp_path):
    folder = folder_of(tmp_path, server("there", tp=4), server("there", tp=2))
    files = f"TP 2, PP 1 in {tmp_path}/there.dp0pp0tp0.json; TP 4, PP 1 in {tmp_path}/there.dp0pp0tp2.json"
    with pytest.raises(ValueError, match=f"^engine there: expected workers of one server, found {files}: "):
        read_folder(folder)


def test_a_worker_is_described_once(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(server("there")[0].to_json())
    files = f"{tmp_path}/a and {tmp_path}/b"
    with pytest.raises(ValueError, match=f"^engine there: expected one document of worker dp0 pp0 tp0, found {files}$"):
        read_folder(str(tmp_path))


def test_every_worker_is_described(tmp_path):
    folder = folder_of(tmp_path, server("there", tp=2, pp=2)[:3], server("whole"))
    with pytest.raises(ValueError, match=r"^engine there: expected the documents of all its 4 workers, found 3$"):
        read_folder(folder)


# --- what vLLM hands over --------------------------------------------------------------------------


class Another(KVConnectorHandshakeMetadata):
    """Of a connector beside this one, under vLLM's MultiConnector."""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "expected each worker's layout document, found none"),
        ({(0, 0): Another()}, "expected each worker's layout document, found Another, another connector's"),
        (
            {(0, 1): OwnDocument(server("here", tp=2)[1].to_json())},
            "engine here: expected the documents of all its 2 workers, found 1",
        ),
    ],
)
def test_a_start_that_cannot_be_checked_is_refused(attention, tmp_path, given, why):
    config = engine("kv_consumer", peer_layouts=folder_of(tmp_path, server("there")))
    connector = KvferryConnector(config, KVConnectorRole.SCHEDULER, attention)
    with pytest.raises(ValueError, match=f"^kvferry: peer_layouts: {why}$"):
        connector.set_xfer_handshake_metadata_pp_aware(given)


def test_metadata_of_others_is_nothing_to_a_server_without_the_option(attention):
    config = engine("kv_consumer")
    connector = KvferryConnector(config, KVConnectorRole.SCHEDULER, attention)
    assert connector.set_xfer_handshake_metadata_pp_aware({(0, 0): Another()}) is None
