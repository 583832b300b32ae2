"""An agent dies with its supervisor, however it is put on the leash."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SUPERVISOR = """
import os, shutil, subprocess, sys
from everstep.local import child
if sys.argv[1] == "without":
    child.shutil.which = lambda name: None
argv = child.leashed(int(sys.argv[2]) or os.getpid(), os.environ)
assert sys.argv[1] == "as it comes" or argv[0] == sys.executable, argv
agent = subprocess.Popen([*argv, "/bin/sleep", "60"], start_new_session=True)
print(agent.pid, flush=True)
sys.exit(agent.wait())
"""


def supervisor(way: str, parent: int = 0) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "agent_image")}
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, way, str(parent)], env=env, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("way", ["as it comes", "without"], ids=["as it comes", "by Python"])
def test_the_agent_dies_with_its_supervisor(way: str) -> None:
    with supervisor(way) as one:
        assert one.stdout is not None
        pid = int(one.stdout.readline())
        handle = os.pidfd_open(pid)
        try:
            until = time.monotonic() + 10
            while "sleep" not in Path(f"/proc/{pid}/comm").read_text(encoding="utf-8"):  # the leash became the program
                assert time.monotonic() < until
            assert not select.select([handle], [], [], 0)[0], "it lives"
            one.kill()
            assert select.select([handle], [], [], 10)[0], "it lives on without a supervisor"
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


@pytest.mark.parametrize("way", ["as it comes", "without"], ids=["as it comes", "by Python"])
def test_it_does_not_begin_when_the_supervisor_is_gone_already(way: str) -> None:
    with supervisor(way, parent=2**22 + 1) as one:
        assert one.wait(20) == 75


@pytest.mark.parametrize("name", ["app.profile", "MY-TOKEN", "naïve", "PLAIN"])
def test_every_variable_reaches_the_agent(name: str) -> None:
    """A shell in between would drop the names that it cannot have itself."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "agent_image"), name: "kept"}
    show = f"import os, sys; sys.stdout.write(os.environ.get({name!r}, 'lost'))"
    code = f"""
import os, subprocess, sys
from everstep.local import child
argv = [*child.leashed(os.getpid(), os.environ), sys.executable, "-c", {show!r}]
sys.exit(subprocess.run(argv).returncode)
"""
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "kept"
