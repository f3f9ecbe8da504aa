# SPDX-License-Identifier: Apache-2.0
"""What is said where vLLM or aiohttp is not there, or is another one than expected."""

import socket
import subprocess
import sys

import pytest

#: A vLLM of another version that has everything but one name.
ANOTHER = """
import sys, types
for name in ("vllm", "vllm.distributed", "vllm.distributed.kv_transfer", "vllm.distributed.kv_transfer.kv_connector",
             "vllm.distributed.kv_transfer.kv_connector.factory", "vllm.distributed.kv_transfer.kv_connector.v1",
             "vllm.distributed.kv_transfer.kv_connector.v1.base"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["vllm"].__version__ = "0.99.1"
for name in ("get_kv_transfer_group", "has_kv_transfer_group"):
    setattr(sys.modules["vllm.distributed.kv_transfer"], name, object)
sys.modules["vllm.distributed.kv_transfer.kv_connector.factory"].KVConnectorFactory = object
for name in ("KVConnectorBase_V1", "KVConnectorHandshakeMetadata", "KVConnectorRole", "SupportsHMA"):
    setattr(sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.base"], name, object)
"""
#: A vLLM of a version, and a connector that needs nothing of it.
VERSION = """
import sys, types
sys.modules["vllm"] = types.SimpleNamespace(__version__={version!r})
sys.modules["kvferry.vllm.connector"] = types.SimpleNamespace(KvferryConnector="it")
import kvferry.vllm
assert [kvferry.vllm.KvferryConnector for _ in range(2)] == ["it", "it"]
"""
NO_VLLM = "import sys; sys.modules['vllm'] = None\n"
NO_AIOHTTP = "import sys; sys.modules['aiohttp'] = None\n"


def run(text, status):
    """What a program of its own says on stderr."""
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert process.returncode == status, process.stderr
    return process.stderr


@pytest.mark.parametrize(
    ("before", "found", "missing"),
    [(ANOTHER, "0.99.1", "'KVConnectorTransferResults'"), (NO_VLLM, "none", "vllm")],
    ids=["another vLLM", "no vLLM"],
)
def test_a_missing_name_is_told_with_the_versions(before, found, missing):
    (said,) = run(before + "from kvferry.vllm import KvferryConnector", 1).splitlines()[-1:]
    assert f"kvferry was tested with vLLM 0.32, found {found}: " in said
    assert missing in said


def test_the_layouts_command_says_it_too():
    said = run(NO_VLLM + "from kvferry.vllm._offline import main; sys.exit(main(['--model', 'm']))", 2)
    assert "kvferry was tested with vLLM 0.32, found none: " in said


def test_another_version_than_tested_is_warned_of_once():
    assert run(VERSION.format(version="0.99.0"), 0).splitlines() == ["kvferry was tested with vLLM 0.32, found 0.99.0"]
    assert run(VERSION.format(version="0.32.7"), 0) == ""


def test_the_proxy_names_the_extra_that_it_needs():
    (said,) = run(NO_AIOHTTP + "import kvferry.proxy", 1).splitlines()[-1:]
    assert "kvferry.proxy needs aiohttp" in said
    assert "kvferry[proxy]" in said


def test_the_proxy_as_a_program_says_it_in_a_line():
    for words in (["--help"], ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]):
        as_program = f"import runpy; sys.argv[1:] = {words}; runpy.run_module('kvferry.proxy', run_name='__main__')"
        (said,) = run(NO_AIOHTTP + as_program, 1).splitlines()
        assert said.startswith("kvferry.proxy needs aiohttp, of its extra kvferry[proxy]: pip install aiohttp; ")


def test_the_proxy_says_where_it_cannot_listen():
    pytest.importorskip("aiohttp")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        hosts = {"127.0.0.1": "in use", "localhost": "in use", "no..host": "label empty", "no.such.host.invalid": ""}
        for host, why in hosts.items():
            words = ["--prefill", "http://p:1", "--decode", "http://d:1", "--host", host, "--port", port]
            (said,) = run(f"import sys; from kvferry.proxy import main; sys.exit(main({words}))", 1).splitlines()
            assert f"cannot listen at {host} port {port}: " in said
            assert why in said
