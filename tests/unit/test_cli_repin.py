"""`kubectl everstep repin`: what it asks of kubectl, in which order, and what it does when the new image tells another story."""

import json
import os
import subprocess
from typing import Any

import pytest
from click.testing import CliRunner, Result

from everstep.cli import repin as module
from everstep.cli.kubectl import everstep

OLD, NEW = "registry.example/agent:1", "registry.example/agent:2"


class Cluster:
    """A kubectl in front of one run. Each `get` shows the next of `shows`, the last one for ever."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {"agent": {"entrypoint": "triage:run", "image": OLD}}
        self.shows: list[dict[str, Any]] = []
        self.patches: list[dict[str, Any]] = []
        self.seen: list[str] = []

    def answer(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        verb = command[1]
        self.seen.append(verb)
        if verb == "get":
            status = self.shows.pop(0) if len(self.shows) > 1 else self.shows[0]
            return subprocess.CompletedProcess(command, 0, json.dumps({"spec": self.spec, "status": status}), "")
        assert verb == "patch"
        assert "--type=merge" in command
        self.patches.append(json.loads(command[-1].removeprefix("--patch=")))
        return subprocess.CompletedProcess(command, 0, "", "")

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(everstep, ["repin", "triage", "--image", NEW, *arguments])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    playing = Cluster()
    monkeypatch.setenv("KUBECTL", "/bin/kubectl")
    monkeypatch.setattr(subprocess, "run", playing.answer)
    monkeypatch.setattr(os, "execv", None)
    monkeypatch.setattr(module, "POLL_S", 0.001)
    return playing


def shown(summary: str, attempt: int = 1, replayed: int = 0, **conditions: str) -> dict[str, Any]:
    told = [
        {"type": k, "status": "True", "reason": v.partition(":")[0], "message": v.partition(":")[2]}
        for k, v in conditions.items()
    ]
    return {"summary": summary, "attempt": attempt, "steps": {"replayed": replayed}, "conditions": told}


SET = {
    "metadata": {"annotations": {"everstep.dev/repin": NEW}},
    "spec": {"agent": {"image": NEW}, "desiredState": "Running"},
}
BACK = {
    "metadata": {"annotations": {"everstep.dev/repin": None}},
    "spec": {"agent": {"image": OLD}, "desiredState": "Running"},
}
UNMARK = {"metadata": {"annotations": {"everstep.dev/repin": None}}}
STOP = {"spec": {"desiredState": "Suspended"}}


def test_a_running_attempt_is_stopped_and_the_next_one_followed_until_it_has_replayed(cluster: Cluster) -> None:
    cluster.shows = [
        shown("Running"),
        shown("Running"),
        shown("Suspended", Suspended="Suspended"),
        shown("Suspended"),
        shown("Starting", 2),
        shown("Replaying", 2),
        shown("Running", 2, replayed=12),
    ]
    done = cluster.run()
    assert done.exit_code == 0, done.output
    assert cluster.patches == [STOP, SET, UNMARK]
    assert f"run triage: attempt 2 replayed 12 steps with {NEW}, and goes on with it" in done.output


@pytest.mark.parametrize("conditions", [{"Parked": "TimerPending"}, {"Finished": "Diverged:the code took another way"}])
def test_a_run_that_rests_is_not_stopped_first(cluster: Cluster, conditions: dict[str, str]) -> None:
    cluster.shows = [
        shown("Waiting", **conditions),
        shown("Waiting", **conditions),
        shown("Starting", 2),
        shown("Waiting", 2, 3),
    ]
    done = cluster.run("-o", "json")
    assert done.exit_code == 0, done.output
    assert cluster.patches == [SET, UNMARK]
    assert json.loads(done.output) == {
        "run": "triage", "outcome": "replayed", "image": NEW, "was": OLD, "attempt": 2, "replayed": 3,
        "message": f"run triage: attempt 2 replayed 3 steps with {NEW}, and goes on with it",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "code"), [("Diverged", 65), ("JournalUnreadable", 65), ("BadEntrypoint", 1), ("RestartsExhausted", 1)]
)
def test_another_story_puts_the_old_image_back_and_shows_the_difference(
    cluster: Cluster, reason: str, code: int
) -> None:
    waiting = shown("Waiting", Parked="TimerPending")
    cluster.shows = [
        waiting,
        shown("Starting", 2),
        shown("Failed", 2, Finished=f"{reason}:step pay was called with other arguments"),
    ]
    done = cluster.run()
    assert done.exit_code == code
    assert cluster.patches == [SET, BACK]
    assert "step pay was called with other arguments" in done.stderr
    assert f"The old image is put back ({OLD})" in done.stderr
    cluster.shows = [waiting, shown("Failed", 2, Finished=f"{reason}:other arguments")]
    done = cluster.run("-o", "json")
    assert done.exit_code == code
    assert json.loads(done.stdout)["outcome"] == reason


def test_a_run_that_named_no_image_gets_none_back(cluster: Cluster) -> None:
    del cluster.spec["agent"]["image"]
    cluster.shows = [shown("Waiting", Parked="TimerPending"), shown("Failed", 2, Finished="Diverged:no")]
    assert cluster.run().exit_code == 65
    assert cluster.patches[-1]["spec"]["agent"] == {"image": None}


@pytest.mark.parametrize(
    ("status", "spec", "told"),
    [
        (shown("Succeeded", Finished="Succeeded"), {}, "is over (Succeeded)"),
        (shown("Running"), {"agent": {"image": NEW}}, "names registry.example/agent:2 already"),
        (shown("Suspended", Suspended="Suspended"), {"desiredState": "Suspended"}, "kubectl everstep resume triage"),
        (shown("Running"), {"desiredState": "Cancelled"}, "is to be Cancelled"),
    ],
)
def test_what_it_refuses_changes_nothing(
    cluster: Cluster, status: dict[str, Any], spec: dict[str, Any], told: str
) -> None:
    cluster.spec |= spec
    cluster.shows = [status]
    done = cluster.run()
    assert done.exit_code == 2
    assert told in done.stderr
    assert cluster.patches == []


def test_a_run_that_has_not_started_just_gets_it(cluster: Cluster) -> None:
    cluster.shows = [shown("", 0)]
    assert cluster.run().exit_code == 0
    assert cluster.patches == [SET]


def test_when_the_time_is_up_it_says_where_things_stand(cluster: Cluster) -> None:
    blocked = shown("Blocked", 2) | {"reason": "ImagePullBackOff"}
    cluster.shows = [shown("Waiting", Parked="TimerPending"), blocked]
    done = cluster.run("--timeout", "1")
    assert done.exit_code == 3
    assert "it is Blocked (ImagePullBackOff)" in done.stderr
    assert f"kubectl everstep repin triage --image {OLD}" in done.stderr
    cluster.patches.clear()
    cluster.shows = [shown("Running")]
    done = cluster.run("--timeout", "1")
    assert done.exit_code == 3
    assert "did not stop within 1 s; its image is unchanged" in done.stderr
    assert cluster.patches == [STOP, {"spec": {"desiredState": "Running"}}]
