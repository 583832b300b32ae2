"""Metadata that every object made for a run carries."""

from dataclasses import dataclass

from everstep.ids import JournalId, RunName
from everstep_operator.api.models import Json
from everstep_operator.api.words import (
    API_VERSION,
    LABEL_INSTALLATION,
    LABEL_MANAGED_BY,
    LABEL_RUN,
    LABEL_RUN_UID,
    MANAGED_BY,
    RUN_KIND,
)


@dataclass(frozen=True)
class RunRef:
    """Which run an object is made for."""

    namespace: str
    name: RunName
    uid: JournalId


def run_labels(ref: RunRef, installation: str) -> dict[str, str]:
    """Labels of everything made for this run."""
    return {
        LABEL_RUN: ref.name,
        LABEL_RUN_UID: ref.uid,
        LABEL_INSTALLATION: installation,
        LABEL_MANAGED_BY: MANAGED_BY,
    }


def owner_reference(ref: RunRef) -> dict[str, Json]:
    """Controller reference: the object goes with its run. blockOwnerDeletion makes a foreground deletion wait for it."""
    return {
        "apiVersion": API_VERSION,
        "kind": RUN_KIND,
        "name": ref.name,
        "uid": ref.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def object_metadata(ref: RunRef, name: str, installation: str) -> dict[str, Json]:
    """`metadata` of a child object."""
    return {
        "name": name,
        "namespace": ref.namespace,
        "labels": run_labels(ref, installation),
        "ownerReferences": [owner_reference(ref)],
    }
