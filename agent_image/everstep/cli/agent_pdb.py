"""pdb in agent code. Imported when it is asked for: pdb costs every command 10 ms."""

import contextvars
import pdb  # a command of `everstep local replay`
import sys
from types import FrameType

from everstep.cli.agent_stack import is_agents
from everstep.run.scope import SCOPE

_SKIPPED = [
    "everstep.*",
    "asyncio.*",
    "contextvars",
    "contextlib",
    "pydantic.*",
    "pydantic_core.*",
    "json.*",
    "selectors",
]


class Debugger(pdb.Pdb):
    """pdb in agent code: stepping goes over Everstep and asyncio."""

    def __init__(self) -> None:
        super().__init__(skip=_SKIPPED, nosigint=True)
        self.prompt = "(everstep) "

    def open_at(self, frame: FrameType) -> bool:
        """Stop there. With next or step it stops again further on, if `frame` is on this thread's stack. False: quit."""
        self.reset()
        context = contextvars.copy_context()
        context.run(SCOPE.set, None)  # what a person looks at is not agent code's doing
        context.run(self.interaction, frame, None)
        if self.quitting:
            return False
        if getattr(self, "stoplineno", -1) != -1 or getattr(self, "breaks", None):
            below: FrameType | None = frame
            while below is not None and is_agents(below):
                below.f_trace = self.trace_dispatch
                below = below.f_back
            sys.settrace(self.trace_dispatch)
        return True
