"""Whether a person debugs this process: then nothing is timed out, for a person takes as long as they take.

It counts that the process was told so (EVERSTEP_DEBUG=1, which `everstep local run --no-supervise` sets), that breakpoint() was
reached, or that a debugger is attached: pdb or another bdb by its trace function, debugpy, or one that registered with
sys.monitoring. Coverage and profilers trace, too, and are none. Once a debugger was seen, it counts until the process ends: pdb
takes its trace function back when told to continue, and the minutes before have passed.

Suspended are the time-outs of steps, also the one between heartbeats, and the time given to clean-up after a cancel.
"""

import sys

_seen = False
_DEBUGPY = ("debugpy", "pydevd")


def suspended() -> bool:
    """True: nothing may be timed out."""
    global _seen  # noqa: PLW0603  # one debugger per process
    if not _seen:
        _seen = _traced() or _monitored() or _attached()
    return _seen


def suspend() -> None:
    """A person said so."""
    global _seen  # noqa: PLW0603  # as above
    _seen = True


def watch() -> None:
    """Notice breakpoint(), which leaves no trace behind. Once per process; the hook that was there is called as before."""
    if getattr(sys.breakpointhook, "everstep", False):
        return
    inner = sys.breakpointhook

    def hook(*args: object, **kwargs: object) -> object:
        global _seen  # noqa: PLW0603  # as above
        _seen = True
        return inner(*args, **kwargs)

    hook.everstep = True  # type: ignore[attr-defined]  # how it knows itself
    sys.breakpointhook = hook


def _traced() -> bool:
    trace = sys.gettrace()
    owner = getattr(trace, "__self__", None)
    bdb = sys.modules.get("bdb")  # a debugger that is not imported does not run
    return (bdb is not None and isinstance(owner, bdb.Bdb)) or type(owner).__module__.partition(".")[0] in (
        "_pydevd_bundle",
        *_DEBUGPY,
    )


def _monitored() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


def _attached() -> bool:
    debugpy = sys.modules.get("debugpy")
    if debugpy is not None:
        return bool(debugpy.is_client_connected())
    return False


def forget() -> None:
    """For tests: no debugger was seen."""
    global _seen  # noqa: PLW0603  # as above
    _seen = False
