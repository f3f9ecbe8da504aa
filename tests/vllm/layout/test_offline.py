# SPDX-License-Identifier: Apache-2.0
"""python -m kvferry.vllm.layout: the documents of servers that do not run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_models import HERE, SOURCE, check, parse_all, run, served

import kvferry
from kvferry.vllm._gpu import NAMES
from kvferry.vllm._offline import _parser

#: The command of the build that the library is of.
COMMAND = Path(os.environ["KVFERRY_LIBRARY"]).with_name("kvferry")
DRAFTS = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":1}']
CASES = [
    *[("llama-recall", topology, {}, {}, []) for topology in ("tp1", "tp2", "tp4", "tp2pp2")],
    *[("qwen35-recall", topology, {}, {}, []) for topology in ("tp1", "tp2", "tp4", "pp2", "tp2pp2")],
    *[("deepseek-v4", topology, {}, {}, []) for topology in ("tp1", "tp2", "tp4")],
    *[("gemma3", topology, {}, {}, []) for topology in ("tp1", "tp2", "tp4", "tp2pp2")],
    ("gemma3", "tp2", {}, {"block_size": 64}, ["--block-size", "64"]),
    *[("gemma2", topology, {}, {}, []) for topology in ("tp1", "tp4", "tp2pp2")],
    *[("gpt-oss", topology, {}, {}, []) for topology in ("tp1", "tp4", "pp6")],  # pp6: stages of one kind of layers
    ("qwen35-recall", "tp2", {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}, {"conv_layout": "DS"}, []),
    ("qwen35-recall", "tp2", {"VLLM_SSM_CONV_STATE_LAYOUT": "SD"}, {"conv_layout": "SD"}, []),
    ("qwen35-recall", "tp1", {}, {"block_size": 64}, ["--block-size", "64"]),
    (
        "qwen35-recall",
        "tp1",
        {},
        {"mamba_mode": "none", "max_model_len": 2048},
        ["--no-enable-prefix-caching"],
    ),
    ("qwen35-recall", "tp2pp2", {}, {"mtp_layers": 1}, DRAFTS),
]


@pytest.fixture(scope="module")
def printed():
    """What the command prints for each case. Those of one environment share a process, to start it once."""
    found = {}
    for environment in {json.dumps(case[2]) for case in CASES}:
        cases = [index for index, case in enumerate(CASES) if json.dumps(case[2]) == environment]
        jobs = [
            {"arguments": [*served(CASES[index][0], CASES[index][1]), *CASES[index][4]], "environment": {}}
            for index in cases
        ]
        output = run("many", json.dumps(jobs), **json.loads(environment), PYTHONPATH=HERE)
        found.update(zip(cases, output.split("--\n"), strict=False))
    return found


@pytest.mark.parametrize("case", range(len(CASES)), ids=["-".join(map(str, case)) for case in CASES])
def test_as_the_library_derives(case, printed):
    model, topology, _, options, _ = CASES[case]
    check(model, parse_all(printed[case]), topology, **options)


def test_files(tmp_path):
    arguments = ["--layout-dir", str(tmp_path), "--engine-id", "p0"]
    names = run("kvferry.vllm.layout", *served("llama-recall", "tp2"), *arguments).split()
    assert names == [str(tmp_path / f"p0.dp0pp0tp{rank}.json") for rank in (0, 1)]
    for name in names:
        with open(name) as file:
            assert kvferry.Layout.parse(file.read()).engine_id == "p0"


def test_check_says_whether_two_servers_fit(tmp_path):
    """As docs/vllm.md says, before either of them runs."""
    fits, other = tmp_path / "prefill", tmp_path / "other"
    for folder, model, topology in ((fits, "llama-recall", "tp2pp2"), (other, "qwen35-recall", "tp2")):
        run("kvferry.vllm.layout", *served(model, topology), "--layout-dir", str(folder))
    run("kvferry.vllm.layout", *served("llama-recall", "tp4"), "--layout-dir", str(tmp_path / "decode"))

    def check_pair(prefill):
        sources = [word for file in sorted(prefill.iterdir()) for word in ("--source", file)]
        targets = [word for file in sorted((tmp_path / "decode").iterdir()) for word in ("--target", file)]
        return subprocess.run([COMMAND, "check", *sources, *targets], capture_output=True, text=True, timeout=60)

    found = check_pair(fits)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    assert found.stdout == "no difference that matters: 4 sources can serve 4 targets\n"
    found = check_pair(other)
    assert found.returncode == 1
    assert "identity_differs" in found.stdout + found.stderr


def test_the_page_for_users_has_every_option():
    """Of its own; the others are vLLM's."""
    page = (SOURCE / "docs" / "vllm.md").read_text().split("### Before a server runs")[1].split("\n### ")[0]
    own = next(group for group in _parser()._action_groups if group.title == "kvferry")
    for option in (name for action in own._group_actions for name in action.option_strings):
        assert option in page
    for gpu in NAMES:
        assert gpu in page


def test_stubs_are_named_and_stdout_has_documents_only():
    process = subprocess.run(
        [sys.executable, "-m", "kvferry.vllm.layout", *served("llama-recall", "tp1")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    (document,) = [json.loads(line) for line in process.stdout.splitlines()]
    assert document["format"] == "kvferry-layout/1"
    for stubbed in ("weights", "memory", "processes", "the tokenizer"):
        assert f"stubbed: {stubbed}" in process.stderr


def refused(*arguments):
    """The last line of what the command says when it ends with status 1."""
    process = subprocess.run(
        [sys.executable, "-m", "kvferry.vllm.layout", *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (process.returncode, process.stdout) == (1, ""), process.stderr
    return process.stderr.splitlines()[-1]


def test_what_vllm_refuses_is_said():
    """A stage without attention layers; a stage that ends vLLM by an error without a text; no model."""
    for arguments, said in (
        (served("qwen35-recall", "pp3"), "vLLM refuses: Workers disagree on supported KV cache layouts"),
        (served("deepseek-v4", "pp2"), "vLLM refuses: StopIteration in allocate_kv_cache"),
        (["--model", "/nonexistent"], "'/nonexistent'"),
    ):
        found = refused(*arguments)
        assert found.startswith("kvferry.vllm.layout: ")
        assert said in found


def test_documents_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    found = refused(*served("llama-recall", "tp1"), "--layout-dir", str(tmp_path / "file"))
    assert found.startswith("kvferry.vllm.layout: the documents cannot be written: ")
