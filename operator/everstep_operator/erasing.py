"""`kubectl everstep erase` and `rotate-key` in the operator's pod: the keys of encrypted runs.

The data key in the journal's meta goes here. The copy in the run's own Secret is the person's to delete, who has the right to:
the operator may create such Secrets and delete none.
"""

from everstep.cli import inspect
from everstep.cli.exits import Exit, Refusal
from everstep.errors import ConfigError
from everstep.ids import JournalId, RunName
from everstep.journal.datakeys import wrapped_keys
from everstep.journal.store import Store
from everstep_operator.api.meta import RunRef
from everstep_operator.api.secret import is_ours, secret_name
from everstep_operator.api.words import Cond
from everstep_operator.cluster import views
from everstep_operator.cluster.client import Cluster
from everstep_operator.wrapping_keys import Wrapping


async def erase(store: Store, cluster: Cluster, wrapping: Wrapping, ref: RunRef) -> inspect.Document:
    """{"run", "journal", "secret": the Secret that is left to delete, or null, "rewrapped": data keys of other runs, "problem":
    why older copies of the store can still be opened, "" if they cannot}. May be repeated. Raises Refusal for a run that is not
    over, ConfigError for one that is not encrypted, JournalUnavailable."""
    found = await cluster.get_run(ref.namespace, ref.name)
    if found is None or found["metadata"]["uid"] != ref.uid:
        raise ConfigError(f"run {ref.name} in namespace {ref.namespace} is not there any more, or is another one")
    status = views.run_view(found).status
    over = status.condition(Cond.FINISHED)
    if over is None or over.status != "True":
        raise Refusal(
            f"run {ref.name} is not over, it is {status.summary or 'Pending'}: wait for its end, or cancel it first "
            f"(kubectl everstep cancel {ref.name})",
            Exit.BUSY,
        )
    meta = await store.meta(ref.uid)
    if meta is None or not wrapped_keys(meta.fields):
        raise ConfigError(
            f"run {ref.name} is not encrypted, so its payloads are part of the chain; kubectl delete agentrun {ref.name} "
            "removes it whole. Set journal.encrypt in the chart to be able to erase runs that begin from then on"
        )
    count, problem = await wrapping.erase(store, ref.uid)
    secret = await cluster.get_secret(ref.namespace, secret_name(ref))
    left = secret_name(ref) if secret is not None and is_ours(secret, ref) else None
    return {"run": ref.name, "journal": ref.uid, "secret": left, "rewrapped": count, "problem": problem}


async def rotate(store: Store, wrapping: Wrapping) -> inspect.Document:
    """{"rewrapped": number of data keys}. Raises ConfigError, JournalUnavailable."""
    return {"rewrapped": await wrapping.rotate(store)}


def ref_of(namespace: str, run: str, journal: str) -> RunRef:
    """The run that a command names. Raises ConfigError."""
    if not (namespace and run and journal):
        raise ConfigError("erase needs --namespace, --run and --journal")
    return RunRef(namespace, RunName(run), JournalId(journal))
