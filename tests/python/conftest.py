# SPDX-License-Identifier: Apache-2.0
"""What the tests share: configs of the tree, the documents of two small workers."""

import json
import os
from pathlib import Path

import pytest

SOURCE = Path(os.environ["KVFERRY_SOURCE"])


@pytest.fixture(scope="session")
def example() -> dict:
    """The example of docs/layout-format.md."""
    page = (SOURCE / "docs" / "layout-format.md").read_text()
    return json.loads(page.split("```json\n", 1)[1].split("```", 1)[0])


@pytest.fixture(scope="session")
def llama() -> str:
    return (SOURCE / "models" / "Llama-3.1-8B.json").read_text()
