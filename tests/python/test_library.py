# SPDX-License-Identifier: Apache-2.0
"""Loading: which library, which version, and that nothing is loaded too early."""

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import SOURCE


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_version_is_the_headers():
    header = (SOURCE / "include" / "kvferry" / "version.h").read_text()
    parts = [re.search(rf"KVFERRY_VERSION_{part} (\d+)", header).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    result = run("import kvferry; print(kvferry.__version__)")
    assert (result.returncode, result.stdout.strip()) == (0, ".".join(parts)), result.stderr


def test_import_loads_no_library_no_torch_no_vllm():
    code = (
        "import sys, kvferry, kvferry.model, kvferry.vllm.layout\n"
        "loaded = {'torch', 'vllm', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libkvferry' not in maps\n"
        "kvferry.__version__\n"
        "assert 'libkvferry' in open('/proc/self/maps').read()\n"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_missing_library_is_named():
    result = run("import kvferry; kvferry.__version__", KVFERRY_LIBRARY="/nowhere/libkvferry.so")
    assert result.returncode != 0
    assert "LibraryError: libkvferry cannot be opened: /nowhere/libkvferry.so" in result.stderr


def compile_stub(folder: Path, source: str) -> str:
    path = folder / "libkvferry.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", path, "-"], input=source, text=True, check=True)
    return str(path)


def test_another_version_is_refused(tmp_path):
    other = compile_stub(tmp_path, 'const char *kvferry_version(void) { return "7.3.0"; }')
    result = run("import kvferry; kvferry.__version__", KVFERRY_LIBRARY=other)
    assert "is kvferry 7.3.0: expected 0.1" in result.stderr


def test_missing_function_is_named(tmp_path):
    other = compile_stub(tmp_path, 'const char *kvferry_version(void) { return "0.1.0"; }')
    result = run("import kvferry; kvferry.__version__", KVFERRY_LIBRARY=other)
    assert "has no kvferry_status_name: expected a library of kvferry 0.1" in result.stderr


def test_declared_functions_and_structs_are_the_headers():
    """Every declared function is public, and structs have the header's fields in its order."""
    import ctypes

    from kvferry import _library

    headers = "\n".join(path.read_text() for path in sorted((SOURCE / "include" / "kvferry").glob("*.h")))
    headers = re.sub(r"/\*.*?\*/", "", headers, flags=re.S)
    for name, (_, arguments) in _library._FUNCTIONS.items():
        declared = re.search(rf"\b{name}\(([^)]*)\)\s*;", headers)
        assert declared, name
        given = declared.group(1).strip()
        assert len(arguments) == (0 if given == "void" else given.count(",") + 1), name
    for name, struct in vars(_library).items():
        if not (isinstance(struct, type) and issubclass(struct, ctypes.Structure)):
            continue
        words = "_".join(re.findall("[A-Z][a-z]+", name)).lower()
        body = re.search(rf"typedef struct kvferry_{words} \{{(.*?)\}} kvferry_{words};", headers, flags=re.S).group(1)
        fields = []
        for line in body.split(";"):
            parts = line.split(",")
            fields += [re.search(r"(\w+)(?:\[\w+\])?\s*$", part.strip()).group(1) for part in parts if part.strip()]
        assert [field[0] for field in struct._fields_] == fields, name


#: What pip makes of an editable install: the modules here, and what is built in a folder of its own.
EDITABLE = "import sys, kvferry; kvferry.__path__.insert(0, sys.argv[1]); "


def run_editable(folder, code, *arguments):
    unset = {name: value for name, value in os.environ.items() if name != "KVFERRY_LIBRARY"}
    words = [sys.executable, "-c", EDITABLE + code, folder, *arguments]
    return subprocess.run(words, env=unset, capture_output=True, text=True, timeout=60)


def test_an_editable_installs_files_are_found(tmp_path):
    compile_stub(tmp_path, 'const char *kvferry_version(void) { return "7.3.0"; }')
    program = tmp_path / "_command" / "kvferry"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$0 $*"\nexit 7\n')
    program.chmod(0o755)
    result = run_editable(tmp_path, "kvferry.__version__")
    assert f"{tmp_path}/libkvferry.so is kvferry 7.3.0: expected 0.1" in result.stderr
    result = run_editable(tmp_path, "import kvferry.command; del sys.argv[1]; kvferry.command.main()", "--version")
    assert (result.returncode, result.stdout, result.stderr) == (7, f"{program} --version\n", "")


def test_a_command_that_is_not_there_is_said(tmp_path):
    result = run_editable(tmp_path, "import kvferry.command; del kvferry.__path__[1:]; kvferry.command.main()")
    assert (result.returncode, result.stdout) == (3, "")
    (said,) = result.stderr.splitlines()
    assert said.startswith("kvferry: the program is not beside the modules: ")
