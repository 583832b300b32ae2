"""Pods to take away. Nothing here decides whether a run goes on; see `decide.attempts`."""

from everstep.ids import EpochMs
from everstep_operator.decide.look import Look
from everstep_operator.decide.losses import is_over
from everstep_operator.decide.model import ContainerState, DeletePod, PodView


def delete(pod: PodView, reason: str) -> tuple[DeletePod, ...]:
    """Delete it unless it is gone or on its way out."""
    if pod.gone or pod.deletion_epoch_ms is not None:
        return ()
    return (DeletePod(pod.name, pod.uid, reason),)


def delete_all(look: Look, reason: str, *, keep_failed: bool = False) -> tuple[DeletePod, ...]:
    """Every pod of the run; with `keep_failed` the newest failed ones stay, for their logs."""
    kept = _kept_for_logs(look) if keep_failed else frozenset()
    return tuple(d for pod in look.seen.pods if pod.owned and pod.uid not in kept for d in delete(pod, reason))


def tidy(look: Look) -> tuple[DeletePod, ...]:
    """Of earlier attempts: take away what still lives (the fence has cut it off) and all but the newest failed pods."""
    journal = look.journal
    fenced = journal is not None and journal.attempt >= look.attempt
    kept = _kept_for_logs(look)
    found: list[DeletePod] = []
    for pod in look.seen.pods:
        if not pod.owned or pod.attempt is None or pod.attempt >= look.attempt or pod.uid in kept:
            continue
        if is_over(pod) or fenced:
            found += delete(pod, "superseded")
    return tuple(found)


def unreachable(look: Look, pod: PodView) -> bool:
    """Out of the cluster's reach for longer than nodeLoss.afterSeconds."""
    since = pod.node_view.unreachable_since_epoch_ms if pod.node_view else None
    return since is not None and look.past(EpochMs(since + look.node_loss_after_ms))


def stuck(look: Look, pod: PodView) -> bool:
    """Terminating, and past its deadline by more than nodeLoss.afterSeconds."""
    deadline = pod.deletion_epoch_ms
    return deadline is not None and look.past(EpochMs(deadline + look.node_loss_after_ms))


def given_up_at(look: Look, pod: PodView) -> EpochMs | None:
    """When the first of the two will hold, as far as it can be told now."""
    times: list[int] = []
    if pod.node_view and pod.node_view.unreachable_since_epoch_ms is not None:
        times.append(pod.node_view.unreachable_since_epoch_ms + look.node_loss_after_ms)
    if pod.deletion_epoch_ms is not None:
        times.append(pod.deletion_epoch_ms + look.node_loss_after_ms)
    return EpochMs(min(times)) if times else None


def look_at_leaving(look: Look, pod: PodView) -> EpochMs:
    """When to look again at a pod that is being deleted. The watch tells of its end; this is for what a watch misses."""
    deadline = pod.deletion_epoch_ms or look.now
    poll = look.in_s(look.rules.poll_live_s if look.now <= deadline else look.rules.not_started_retry_s)
    due = given_up_at(look, pod) if look.node_loss_policy == "Fence" else None
    return poll if due is None or due <= look.now else min(poll, due)


def _kept_for_logs(look: Look) -> frozenset[str]:
    failed = [
        p
        for p in look.seen.pods
        if p.owned and not p.gone and p.phase == "Failed" and p.agent.state is ContainerState.TERMINATED
    ]
    newest = sorted(failed, key=lambda p: p.attempt or 0)[len(failed) - min(len(failed), look.rules.failed_pods_kept) :]
    return frozenset(p.uid for p in newest)
