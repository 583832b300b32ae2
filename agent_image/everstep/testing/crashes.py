"""`for_every_crash`: one line of a test that proves an agent survives a crash anywhere."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from everstep.errors import Diverged
from everstep.journal.records import Waited, canonical
from everstep.run.agents import Agent
from everstep.run.probe import NOT_DONE, Done, Probed
from everstep.testing.memory import Ended, MemoryRun

R = TypeVar("R")
Answer = Callable[[Waited], "Probed[Any] | None"]  # Done of the step's own result
PARKS_MAX = 1000
"""Parks of one run; more mean that it never ends."""


@dataclass
class CrashReport:
    """What `for_every_crash` tried."""

    moments: int = 0
    """Crashes, each in a run of its own."""
    points: Counter[str] = field(default_factory=Counter)
    """The same by fault point (everstep.faults)."""
    asked: list[str] = field(default_factory=list)
    """Moments after which the run waits for a person, because an at_most_once step may have happened: `point (n): step`."""
    result: object = None
    """Of the undisturbed run."""


@overload
def for_every_crash(
    agent: "Agent[..., Any]",  # of any signature and result
    goal: str = "",
    inputs: Mapping[str, object] | None = None,
    *,
    effects: "Counter[str] | None" = None,
    answer: Answer | None = None,
    same_result: bool = True,
    every: int = 1,
    **options: Any,  # of MemoryRun
) -> CrashReport:
    """The proof of an agent."""


@overload
def for_every_crash(
    agent: Callable[[], MemoryRun[R]], *, every: int = 1
) -> Iterator[tuple[str, MemoryRun[R], Ended[R]]]:
    """See `each_crash`."""


def for_every_crash(
    agent: "Agent[..., Any] | Callable[[], MemoryRun[Any]]",  # of any signature and result
    goal: str = "",
    inputs: Mapping[str, object] | None = None,
    *,
    effects: "Counter[str] | None" = None,
    answer: Answer | None = None,
    same_result: bool = True,
    every: int = 1,
    **options: Any,  # of MemoryRun
) -> "CrashReport | Iterator[tuple[str, MemoryRun[Any], Ended[Any]]]":  # as above
    """Run the agent once undisturbed, then once for each moment of that run with a crash there, and prove each time that it goes
    on, ends as the undisturbed run did, did the same to the outside, and that its journal replays without running a step:

        def test_triage_survives_a_crash_anywhere() -> None:
            for_every_crash(triage, goal="Triage", inputs={"backlog": "b.json"}, effects=effects)

    effects      a Counter (or `Effects`) that the steps' fakes fill; cleared before each run. After a crash it must hold the same
                 as after the undisturbed run: nothing lost, nothing twice
    answer       what a person says about an at_most_once step that may have happened: Done(value) or NOT_DONE; None leaves the
                 run waiting. Without it such runs are checked (nothing happened twice) and counted in `asked`
    same_result  False: the result may differ, because it holds time or randomness drawn by everstep.now(), uuid4(), random()
    every        crash at every nth moment only, for agents with many steps
    options      of MemoryRun, e.g. seed=3 or park_linger_s=0

    Given a function that makes a MemoryRun it is `each_crash`. Raises AssertionError that names the moment."""
    if not isinstance(agent, Agent):
        return each_crash(agent, every=every)
    proof = _Proof(agent, goal, inputs, effects, answer, same_result, options)
    proof.undisturbed()
    moment = 1
    while proof.crashed_at(moment):
        moment += every
    return proof.report


def each_crash(make: Callable[[], MemoryRun[R]], *, every: int = 1) -> Iterator[tuple[str, MemoryRun[R], Ended[R]]]:
    """Crash a fresh run at each moment in turn (each `every`-th), and let another attempt go on: yields the moment, the run and
    how that attempt ended, for checks of your own. The finished journal has been replayed."""
    moment = 1
    while True:
        run = make()
        if run.attempt(crash_at=f"any:{moment}").kind != "crashed":
            return
        at = f"{run.reached[-1]} ({moment})"
        ended = run.attempt()
        if ended.kind == "succeeded":
            run.replay()
        yield at, run, ended
        moment += every


class _Proof:
    """One agent's."""

    def __init__(
        self,
        agent: "Agent[..., Any]",  # of any signature and result
        goal: str,
        inputs: Mapping[str, object] | None,
        effects: "Counter[str] | None",
        answer: Answer | None,
        same_result: bool,
        options: Mapping[str, Any],  # of MemoryRun
    ) -> None:
        self.agent, self.goal, self.inputs, self.options = agent, goal, inputs, options
        self.effects = effects
        self.answer = answer
        self.same_result = same_result
        self.report = CrashReport()
        self.calm: Ended[Any] = Ended("stopped")
        self.calm_effects: Counter[str] = Counter()

    def fresh(self) -> MemoryRun[Any]:  # of any result
        if self.effects is not None:
            self.effects.clear()
        return MemoryRun(self.agent, self.goal, self.inputs, **self.options)

    def undisturbed(self) -> None:
        run = self.fresh()
        self.calm, _ = self.to_the_end(run)
        if self.calm.kind not in ("succeeded", "failed"):
            raise AssertionError(f"the undisturbed run {_said(self.calm)}") from self.calm.error
        self.replays(run, "the undisturbed run")
        self.report.result = self.calm.value
        self.calm_effects = Counter(self.effects or {})

    def crashed_at(self, moment: int) -> bool:
        """False: the run has no such moment any more."""
        run = self.fresh()
        ended, point = self.to_the_end(run, moment)
        if not point:
            return False
        at = f"crashed at {point} ({moment})"
        self.report.moments += 1
        self.report.points[point] += 1
        if ended.kind == "parked":
            names = ", ".join(f"{w.name} #{w.key}" for w in ended.waits)
            self.report.asked.append(f"{point} ({moment}): {names}")
            self.compare_effects(at, whole=False)
            return True
        if ended.kind != self.calm.kind:
            raise AssertionError(f"{at}, the run {_said(ended)}; undisturbed it {_said(self.calm)}") from ended.error
        self.compare_effects(at, whole=True)
        if ended.message != self.calm.message or (self.same_result and not self.same(run, ended)):
            raise AssertionError(
                f"{at}, the run ended otherwise.\n  undisturbed:  {self.calm.value!r} {self.calm.message}\n"
                f"  after it:     {ended.value!r} {ended.message}\n"
                f"If the result holds drawn time or randomness: same_result=False."
            )
        self.replays(run, at)
        return True

    def same(self, run: MemoryRun[Any], ended: Ended[Any]) -> bool:  # of any result
        if ended.kind != "succeeded":
            return True
        encode = run.agent.result.encode
        return canonical(encode(ended.value).data) == canonical(encode(self.calm.value).data)

    def to_the_end(self, run: MemoryRun[Any], moment: int = 0) -> tuple[Ended[Any], str]:  # of any result
        """Through its parks, as far as answers go, with a crash at one moment of the whole; how it ended, and the point of the
        crash if there was one."""
        point = ""
        for _ in range(PARKS_MAX):
            ended = run.attempt(crash_at=f"any:{moment}" if moment > 0 else None)
            if ended.kind == "crashed":
                moment, point = 0, run.reached[-1]
                continue
            moment -= len(run.reached)
            if ended.kind != "parked" or not self.goes_on(run, ended):
                return ended, point
        raise AssertionError(f"the run parked {PARKS_MAX} times and did not end: {ended.waits}")

    def goes_on(self, run: MemoryRun[Any], ended: Ended[Any]) -> bool:  # of any result
        """Answer its questions, or else sleep until its timer."""
        questions = [w for w in ended.waits if w.kind == "uncertain"]
        answered = [self.settled(run, w) for w in questions]  # all of them, not the first alone
        if any(answered):
            return True
        if questions or ended.wake_epoch_ms is None:
            return False
        run.sleep(max(0.0, (ended.wake_epoch_ms - run.clock.now_epoch_ms()) / 1000))
        return True

    def settled(self, run: MemoryRun[Any], wait: Waited) -> bool:  # of any result
        said = self.answer(wait) if self.answer is not None else None
        if isinstance(said, Done):
            run.settle(wait.key, "done", said.value)
        elif said is NOT_DONE:
            run.settle(wait.key, "again")
        else:
            return False
        return True

    def replays(self, run: MemoryRun[Any], at: str) -> None:  # of any result
        try:
            ended = run.copy().attempt(run_to_end=True)
            if ended.kind == "stopped":
                raise ended.error or AssertionError(ended.message)
            if ended.kind == "succeeded":
                run.replay()
        except Diverged as e:
            raise AssertionError(f"{at}: the finished journal does not replay: {e}") from e

    def compare_effects(self, at: str, *, whole: bool) -> None:
        if self.effects is None:
            return
        twice = {k: n for k, n in self.effects.items() if n > self.calm_effects[k]}
        if twice:
            raise AssertionError(
                f"{at}, the outside saw more than undisturbed: {twice} instead of "
                f"{ {k: self.calm_effects[k] for k in twice} }. A step that is lost in flight runs again: let the service "
                f"recognise everstep.idempotency_key() (Effects.once does), or declare the step at_most_once"
            )
        lost = {k: n for k, n in self.calm_effects.items() if n > self.effects[k]}
        if lost and whole:
            raise AssertionError(f"{at}, the outside saw less than undisturbed: {dict(self.effects)} instead of {lost}")


def _said(ended: Ended[Any]) -> str:  # of any result
    why = ended.message or "; ".join(f"{w.name or w.kind} #{w.key}: {w.reason}" for w in ended.waits)
    return f"{ended.kind}: {why}" if why else ended.kind


__all__ = ["CrashReport", "each_crash", "for_every_crash"]
