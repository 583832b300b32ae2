"""What a run is, and what of it can never change: its pins."""

import platform
from dataclasses import dataclass, field

from everstep.errors import Diverged
from everstep.ids import Owner, RecordHash, RunName, Seq
from everstep.journal.chain import Chain
from everstep.journal.records import Json, canonical
from everstep.journal.store import Head
from everstep.run.history import History
from everstep.run.values import digest


@dataclass(frozen=True)
class RunIdentity:
    """What the run is; digests of goal and inputs are pinned by its first record."""

    chain: Chain
    owner: Owner
    goal: str = ""
    inputs: dict[str, Json] = field(default_factory=dict)
    run_name: RunName = RunName("")
    namespace: str = ""
    entrypoint: str = ""
    image: str = ""
    key_id: str = ""
    anchor_seq: Seq = Seq(0)
    anchor_hash: RecordHash | None = None

    @property
    def anchor(self) -> Head | None:
        return None if self.anchor_hash is None else Head(self.anchor_seq, self.anchor_hash)


def check_pins(history: History, identity: RunIdentity) -> None:
    """Goal, inputs and Python's minor version belong to the run: with others, replay would tell another story.
    Raises Diverged."""
    started = history.started
    if started is None:
        if history.last_seq:
            raise Diverged("the journal does not begin with a run_started record")
        return
    pins = (
        ("goal", started.goal, digest(identity.goal.encode())),
        ("inputs", started.inputs, digest(canonical(identity.inputs))),
        ("Python", started.python, python_minor()),
    )
    for what, recorded, given in pins:
        if recorded != given:
            shown = (recorded, given) if what == "Python" else (f"digest {recorded[:12]}…", f"digest {given[:12]}…")
            raise Diverged(
                f"this journal was begun with another {what}.\n  the record:  {shown[0]}\n  this attempt: {shown[1]}\n"
                f"Goal, inputs and Python's minor version cannot change during a run; start a new run instead."
            )


def python_minor() -> str:
    """`3.11`."""
    return ".".join(platform.python_version_tuple()[:2])
