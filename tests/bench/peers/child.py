"""The inside of a measured process: JSON commands on stdin, JSON answers on the first stdout; all else goes to stderr.

    {"do": "steps", "run": r, "steps": n}              → {"gaps_ms": […]}   between the starts of successive bodies
    {"do": "many", "runs": k, "steps": n, "run": r}    → {"wall_s": t}      k runs at once
    {"do": "hold", "run": r, "steps": n, "at": m}      → {"reached": m}     and hangs in body m, to be killed
    {"do": "resume", "run": r, "steps": n}             → {"first": m}       as the first body after the crash starts
    {"do": "settings"}                                 → {"settings": {…}}  as the engine gives them back
    {"do": "close"}                                    → {"closed": true}   everything is on disk, and the process ends

Standard library only: peers' environments have nothing else of ours.
"""

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

TEXT = "".join(random.Random(0).choices("0123456789 abcdefghijklmnopqrstuvwxyz", k=4000))
"""The same for all, and no engine can make it much smaller."""
Body = Callable[[int], str]


class Engine:
    """What an engine's file says of it."""

    def settings(self) -> dict[str, object]:
        """Versions and durability settings, as the engine itself gives them back."""
        raise NotImplementedError

    def run(self, run: str, steps: int, body: Body) -> None:
        """A new run of `steps` sequential steps, each of which calls `body(n)` and keeps its 4 KB result; returns at its end."""
        raise NotImplementedError

    def resume(self, run: str, steps: int, body: Body) -> None:
        """Go on with a run whose process was killed."""
        self.run(run, steps, body)

    def many(self, run: str, runs: int, steps: int, body: Body) -> None:
        """Several runs at once in this process; a thread each unless the engine has a better way."""
        errors: list[BaseException] = []

        def one(name: str) -> None:
            try:
                self.run(name, steps, body)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=one, args=(f"{run}-{n}",)) for n in range(runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Leave everything on disk as after an orderly end."""


def plain(_n: int) -> str:
    """An empty body."""
    return TEXT


def serve(make: Callable[[], Engine]) -> None:
    """Answer commands until stdin ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever an engine prints must not mix with the answers

    def say(**answer: object) -> None:
        out.write(json.dumps(answer) + "\n")

    engine = make()
    say(ready=True)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        try:
            _carry_out(engine, command, say)
        except Exception as e:
            say(failed=f"{type(e).__name__}: {e}")
        if command["do"] == "close":
            out.flush()
            os._exit(0)


def _carry_out(engine: Engine, command: dict[str, Any], say: Callable[..., None]) -> None:
    do = command["do"]
    if do == "steps":
        stamps: list[float] = []

        def stamped(_n: int) -> str:
            stamps.append(time.perf_counter())
            return TEXT

        engine.run(command["run"], command["steps"], stamped)
        say(gaps_ms=[(b - a) * 1000 for a, b in itertools.pairwise(stamps)])
    elif do == "many":
        begin = time.perf_counter()
        engine.many(command["run"], command["runs"], command["steps"], plain)
        say(wall_s=time.perf_counter() - begin)
    elif do == "hold":

        def holding(n: int) -> str:
            if n == command["at"]:
                say(reached=n)
                time.sleep(600)  # killed here
            return TEXT

        engine.run(command["run"], command["steps"], holding)
    elif do == "resume":
        told: list[int] = []

        def telling(n: int) -> str:
            if not told:
                told.append(n)
                say(first=n)
            return TEXT

        engine.resume(command["run"], command["steps"], telling)
        say(done=True)
    elif do == "settings":
        say(settings=engine.settings())
    elif do == "close":
        engine.close()
        say(closed=True)
