"""The HumanRequests about a step: `uncertain`, may its effect have happened; `exhausted`, all its tries failed, and now?"""

import hashlib

from everstep.journal.records import Waited, canonical
from everstep_operator.api.meta import RunRef, object_metadata
from everstep_operator.api.models import Json
from everstep_operator.api.words import API_VERSION, REQUEST_KIND

ARGUMENTS_MAX_BYTES = 4096
PROMPT_MAX = 4096
REASON_MAX = 2048


def request_name(run: str, wait: Waited, number: int = 1) -> str:
    """`<run>-q<8 hex>`, the same at every look, another one for a later question about the same step. `number` counts how
    often this wait was asked about: an answer that the run could not take is followed by a new question."""
    digest = hashlib.sha256(canonical([wait.kind, wait.key, wait.input, wait.since, number])).hexdigest()
    return f"{run}-q{digest[:8]}"


def arguments_digest(wait: Waited) -> str:
    """What an answer must repeat: the digest of the whole arguments, as in the step's intent."""
    return wait.input or hashlib.sha256(canonical(None)).hexdigest()


def build_request(ref: RunRef, wait: Waited, installation: str, number: int = 1) -> dict[str, Json]:
    """The object as a dict, without a response. Arguments are shown only as far as they are short."""
    step = f"{wait.name or 'step'} (key {wait.key})"
    if wait.kind == "exhausted":
        prompt = (
            f"{step} failed in all the tries it has. Find the cause outside (see the reason), then answer: again (all tries "
            "anew), done (with the value it should have returned), or fail (the agent gets the error of the last try)."
        )
    else:
        prompt = (
            f"{step} was in flight when its process was lost, and nothing proves whether it happened. "
            "Find out outside, then answer: done (with the value it returned), again (it did not happen), or fail."
        )
    spec: dict[str, Json] = {
        "runRef": {"name": ref.name, "uid": ref.uid},
        "key": wait.key,
        "kind": wait.kind,
        "prompt": prompt[:PROMPT_MAX],
        "argumentsDigest": arguments_digest(wait),
    }
    if wait.name:
        spec["step"] = wait.name[:256]
    if wait.reason:
        spec["reason"] = wait.reason[:REASON_MAX]
    if wait.arguments is not None and len(canonical(wait.arguments)) <= ARGUMENTS_MAX_BYTES:
        spec["arguments"] = wait.arguments
    return {
        "apiVersion": API_VERSION,
        "kind": REQUEST_KIND,
        "metadata": object_metadata(ref, request_name(ref.name, wait, number), installation),
        "spec": spec,
    }


def asks_the_same(existing: dict[str, Json], wanted: dict[str, Json]) -> bool:
    """Whether an object found under the name is the question we meant to ask, still unanswered: then it may be adopted after
    a crash between its creation and the note of its uid. Anything else under that name is a stranger's."""
    spec = dict(existing.get("spec") or {})
    return "response" not in spec and spec == wanted["spec"]
