"""Saying what is being done: every step is printed with its seconds, live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

HEARTBEAT_S = 30.0


class Reporter:
    """Prints steps to standard error, so that standard output stays free for answers. Safe to use from several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._live: Progress | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """While open, running steps are shown (terminal) or named every 30 s (elsewhere)."""
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            with Progress(*columns, console=self._console, transient=True) as self._live:
                yield
            self._live = None
            return
        stop = threading.Event()
        beat = threading.Thread(target=self._heartbeat, args=(stop,), daemon=True)
        beat.start()
        try:
            yield
        finally:
            stop.set()

    def _heartbeat(self, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_S):
            with self._lock:
                now = time.monotonic()
                busy = ", ".join(f"{name} ({now - since:.0f} s)" for name, since in self._running.items())
            if busy:
                self.say(f"still running: {busy}")

    def say(self, text: str) -> None:
        """Print one line with the time of day."""
        self._console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step; a failed one is printed as failed and its error passes on."""
        start = time.monotonic()
        with self._lock:
            self._running[name] = start
        task = self._live.add_task(name, total=None) if self._live else None
        if self._live is None:
            self.say(f"start {name}")
        outcome = "FAILED"
        try:
            yield
            outcome = "done"
        finally:
            with self._lock:
                self._running.pop(name, None)
            if self._live and task is not None:
                self._live.remove_task(task)
            self.say(f"{outcome} {name}: {time.monotonic() - start:.1f} s")
