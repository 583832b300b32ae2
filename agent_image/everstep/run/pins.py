"""What a run pins: goal and inputs for ever, the image and Python's minor version until somebody changes them on purpose.

Pins stand in `run_started`; a `pinned` record renews those of image and Python. It is written once the journal has been replayed
under the new ones, and never without a person's choice:

    the spec names another image than the record    chosen: replay, then pin it (and the Python in it)
    the same name, another digest                   refused: a tag that moved, a registry that was changed
    another default image of the operator           refused: nobody chose it for this run
    another Python in local mode                    refused: `everstep local repin RUN` replays and pins it
    the run is a fork that has not replayed yet     chosen: what its first attempt runs is pinned

An image is compared only as far as both sides are known. A tag and a digest of the same repository cannot be told apart, so the
digest is pinned as soon as the operator tells it.
"""

import sys
from typing import NamedTuple

from everstep.errors import Diverged
from everstep.journal.records import Pinned, canonical
from everstep.run.history import History
from everstep.run.identity import RunIdentity
from everstep.run.values import digest

BY_SPEC = "spec"
BY_OPERATOR = "operator"
BY_LOCAL = "local repin"
BY_FORK = "fork"


class Pins(NamedTuple):
    """What is pinned now, or what an attempt would pin. `named`: how the spec names the image, which may be a tag."""

    image: str = ""
    named: str = ""
    python: str = ""
    by: str = ""


def recorded_pins(history: History) -> Pins:
    """Of a journal that has begun."""
    if history.pinned is not None:
        told = history.pinned
        return Pins(told.image, told.named, told.python, told.by)
    started = history.started
    assert started is not None
    return Pins(started.image, started.image, started.python)


def check_pins(history: History, identity: RunIdentity) -> Pins | None:
    """What is to be pinned anew once the journal has been replayed; None if nothing. Raises Diverged."""
    started = history.started
    if started is None:
        if history.last_seq:
            raise Diverged("the journal does not begin with a run_started record")
        return None
    for what, recorded, given in (
        ("goal", started.goal, digest(identity.goal.encode())),
        ("inputs", started.inputs, digest(canonical(identity.inputs))),
    ):
        if recorded != given:
            raise Diverged(
                f"this journal was begun with another {what}.\n  the record:   digest {recorded[:12]}…\n"
                f"  this attempt: digest {given[:12]}…\n"
                "Goal and inputs cannot change during a run. Start a new run, or fork this one with the new ones."
            )
    python = identity.python or python_minor()
    if started.lineage is not None and history.pinned is None:
        return Pins(identity.image, identity.image_named or "", python, BY_FORK)
    pins = recorded_pins(history)
    told = identity.image_named is not None and bool(pins.image) and bool(identity.image)
    if told and identity.image_named and identity.image_named != pins.named:
        return Pins(identity.image, identity.image_named, python, BY_SPEC)
    if told and same_image(pins.image, identity.image) is False:
        raise Diverged(
            f"this journal was written by another image, and nobody chose this one for it.\n  the record:   {pins.image}\n"
            f"  this attempt: {identity.image}\n"
            "Choose an image on purpose: kubectl everstep repin RUN --image IMAGE replays the journal with it, and puts the old "
            "one back if it tells another story."
        )
    if pins.python != python:
        raise Diverged(
            f"this journal was begun with another Python.\n  the record:   {pins.python}\n  this attempt: {python}\n"
            f"Run it with Python {pins.python}, or choose this one on purpose: everstep local repin RUN (on a cluster: kubectl "
            "everstep repin RUN --image IMAGE) replays the journal first and refuses if it tells another story."
        )
    if told and "@" in identity.image and "@" not in pins.image:
        return Pins(identity.image, pins.named, python, BY_OPERATOR)
    return None


def same_image(recorded: str, given: str) -> bool | None:
    """Whether two references name one image; None where it cannot be told."""
    if recorded == given:
        return True
    (old_name, old_digest), (new_name, new_digest) = _parts(recorded), _parts(given)
    if old_digest and new_digest:
        return old_digest == new_digest
    if not old_digest and not new_digest:
        return old_name == new_name
    return None if _repository(old_name) == _repository(new_name) else False


def _parts(reference: str) -> tuple[str, str]:
    name, _, digest_ = reference.partition("@")
    for default in ("docker.io/library/", "docker.io/"):
        name = name.removeprefix(default)
    return name, digest_


def _repository(name: str) -> str:
    head, slash, tail = name.rpartition("/")
    return f"{head}{slash}{tail.partition(':')[0]}"


def python_minor() -> str:
    """`3.11`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def fields_of(pins: Pins) -> dict[str, str]:
    """Of a `pinned` record."""
    return {"image": pins.image, "named": pins.named, "python": pins.python, "by": pins.by}


__all__ = ["BY_LOCAL", "Pinned", "Pins", "check_pins", "fields_of", "python_minor", "recorded_pins", "same_image"]
