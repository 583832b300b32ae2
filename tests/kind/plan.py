"""A plan: named steps with what each needs, run side by side where they can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from tests.kind.progress import Reporter
from tests.kind.shell import terminate_children


@dataclass(frozen=True)
class Step:
    """One step. `fresh` says that its output is already there, then `make` is not called; `needs` are names of other steps."""

    name: str
    make: Callable[[], None]
    fresh: Callable[[], bool] = lambda: False
    needs: tuple[str, ...] = ()


def ready(steps: Sequence[Step], done: set[str], taken: set[str]) -> list[Step]:
    """The steps that may start: not taken yet and everything they need is done. Order of the list is kept."""
    return [step for step in steps if step.name not in taken and all(need in done for need in step.needs)]


def run_plan(steps: Sequence[Step], reporter: Reporter, *, workers: int = 3) -> None:
    """Run all steps, at most `workers` at a time.

    After a failure no new step starts, running ones end (their outputs stay, so the next call goes on from there) and the first
    error is raised. Raises ValueError for a plan that names an unknown need or can never end.
    """
    names = {step.name for step in steps}
    for step in steps:
        if unknown := set(step.needs) - names:
            raise ValueError(f"step {step.name!r} needs {sorted(unknown)}, which no step makes")
    done: set[str] = set()
    taken: set[str] = set()
    running: dict[Future[None], Step] = {}
    failed: BaseException | None = None
    with ThreadPoolExecutor(workers) as pool:
        while len(done) < len(steps):
            if failed is None:
                for step in ready(steps, done, taken)[: workers - len(running)]:
                    taken.add(step.name)
                    running[pool.submit(_run_step, step, reporter)] = step
            if not running:
                break
            try:
                finished = wait(running, return_when=FIRST_COMPLETED).done
            except BaseException:  # told to end: the pool waits for its threads, and they for their programs
                terminate_children()
                raise
            for future in finished:
                step = running.pop(future)
                if error := future.exception():
                    failed = failed or error
                else:
                    done.add(step.name)
    if failed:
        raise failed
    if len(done) < len(steps):
        raise ValueError(f"steps that need each other: {sorted(names - done)}")


def _run_step(step: Step, reporter: Reporter) -> None:
    if step.fresh():
        return
    with reporter.step(step.name):
        step.make()
