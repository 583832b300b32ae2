"""What an attempt is told of its run. What of it may not change is in everstep.run.pins."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from everstep.ids import Owner, RecordHash, RunName, Seq
from everstep.journal.chain import Chain
from everstep.journal.records import Json
from everstep.journal.store import Head


class RunIdentity(NamedTuple):
    """What the run is; digests of goal and inputs are pinned by its first record."""

    chain: Chain
    owner: Owner
    goal: str = ""
    inputs: Mapping[str, Json] = MappingProxyType({})
    run_name: RunName = RunName("")
    namespace: str = ""
    entrypoint: str = ""
    image: str = ""
    image_named: str | None = None
    """How the spec names the image; "" if it names none. None: nobody tells, so the image is not compared."""
    python: str = ""
    """Stands for this process's Python, for replays that are to work under any; "" = its own."""
    key_id: str = ""
    anchor_seq: Seq = Seq(0)
    anchor_hash: RecordHash | None = None

    @property
    def anchor(self) -> Head | None:
        return None if self.anchor_hash is None else Head(self.anchor_seq, self.anchor_hash)
