# SPDX-License-Identifier: Apache-2.0
"""kv_connector_extra_config: what is no option, or no value of one, ends the start of both halves."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import engine
from vllm import envs

from kvferry.vllm import metrics
from kvferry.vllm._options import OPTIONS
from kvferry.vllm.connector import KvferryConnector
from kvferry.vllm.scheduler import Scheduler
from kvferry.vllm.worker import EARLY_MS, Worker

WRONG = {
    "a word for a flag": ({"insecure": "false"}, r"insecure: expected true or false, found 'false' \(str\)"),
    "a number for a flag": ({"verify": 0}, r"verify: expected true or false, found 0 \(int\)"),
    "a number for text": ({"engine": 5}, r"engine: expected text, found 5 \(int\)"),
    "text for a number": ({"lease_ms": "30000"}, r"lease_ms: expected an integer from 1 to \d+, found '30000' \(str\)"),
    "less than nothing": ({"transfer_ms": -1}, r"transfer_ms: expected an integer from 1 to \d+, found -1 \(int\)"),
    "a fraction": ({"lease_ms": 1.5}, r"lease_ms: expected an integer .*, found 1\.5 \(float\)"),
    "a fraction that is none": ({"lease_ms": 30000.0}, r"lease_ms: expected an integer .*, found 30000\.0 \(float\)"),
    "a flag for a number": ({"retry_ms": True}, r"retry_ms: expected an integer .*, found True \(bool\)"),
    "33 bits": ({"max_transfers": (1 << 32) + 1}, r"max_transfers: expected an integer from 1 to 4294967295, found"),
    "a misspelt name": ({"leas_ms": 1000}, r"'leas_ms': there is no such option: expected 'lease_ms'\?"),
    "a strange name": ({"mooncake_protocol": "tcp"}, r"'mooncake_protocol': .* expected one of engine, transport, "),
    "a list for text": ({"allowed_keys": ["a"]}, r"allowed_keys: expected text, found \['a'\] \(list\)"),
    "all at once": ({"engine": 5, "insecure": 1}, r"engine: .*; insecure: "),
}


@pytest.mark.parametrize("given", WRONG)
@pytest.mark.parametrize("half", [Scheduler, Worker])
def test_what_is_no_option_is_refused_by_both_halves(attention, half, given):
    options, message = WRONG[given]
    with pytest.raises(ValueError, match=message):
        half(engine("kv_both", **options), attention)


def test_the_memory_order_is_asked_for_before(attention):
    config = SimpleNamespace(kv_transfer_config=engine("kv_both", kv_cache_layout=3).kv_transfer_config)
    with pytest.raises(ValueError, match="kv_cache_layout: expected text, found 3"):
        KvferryConnector.get_required_kvcache_layout(config)


def test_what_is_one_is_taken(attention):
    """null stands for an option that is not given."""
    given = {name: "x" if kind is str else True if kind is bool else 1000 for name, kind in OPTIONS.items()}
    Scheduler(engine("kv_both", **given), attention)
    worker = Worker(engine("kv_both", **{**given, "key_file": None}), attention)
    assert "key_file" not in worker._options
    assert worker._options["lease_ms"] == 1000
    assert "kv_cache_layout" not in worker._options


@pytest.fixture(name="page", scope="module")
def page_for_users():
    return (Path(os.environ["KVFERRY_SOURCE"]) / "docs" / "vllm.md").read_text()


def test_the_page_for_users_lists_them_all(page):
    table = page.split("| option | default | what |")[1].split("\n\n")[0]
    rows = [row.split("|")[1:4] for row in table.splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row[0])) == sorted(OPTIONS)
    defaults = {row[0].strip(): row[1].strip() for row in rows}
    assert defaults["`early_ms`"] == f"{EARLY_MS:,}"


def test_it_lists_the_metrics(page):
    section = page.split("## Metrics")[1].split("\n## ")[0]
    series = re.findall(r"`vllm:kvferry_(\w+)`", section.split("; counters")[0])
    counters = re.findall(r"`(?:vllm:kvferry)?_(\w+)_total`", section.split("; counters")[1])
    assert sorted(series) == sorted(metrics._SERIES)
    assert sorted(counters) == sorted(metrics._COUNTS)
    for name, (title, *_) in {**metrics._SERIES, **metrics._COUNTS}.items():
        assert title == f"vllm:kvferry_{name}"


def test_it_names_the_variables_with_their_defaults(page, monkeypatch):
    for name in ("VLLM_MOONCAKE_BOOTSTRAP_PORT", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    section = " ".join(page.split("\nEnvironment: ")[1].split("\n\n")[0].split())
    assert f"`VLLM_MOONCAKE_BOOTSTRAP_PORT` ({envs.VLLM_MOONCAKE_BOOTSTRAP_PORT})" in section
    assert f"`VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT` ({envs.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT} seconds)" in section
