"""HumanRequests: ask what a park waits for, put answers into the inbox, keep each request's state true.

The operator heeds only requests whose uid it kept in the journal when it created them. An answer is given once; a run that had
it and parks again for the same wait could not take it, and is asked about with a new request.
"""

from dataclasses import dataclass
from typing import get_args

from everstep.ids import Decision, InboxId
from everstep.journal.inbox import SettleBody
from everstep.journal.records import Park, Waited
from everstep_operator.api.request import arguments_digest, request_name
from everstep_operator.decide.look import Look
from everstep_operator.decide.model import Action, AddInbox, CreateRequest, RequestView, SetRequestState

OPEN, ANSWERED, APPLIED, STALE = "Open", "Answered", "Applied", "Stale"
ASKED = ("uncertain", "exhausted")
"""Kinds of waits that a person ends, each with done, again or fail."""
ASKED_MAX = 20
"""How often one wait is asked about: a bound for the search, far above what a person would put up with."""


@dataclass(frozen=True)
class Question:
    """One wait, and the request that asks about it now."""

    wait: Waited
    name: str
    number: int
    request: RequestView | None
    """None: not asked yet, or somebody deleted the object."""


def settle_id(request: RequestView) -> InboxId:
    """One answer per request: its uid is the entry's id."""
    return InboxId(f"settle-{request.uid}")


def ours(look: Look) -> tuple[RequestView, ...]:
    """Requests of this run that the operator created."""
    kept = look.journal.requests if look.journal else {}
    return tuple(r for r in look.seen.requests if r.run_uid == look.run.uid and kept.get(r.name) == r.uid)


def open_questions(look: Look, park: Park) -> tuple[Question, ...]:
    """What only a person can end."""
    return tuple(_question(look, wait) for wait in park.waits if wait.kind in ASKED)


def _question(look: Look, wait: Waited) -> Question:
    existing = {r.name: r for r in ours(look)}
    for number in range(1, ASKED_MAX):
        name = request_name(look.run.name, wait, number)
        request = existing.get(name)
        if request is None or not (request.state == STALE or _delivered(look, request)):
            return Question(wait, name, number, request)
    return Question(wait, name, number, request)


def missing(questions: tuple[Question, ...]) -> tuple[CreateRequest, ...]:
    """Questions that must be asked (again, if somebody deleted the object)."""
    return tuple(CreateRequest(q.name, q.wait, q.number) for q in questions if q.request is None)


def deliveries(look: Look, questions: tuple[Question, ...]) -> tuple[AddInbox, ...]:
    """Answers that are not in the inbox yet."""
    inbox = look.journal.inbox if look.journal else frozenset()
    found = []
    for question in questions:
        request = question.request
        body = _body(question.wait, request) if request else None
        if request and body and settle_id(request) not in inbox:
            found.append(AddInbox(settle_id(request), body))
    return tuple(found)


def answered(look: Look, questions: tuple[Question, ...]) -> tuple[InboxId, ...]:
    """Ids of answers that are in the inbox and were not given to an attempt yet."""
    inbox = look.journal.inbox if look.journal else frozenset()
    return tuple(settle_id(q.request) for q in questions if q.request is not None and settle_id(q.request) in inbox)


def states(look: Look, questions: tuple[Question, ...] | None) -> tuple[Action, ...]:
    """State writes for requests whose state is not what it should be. `questions` None: the run is not parked."""
    pending = None if questions is None else {q.name: q for q in questions}
    waits = None if questions is None else {(q.wait.key, arguments_digest(q.wait)) for q in questions}
    found: list[Action] = []
    for request in ours(look):
        if request.state in (APPLIED, STALE):
            continue
        state, message = _state(look, request, pending, waits)
        if state and state != request.state:
            found.append(SetRequestState(request.name, request.uid, state, message))
    return tuple(found)


def close_all(look: Look, why: str) -> tuple[Action, ...]:
    """The run is over: nobody waits for an answer any more."""
    found: list[Action] = []
    for request in ours(look):
        if request.state in (APPLIED, STALE):
            continue
        state, message = (APPLIED, "") if _delivered(look, request) else (STALE, why[:1024])
        found.append(SetRequestState(request.name, request.uid, state, message))
    return tuple(found)


def _state(
    look: Look, request: RequestView, pending: dict[str, Question] | None, waits: set[tuple[str, str]] | None
) -> tuple[str, str]:
    journal = look.journal
    if journal is not None and settle_id(request) in journal.news.applied:
        return APPLIED, ""
    if pending is None or waits is None:
        return (ANSWERED, "") if request.response is not None else ("", "")
    if request.name in pending:
        return (OPEN, "") if request.response is None else (ANSWERED, "")
    if not _delivered(look, request):
        return STALE, "the run does not wait for this answer any more"
    if (request.key, request.arguments_digest) in waits:
        return STALE, "the run had this answer and could not take it; a new question says why"
    return APPLIED, ""


def _delivered(look: Look, request: RequestView) -> bool:
    """An attempt was made for this answer."""
    return any(settle_id(request) in a.inbox for a in look.status.attempts)


def _body(wait: Waited, request: RequestView) -> SettleBody | None:
    answer = request.response
    if answer is None or answer.arguments_digest != arguments_digest(wait):
        return None
    decision: Decision | None = next((word for word in get_args(Decision) if word == answer.decision), None)
    if decision is None:
        return None
    return SettleBody(
        key=wait.key,
        input=wait.input,
        since=wait.since,
        decision=decision,
        value=answer.value,
        by=answer.by,
        reason=answer.reason,
    )
