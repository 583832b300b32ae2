"""HumanRequests: ask what a park waits for, put answers into the inbox, keep each request's state true.

The operator heeds only requests whose uid it kept in the journal when it created them.
"""

from everstep.ids import InboxId
from everstep.journal.inbox import SettleBody
from everstep.journal.records import Park, Waited
from everstep_operator.api.request import arguments_digest, request_name
from everstep_operator.decide.look import Look
from everstep_operator.decide.model import Action, AddInbox, CreateRequest, RequestView, SetRequestState

OPEN, ANSWERED, APPLIED, STALE = "Open", "Answered", "Applied", "Stale"


def settle_id(request: RequestView) -> InboxId:
    """One answer per request: its uid is the entry's id."""
    return InboxId(f"settle-{request.uid}")


def ours(look: Look) -> tuple[RequestView, ...]:
    """Requests of this run that the operator created."""
    kept = look.journal.requests if look.journal else {}
    return tuple(r for r in look.seen.requests if r.run_uid == look.run.uid and kept.get(r.name) == r.uid)


def asked(park: Park) -> tuple[Waited, ...]:
    """Waits that only a person can end."""
    return tuple(w for w in park.waits if w.kind == "uncertain")


def request_of(look: Look, wait: Waited) -> RequestView | None:
    """The request that asks about this wait, if it exists and is ours."""
    name = request_name(look.run.name, wait)
    return next((r for r in ours(look) if r.name == name), None)


def missing(look: Look, park: Park) -> tuple[CreateRequest, ...]:
    """Questions that must be asked (again, if somebody deleted the object)."""
    return tuple(CreateRequest(request_name(look.run.name, w), w) for w in asked(park) if request_of(look, w) is None)


def deliveries(look: Look, park: Park) -> tuple[AddInbox, ...]:
    """Answers that are not in the inbox yet."""
    inbox = look.journal.inbox if look.journal else frozenset()
    found = []
    for wait in asked(park):
        request = request_of(look, wait)
        body = _body(wait, request) if request else None
        if request and body and settle_id(request) not in inbox:
            found.append(AddInbox(settle_id(request), body))
    return tuple(found)


def answered(look: Look, park: Park) -> tuple[InboxId, ...]:
    """Ids of answers in the inbox to what this park waits for."""
    inbox = look.journal.inbox if look.journal else frozenset()
    requests = [r for w in asked(park) if (r := request_of(look, w)) is not None]
    return tuple(settle_id(r) for r in requests if settle_id(r) in inbox)


def states(look: Look) -> tuple[Action, ...]:
    """State writes for requests whose state is not what it should be."""
    park = look.park
    pending = {request_name(look.run.name, w) for w in asked(park)} if park else None
    found: list[Action] = []
    for request in ours(look):
        state, message = _state(look, request, pending)
        if state and state != request.state and request.state not in (APPLIED, STALE):
            found.append(SetRequestState(request.name, request.uid, state, message))
    return tuple(found)


def close_all(look: Look, why: str) -> tuple[Action, ...]:
    """The run is over: nobody waits for an answer any more."""
    found: list[Action] = []
    for request in ours(look):
        if request.state in (APPLIED, STALE):
            continue
        taken = look.journal is not None and settle_id(request) in look.journal.inbox and _delivered(look, request)
        state, message = (APPLIED, "") if taken else (STALE, why)
        found.append(SetRequestState(request.name, request.uid, state, message))
    return tuple(found)


def _state(look: Look, request: RequestView, pending: set[str] | None) -> tuple[str, str]:
    journal = look.journal
    inbox_id = settle_id(request)
    if journal is not None and inbox_id in journal.news.applied:
        return APPLIED, ""
    in_inbox = journal is not None and inbox_id in journal.inbox
    if pending is not None and request.name not in pending:
        # Parked, and not for this question any more: the answer was taken, or the step was settled otherwise.
        return (APPLIED, "") if in_inbox else (STALE, "the run does not wait for this answer any more")
    if request.response is None:
        return (OPEN, "") if pending is not None else ("", "")
    return ANSWERED, ""


def _delivered(look: Look, request: RequestView) -> bool:
    return any(settle_id(request) in a.inbox for a in look.status.attempts)


def _body(wait: Waited, request: RequestView) -> SettleBody | None:
    answer = request.response
    if answer is None or answer.arguments_digest != arguments_digest(wait):
        return None
    if answer.decision not in ("done", "again", "fail"):
        return None
    return SettleBody.model_validate(
        {
            "key": wait.key,
            "input": wait.input,
            "decision": answer.decision,
            "value": answer.value,
            "by": answer.by,
            "reason": answer.reason,
        }
    )
