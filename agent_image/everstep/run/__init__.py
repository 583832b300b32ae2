"""The run: everything that happens in an agent process, from claim to exit.

Belongs here: the event loop and its delivery order, scopes and keys, steps and their tries, the writer queue's use, the
process's start and end. Must not be here: commands, supervisors, Kubernetes.

What few runs need is imported where it is used: imports are most of the time from a loss to the next step.
tests/support/starting.py lists what a start must do without.

The package is also the function `everstep.run(agent, goal=…)`: one word for what people do and for where it is done.
"""

import sys
import types
from typing import Any


class _RunPackage(types.ModuleType):
    """This package, made callable. The real signature is everstep.run.inprocess.run, which type checkers see."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # see the class
        from everstep.run.inprocess import run  # imports the whole engine: only when something is run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _RunPackage
