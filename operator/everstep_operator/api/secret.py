"""The run's own Secret: what its pods get as files (the process contract's `FILE_…` names) and never as environment.

Made once, before attempt 1, and never overwritten: the goal is copied here, so a later change of the ConfigMap or Secret that
`goalFrom` names changes nothing. The Secret is `immutable`. It is owned by the run and goes with it. The data key of an
encrypted run is first here: the fence that begins the journal wraps it into meta, from which a lost Secret is made anew.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.contract import (
    FILE_DATA_KEYS,
    FILE_GOAL,
    FILE_INPUTS,
    FILE_KEY_ID,
    FILE_RUN_KEY,
    FILE_STORE_CA,
    FILE_STORE_URL,
)
from everstep.journal.records import canonical
from everstep_operator.api.meta import RunRef, object_metadata, owner_reference
from everstep_operator.api.models import Json

INPUTS_MAX_BYTES = 64 * 1024
"""Bound of `spec.inputs` as canonical JSON; the schema cannot say it."""
GOAL_MAX_BYTES = 256 * 1024
"""Bound of the goal, wherever it comes from: a Secret holds 1 MiB altogether."""


class InvalidSecretData(ValueError):
    """The goal or the inputs do not fit. The message names the field, both sizes, and what to do."""


@dataclass(frozen=True)
class RunSecretData:
    """What goes in."""

    goal: str
    inputs: dict[str, Json]
    run_key: bytes = field(repr=False)
    key_id: str
    store_url: str = field(repr=False)
    store_ca_pem: str | None = None
    data_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By id; empty = payloads are not encrypted."""


def secret_name(ref: RunRef) -> str:
    """`<run>-run`."""
    return f"{ref.name}-run"


def build_run_secret(ref: RunRef, data: RunSecretData, installation: str) -> dict[str, Json]:
    """The Secret as a dict. Raises InvalidSecretData."""
    inputs = canonical(data.inputs)
    _fits(
        "spec.inputs", len(inputs), INPUTS_MAX_BYTES, "put the data where the agent can fetch it and pass its address"
    )
    _fits(
        "the goal",
        len(data.goal.encode()),
        GOAL_MAX_BYTES,
        "shorten it, or let the agent fetch the long part in a step",
    )
    files = {
        FILE_GOAL: data.goal.encode(),
        FILE_INPUTS: inputs,
        FILE_RUN_KEY: data.run_key.hex().encode(),
        FILE_KEY_ID: data.key_id.encode(),
        FILE_STORE_URL: data.store_url.encode(),
    }
    if data.store_ca_pem:
        files[FILE_STORE_CA] = data.store_ca_pem.encode()
    if data.data_keys:
        files[FILE_DATA_KEYS] = json.dumps({name: key.hex() for name, key in data.data_keys.items()}).encode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": object_metadata(ref, secret_name(ref), installation),
        "type": "everstep.dev/run",
        "immutable": True,
        "data": {name: base64.b64encode(raw).decode() for name, raw in files.items()},
    }


def data_keys_in(secret: dict[str, Json]) -> dict[str, bytes]:
    """The data keys in a run's Secret, {} where it is not encrypted. Raises InvalidSecretData."""
    text = (secret.get("data") or {}).get(FILE_DATA_KEYS)
    try:
        keys = json.loads(base64.b64decode(text)) if text else {}
        return {str(name): bytes.fromhex(key) for name, key in keys.items()}
    except (ValueError, TypeError, AttributeError) as e:
        raise InvalidSecretData(f"{FILE_DATA_KEYS} in the run's Secret cannot be read; delete the Secret") from e


def is_ours(secret: dict[str, Json], ref: RunRef) -> bool:
    """Whether an existing Secret of that name belongs to this very run."""
    owners = secret.get("metadata", {}).get("ownerReferences") or []
    wanted = owner_reference(ref)
    return any(owner.get("uid") == wanted["uid"] and owner.get("controller") for owner in owners)


def _fits(what: str, size_bytes: int, max_bytes: int, cure: str) -> None:
    if size_bytes > max_bytes:
        raise InvalidSecretData(f"{what} takes {size_bytes} bytes, at most {max_bytes} are allowed: {cure}")
