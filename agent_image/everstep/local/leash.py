"""Start a program that dies with its parent: `python -S leash.py PARENT_PID PROGRAM ARGUMENT…`.

The supervisor's death, even by SIGKILL, must end the agent: a process that nobody watches could go on causing effects. The
kernel's parent-death signal survives exec, so this file sets it and becomes the program. It imports as little as it can, since
every attempt starts through it where setpriv cannot do the same (see `child.leashed`). Elsewhere than on Linux there is no such
signal: the agent then lives until it is fenced.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the signal, look whether the parent is still there, become the program."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        import ctypes  # only here: it costs 10 ms

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:  # it died before the signal was set
            os._exit(75)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
