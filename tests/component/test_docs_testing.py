"""The examples of docs/testing.md, run as their reader would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_of_the_page_passes(tmp_path: Path) -> None:
    blocks = BLOCK.findall((REPOSITORY / "docs" / "testing.md").read_text())
    assert {name for name, _ in blocks} == {
        "support.py",
        "test_support.py",
        "test_model.py",
        "conftest.py",
        "test_server.py",
    }
    for name, text in blocks:
        with (tmp_path / name).open("a") as file:
            file.write(text + "\n\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    env = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'agent_image'}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
