# SPDX-License-Identifier: Apache-2.0
"""The tests that every engine passes (src/engine/pair_*_test.h), over Mooncake's wheel: each in a process of its own,
whose forks are the two sides. A peer that is stopped is closed when Mooncake itself gives up (the engine `lingers`),
after half a minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry import _library

SOURCE = Path(os.environ["KVFERRY_SOURCE"])
BODIES = (
    "move_both_ways",
    "move_to_all",
    "move_crosswise",
    "move_many",
    "move_out_of_range",
    "killed",
    "gone",
    "cancel",
    "stopped_under_way",
    "stopped_at_first",
    "close",
    "close_engine",
)
RUN = """
import ctypes, sys
from kvferry import mooncake
engine = mooncake.add_engine().encode()
sys.exit(ctypes.CDLL(sys.argv[1]).bodies_run(engine, sys.argv[2].encode()) != 0)
"""


@pytest.fixture(name="bodies", scope="session")
def compiled_bodies(tmp_path_factory):
    made = tmp_path_factory.mktemp("bodies") / "bodies.so"
    source = Path(__file__).with_name("bodies.c")
    folders = [f"-I{SOURCE / folder}" for folder in ("include", "src")]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    library = _library.library()._name  # the one that Python has opened
    subprocess.run(["cc", *flags, *folders, source, "-o", made, library], check=True)
    return made


@pytest.mark.parametrize("body", BODIES)
def test_what_holds_for_every_engine(bodies, body):
    done = subprocess.run(
        [sys.executable, "-c", RUN, bodies, body],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
