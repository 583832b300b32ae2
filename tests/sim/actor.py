"""An operator for the simulated world: observes, asks the real `decide`, and acts in the documented order, yielding between
any two writes so that it can be killed, or overtaken by another operator, at each of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from everstep.ids import Attempt, EpochMs, InboxId, Seq
from everstep.journal.inbox import make_entry
from everstep.journal.progress import Progress
from everstep.journal.store import FenceAnswer
from everstep_operator.api.models import read_spec, read_status
from everstep_operator.decide import decide as real_decide
from everstep_operator.decide.model import (
    TURNS_MAX,
    Action,
    AddInbox,
    Answer,
    Asked,
    CreatePod,
    CreateRequest,
    Decision,
    DeletePod,
    DeleteRun,
    EnsureRunSecret,
    Fence,
    JournalDown,
    JournalView,
    MarkDeleted,
    News,
    Observed,
    PodView,
    Prepare,
    Refusal,
    RequestView,
    Rules,
    RunView,
    SetRequestState,
    StoreHealth,
)
from tests.sim.world import NAME, UID, Moved, World, now_of

DONE, MOVED = True, False
PROGRESS = ("result", "fired", "settled", "wait_resolved")
Decide = Callable[..., Decision]


@dataclass
class Operator:
    """One operator process. `memory` is lost with it."""

    world: World
    decide: Decide = real_decide
    rules: Rules = field(default_factory=Rules)
    wake: int = 0
    seen_pods: dict[str, PodView] = field(default_factory=dict)
    refusals: dict[Asked, Refusal] = field(default_factory=dict)
    prepared: int | None = None
    work: Iterator[str] | None = None
    deleted_read: int = 0
    turns: int = 0

    def restart(self) -> None:
        """SIGKILL, and a new process that remembers nothing."""
        self.work, self.wake, self.prepared, self.deleted_read = (
            None,
            self.world.now,
            None,
            len(self.world.deleted_pods),
        )
        self.seen_pods, self.refusals = {}, {}

    def step(self) -> bool:
        """Do the next small thing. False: nothing to do for now."""
        if self.work is None:
            if self.world.now < self.wake:
                return False
            self.work = self._reconcile()
        try:
            next(self.work)
        except StopIteration:
            self.work = None
        return True

    def _reconcile(self) -> Iterator[str]:
        for _ in range(TURNS_MAX):
            self.turns += 1
            seen = self.observe()
            yield "observed"
            decision = self.decide(seen, rules=self.rules, now_epoch_ms=EpochMs(self.world.now))
            outcome = yield from self._act(seen, decision)
            if outcome is DONE and not decision.again:
                at = decision.look_again_epoch_ms
                resync = self.world.now + self.rules.resync_s * 1000
                self.wake = min(at, resync) if at is not None else resync
                return
        self.world.note("NO REST")
        self.wake = self.world.now + 5000

    # --- observe

    def observe(self) -> Observed:
        world, run = self.world, self.world.run
        view = None
        if run is not None:
            raw = run["status"]
            spec, status = read_spec(run["spec"]), read_status(raw)
            version, created = str(run["version"]), EpochMs(world.started)
            view = RunView("default", NAME, UID, run["generation"], version, created, spec, status, raw)
        pods = self._pods()
        return Observed(
            "default", NAME, UID, view, pods, self._journal(view), self._requests(), StoreHealth(server="memory"), self.prepared,
            tuple(self.refusals.values()),
        )  # fmt: skip

    def _pods(self) -> tuple[PodView, ...]:
        for gone in self.world.deleted_pods[self.deleted_read :]:
            self.seen_pods[gone.uid] = self.world.gone_view(gone)
        self.deleted_read = len(self.world.deleted_pods)
        live = {p.uid: self.world.view(p) for p in self.world.pods.values()}
        newest = max((p.attempt or 0 for p in live.values()), default=0)
        for uid, view in list(self.seen_pods.items()):
            if uid not in live:
                self.seen_pods[uid] = self.world.gone_view(view)
            if (view.attempt or 0) < newest:
                del self.seen_pods[uid]
        self.seen_pods |= live
        return tuple(self.seen_pods.values())

    def _journal(self, run: RunView | None) -> JournalView | JournalDown:
        world = self.world
        if not world.store_up:
            return JournalDown("the store is away", EpochMs(world.now))
        have = world.store.journals_by_id.get(UID)
        genesis = world.chain.genesis()
        if have is None:
            return JournalView(genesis=genesis)
        anchor = run.status.checkpoint.seq if run and run.status.checkpoint else 0
        by_seq = {r.seq: r for r in have.records}
        progress_seq: Seq | None = None
        applied: set[InboxId] = set()
        for stored in have.records:
            record = world.decoded(stored)
            if stored.seq > anchor and record.kind in PROGRESS:
                progress_seq = stored.seq
            if stored.seq > anchor and record.kind in ("settled", "cancel"):
                applied.add(InboxId(record.inbox))  # type: ignore[union-attr]  # these two kinds have it
        last = have.records[-1] if have.records else None
        return JournalView(
            genesis=genesis,
            attempt=have.attempt,
            owner=have.owner,
            head=have.head,
            last=world.decoded(last) if last else None,
            news=News(progress_seq, frozenset(applied)),
            at_anchor=by_seq[Seq(anchor)].hash if anchor in by_seq else None,
            progress=Progress.from_bytes(have.progress) if have.progress else None,
            inbox=frozenset(e.id for e in world.store.inboxes.get(UID, [])),
            requests={k.removeprefix("request/"): v for k, v in have.fields.items() if k.startswith("request/")},
            deleted_at=have.fields.get("deletedAt", ""),
        )

    def _requests(self) -> tuple[RequestView, ...]:
        found = []
        for name, obj in self.world.requests.items():
            response = Answer(**obj["response"]) if obj["response"] else None
            found.append(
                RequestView(name, obj["uid"], UID, "uncertain", obj["key"], obj["digest"], response, obj["state"])
            )
        return tuple(found)

    # --- act

    def _act(self, seen: Observed, decision: Decision) -> Iterator[str]:
        if decision.status is not None:
            try:
                self.world.patch_status(decision.status.operations)
            except Moved:
                return MOVED
            yield "status"
        for event in decision.events:
            self.world.note(f"event {event.reason}: {event.note}")
            self.world.writes[f"event {event.reason}"] += 1
        for action in decision.actions:
            outcome = self._one(seen, action)
            yield type(action).__name__
            if outcome is not DONE:
                return MOVED
        return DONE

    def _one(self, seen: Observed, action: Action) -> bool:
        world = self.world
        match action:
            case Prepare():
                self.prepared = seen.run.generation if seen.run else None
            case Fence():
                return self._fence(action)
            case EnsureRunSecret():
                return DONE
            case CreatePod():
                return self._create(seen, action)
            case DeletePod():
                world.delete_pod(action.name, action.uid)
            case AddInbox():
                if not world.store_up:
                    return MOVED
                now_of(world.store.inbox_add(UID, make_entry(world.chain, action.entry_id, action.body)))
            case CreateRequest():
                return self._ask(action)
            case SetRequestState():
                if action.name in world.requests and world.requests[action.name]["uid"] == action.uid:
                    world.requests[action.name]["state"] = action.state
            case MarkDeleted():
                now_of(world.store.set_fields(UID, {"deletedAt": action.at}))
            case DeleteRun():
                world.run = None
        return DONE

    def _fence(self, action: Fence) -> bool:
        if not self.world.store_up:
            return MOVED
        reply = now_of(self.world.store.fence(UID, action.attempt, action.anchor, {}))
        self.world.note(f"fence {action.attempt}: {reply.answer}")
        if reply.answer is not FenceAnswer.OK:
            return MOVED
        return action.expect is None or reply.head == action.expect

    def _create(self, seen: Observed, action: CreatePod) -> bool:
        world = self.world
        if world.quota_full:
            generation = seen.run.generation if seen.run else 0
            message = "pods is forbidden: exceeded quota: small"
            self.refusals[Asked.CREATE_POD] = Refusal(
                Asked.CREATE_POD, 403, "Forbidden", message, EpochMs(world.now), generation, action.attempt
            )
            return MOVED
        self.refusals.pop(Asked.CREATE_POD, None)
        world.before_create(Attempt(action.attempt), seen)
        return world.create_pod(action.attempt, action.predecessor_dead, action.not_on_nodes)

    def _ask(self, action: CreateRequest) -> bool:
        world = self.world
        if not world.store_up:
            return MOVED
        obj = world.requests.get(action.name)
        if obj is None:
            uid = world.fresh_uid("hreq")
            obj = {"uid": uid, "key": action.wait.key, "digest": action.wait.input, "response": None, "state": ""}
            world.requests[action.name] = obj
            world.note(f"asked {action.name} about {action.wait.key}")
        now_of(world.store.set_fields(UID, {f"request/{action.name}": obj["uid"]}))
        return DONE
