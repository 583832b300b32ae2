"""Every Redis key of Everstep: the only place that formats one.

    es:<installation>:{<journal id>}:journal        stream  the records, in order. id `<seq>-0`
                                                            fields r record bytes, p previous hash, h hash, a attempt
                                                            written by append, cut at its beginning by compact (the claimed
                                                            owner only): the first entry is then a snapshot or segment
    es:<installation>:{<journal id>}:meta           hash    attempt, owner, seq, hash, progress, schema, keyId,
                                                            namespace, name, deletedAt
                                                            written by fence, claim, append, report
    es:<installation>:{<journal id>}:inbox          stream  answers and cancel for the run. fields i entry id, b body, m mac
                                                            written by operator and supervisor; read by the SDK
    es:<installation>:{<journal id>}:inbox-ids      set     ids that were added, so that each is added once
    es:<installation>:{<journal id>}:blob:<digest>  string  a value above 64 KiB, under its SHA-256
    es:<installation>:{<journal id>}:blob-ids       set     digests of the blobs, so that a sweep finds them without a SCAN
    es:<installation>:{<journal id>}:live           stream  what steps say while they work: tokens, marks (journal/live.py).
                                                            No part of the journal. id `<position>-0`, field e; capped
                                                            written by live_add (the claimed owner only); read by whoever looks

`<installation>` names one installation of the operator, so that two may share a Redis. The braces are the hash tag: all keys of
a run live in one slot of a cluster. No key of a live run has a TTL; a sweep deletes them all after the run is gone.
"""

from dataclasses import dataclass
from functools import cached_property

from everstep.ids import JournalId

PREFIX = "es"


@dataclass(frozen=True)
class JournalKeys:
    """The keys of one journal."""

    installation: str
    journal_id: JournalId

    @cached_property
    def base(self) -> str:
        return f"{PREFIX}:{self.installation}:{{{self.journal_id}}}:"

    @cached_property
    def journal(self) -> str:
        return self.base + "journal"

    @cached_property
    def meta(self) -> str:
        return self.base + "meta"

    @cached_property
    def inbox(self) -> str:
        return self.base + "inbox"

    @cached_property
    def inbox_ids(self) -> str:
        return self.base + "inbox-ids"

    @cached_property
    def blob_prefix(self) -> str:
        return self.base + "blob:"

    @cached_property
    def blob_ids(self) -> str:
        return self.base + "blob-ids"

    @cached_property
    def live(self) -> str:
        return self.base + "live"

    def blob(self, digest: str) -> str:
        return self.blob_prefix + digest


def meta_pattern(installation: str) -> str:
    """SCAN pattern that finds the meta key of every journal of one installation."""
    return f"{PREFIX}:{installation}:{{*}}:meta"


def journal_id_of(meta_key: str) -> JournalId:
    """Inverse of `JournalKeys.meta`."""
    return JournalId(meta_key.split(":{", 1)[1].rsplit("}:", 1)[0])


def installation_of(key: str) -> str:
    """The installation a journal's key belongs to; empty for anything else."""
    prefix, _, rest = key.partition(":")
    installation, braces, _ = rest.partition(":{")
    return installation if prefix == PREFIX and braces else ""
