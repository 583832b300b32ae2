"""`decide`: the one entry of this package. The rules are asked in order; the first that answers decides the turn."""

from collections.abc import Callable

from everstep.ids import EpochMs
from everstep_operator.api.models import AgentRunSpec, AgentSpec
from everstep_operator.api.words import Reason, Summary
from everstep_operator.decide import attempts, blocked, ends, over, resting, watch
from everstep_operator.decide.deletion import decide_deleted
from everstep_operator.decide.look import Look
from everstep_operator.decide.model import Decision, Observed, Rules
from everstep_operator.decide.plan import Plan
from everstep_operator.decide.status import settle

Rule = Callable[[Look], Plan | None]

RULES: tuple[Rule, ...] = (
    over.already_over,
    over.never_started,
    blocked.journal_down,
    # From here on the journal has been read.
    over.journal_refused,
    over.journal_finished,
    over.erased,
    over.fork_unfinished,
    attempts.journal_ahead,
    over.closing,
    over.deadline_passed,
    over.cancel,
    resting.suspended,
    resting.parked,
    attempts.first,
    ends.ended,
    ends.vanished_pod,
    attempts.create,
    watch.watch,
)
"""Order is meaning: what the journal says comes before what anybody wishes, wishes come before the pod's state."""


def decide(seen: Observed, *, rules: Rules, now_epoch_ms: EpochMs) -> Decision:
    """Say what to do next for one run: one turn (see `everstep_operator.decide.model`). Pure: no I/O, no clock; the same
    input gives the same answer. Raises nothing for any input an API server or a store can produce."""
    run = seen.run
    if run is None or run.deletion_epoch_ms is not None:
        return decide_deleted(seen, rules, now_epoch_ms)
    if run.spec is None:
        unread = AgentRunSpec(agent=AgentSpec(entrypoint=""))
        look = Look.of(seen, run, unread, rules, now_epoch_ms)
        return settle(
            look, blocked.block(look, Reason.SPEC_INVALID, blocked.spec_invalid_message(run.spec_error), stalled=True)
        )
    look = Look.of(seen, run, run.spec, rules, now_epoch_ms)
    return settle(look, choose(look))


def choose(look: Look) -> Plan:
    """The first rule that answers."""
    for rule in RULES:
        plan = rule(look)
        if plan is not None:
            return plan
    # No rule: an open attempt without a pod to watch and without a reason not to make one cannot be; look again soon.
    return Plan(
        look.status,
        Summary.STARTING,
        Reason.POD_PENDING,
        reconciling=True,
        look_again=look.in_s(look.rules.poll_live_s),
    )
