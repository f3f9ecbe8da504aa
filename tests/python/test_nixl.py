# SPDX-License-Identifier: Apache-2.0
"""Where the library of NIXL's wheel is looked for."""

import os

import pytest

from kvferry import nixl


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An environment with a wheel of this name; the path that it says its library has."""
    monkeypatch.setenv(nixl.VARIABLE, "")

    def install(name):
        about = tmp_path / f"{name}-1.5.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5.1\n")
        (about / "RECORD").write_text(f"nixl/__init__.py,,\n.{name}.mesonpy.libs/{nixl.LIBRARY},,\n")
        monkeypatch.syspath_prepend(tmp_path)
        return str(tmp_path / f".{name}.mesonpy.libs" / nixl.LIBRARY)

    return install


@pytest.mark.parametrize("name", ["nixl_cu13", "nixl-cu12"])
def test_the_wheel_s_library_is_found(wheel, name):
    path = wheel(name)
    nixl.find_library()
    assert os.environ[nixl.VARIABLE] == path


def test_what_the_environment_names_comes_first(wheel, monkeypatch):
    wheel("nixl_cu13")
    monkeypatch.setenv(nixl.VARIABLE, "/elsewhere/libnixl_capi.so")
    nixl.find_library()
    assert os.environ[nixl.VARIABLE] == "/elsewhere/libnixl_capi.so"


def test_another_wheel_with_such_a_file_is_none_of_nixl_s(wheel):
    path = wheel("nixl_ep_cu13")
    nixl.find_library()
    assert os.environ[nixl.VARIABLE] != path
