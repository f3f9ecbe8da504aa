# SPDX-License-Identifier: Apache-2.0
"""python -m kvferry.vllm.layout: the documents of servers that do not run."""

import json
import os
import subprocess
import sys

import pytest
from vllm_models import HERE, check, parse_all, run, served

import kvferry

DRAFTS = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":1}']
CASES = [
    *[("llama-recall", topology, {}, {}, []) for topology in ("tp1", "tp2", "tp4", "tp2pp2")],
    *[("qwen35-recall", topology, {}, {}, []) for topology in ("tp1", "tp2", "tp4", "pp2", "tp2pp2")],
    *[("deepseek-v4", topology, {}, {}, []) for topology in ("tp1", "tp2", "tp4")],
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
