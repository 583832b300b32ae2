"""`kubectl everstep`: what it asks of kubectl and what it tells the person. kubectl is played here; e2e has the real one."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from everstep.cli.kubectl import everstep


class Fake:
    """A kubectl that answers by rules and remembers how it was called."""

    def __init__(self) -> None:
        self.rules: list[dict[str, Any]] = []
        self.calls: list[list[str]] = []

    def on(self, *has: str, out: Any = "", **more: Any) -> None:
        self.rules.append({"has": has, "out": out if isinstance(out, str) else json.dumps(out), **more})

    def run(self, *arguments: str) -> "Done":
        result = CliRunner().invoke(everstep, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit | Became):
            raise result.exception
        return Done(0 if isinstance(result.exception, Became) else result.exit_code, result.stdout, result.stderr)

    def answer(self, command: list[str], stdout: Any = None, **_: Any) -> "subprocess.CompletedProcess[str]":
        assert command[0] == "/bin/kubectl"
        self.calls.append(command[1:])
        for rule in self.rules:
            if all(word in command for word in rule["has"]):
                if hasattr(stdout, "write"):  # a file was given for it
                    stdout.write(rule["out"].encode())
                return subprocess.CompletedProcess(command, rule.get("code", 0), rule["out"], rule.get("err", ""))
        raise AssertionError(f"unexpected: {command}")

    def become(self, path: str, command: list[str]) -> None:
        self.answer(command)
        raise Became(path)


class Became(Exception):
    """The process was replaced by kubectl."""


class Done:
    """What a person sees of a command."""

    def __init__(self, returncode: int, stdout: str, stderr: str) -> None:
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    kubectl = Fake()
    monkeypatch.setenv("KUBECTL", "/bin/kubectl")
    monkeypatch.setattr(subprocess, "run", kubectl.answer)
    monkeypatch.setattr(os, "execv", kubectl.become)
    return kubectl


def request(key: str, step: str, run: str = "invoices", response: Any = None, state: str = "Open") -> dict[str, Any]:
    spec: dict[str, Any] = {
        "runRef": {"name": run},
        "kind": "uncertain",
        "key": key,
        "step": step,
        "argumentsDigest": "d" * 64,
    }
    if response:
        spec["response"] = response
    return {"metadata": {"name": f"{run}-{key}", "uid": f"u{key}"}, "spec": spec, "status": {"state": state}}


WHO = {"status": {"userInfo": {"username": "jane@example.org"}}}


def test_settle_answers_under_ones_own_name_and_waits_until_it_is_applied(fake: Fake) -> None:
    fake.on("get", "humanrequests.everstep.dev", out={"items": [request("3", "pay"), request("12", "send_mail")]})
    fake.on("whoami", out=WHO)
    fake.on("patch")
    fake.on("wait")
    done = fake.run(
        "settle", "invoices", "12", "--done", '{"id": null}', "--reason", "saw it", "-n", "prod", "--context", "c1"
    )
    assert done.returncode == 0, done.stderr
    assert "send_mail #12 settled as done by jane@example.org · applied" in done.stdout
    patch = next(c for c in fake.calls if c[0] == "patch")
    assert patch[1:3] == ["--context=c1", "--namespace=prod"]
    assert "invoices-12" in patch
    assert "--type=json" in patch
    operations = json.loads(patch[-1].removeprefix("--patch="))
    assert operations[0] == {"op": "test", "path": "/metadata/uid", "value": "u12"}
    assert operations[1]["value"] == {
        "decision": "done", "by": "jane@example.org", "argumentsDigest": "d" * 64, "reason": "saw it", "value": {"id": None},
    }  # fmt: skip


def test_settle_without_a_value_sends_none(fake: Fake) -> None:
    fake.on("get", out={"items": [request("12", "send_mail")]})
    fake.on("whoami", out=WHO)
    fake.on("patch")
    done = fake.run("settle", "invoices", "#12", "--done", "null", "--no-wait")
    assert done.returncode == 0, done.stderr
    operations = json.loads(fake.calls[-1][-1].removeprefix("--patch="))
    assert "value" not in operations[1]["value"]
    assert not any(c[0] == "wait" for c in fake.calls)


@pytest.mark.parametrize(
    ("items", "step", "told"),
    [
        ([], "12", "no step of run invoices waits for a person"),
        ([request("3", "pay")], "12", "step '12' of run invoices does not wait for a person; these do: pay #3"),
        (
            [request("3", "pay"), request("4", "pay")],
            "pay",
            "waits for a person more than once; name one by its key: pay #3, pay #4",
        ),
        ([request("12", "x", response={"decision": "again", "by": "joe"})], "12", "was settled already: again by joe"),
        ([request("12", "x", state="Stale")], "12", "waits for a person, so there is nothing to settle"),
        ([request("12", "x", run="others")], "12", "waits for a person, so there is nothing to settle"),
    ],
)
def test_settle_refuses_what_is_not_open_and_lists_what_is(fake: Fake, items: list[Any], step: str, told: str) -> None:
    """C35, C41: no answer to the wrong question, none to one that is gone."""
    fake.on("get", out={"items": items})
    done = fake.run("settle", "invoices", step, "--again")
    assert done.returncode == 2
    assert told in done.stderr
    assert not any(c[0] == "patch" for c in fake.calls)


def test_settle_says_when_the_run_has_not_taken_up_the_answer(fake: Fake) -> None:
    """C42: answered and applied are two things."""
    fake.on("get", out={"items": [request("12", "send_mail")]})
    fake.on("whoami", out=WHO)
    fake.on("patch")
    fake.on("wait", err="error: timed out waiting for the condition", code=1)
    done = fake.run("settle", "invoices", "12", "--fail", "--timeout", "1")
    assert done.returncode == 3
    assert "settled as fail by jane@example.org, but the run has not taken it up within 1 s" in done.stderr


def test_what_the_api_server_refuses_is_told_in_its_words(fake: Fake) -> None:
    fake.on("get", err='Error from server (Forbidden): humanrequests.everstep.dev is forbidden: User "joe"…\n', code=1)
    done = fake.run("settle", "invoices", "12", "--again")
    assert done.returncode == 1
    assert "Error from server (Forbidden)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("verb", "state"), [("suspend", "Suspended"), ("resume", "Running"), ("cancel", "Cancelled")])
def test_verbs_set_the_desired_state(fake: Fake, verb: str, state: str) -> None:
    """C60: all verbs by kubectl."""
    fake.on("patch")
    done = fake.run(verb, "triage", "-n", "prod")
    assert done.returncode == 0, done.stderr
    call = fake.calls[0]
    assert call[:4] == ["patch", "--namespace=prod", "agentruns.everstep.dev", "triage"]
    assert json.loads(call[-1].removeprefix("--patch=")) == {"spec": {"desiredState": state}}


def test_list_and_get_are_kubectls_own(fake: Fake) -> None:
    fake.on("get", out="NAME\n")
    fake.on("describe", out="Name: triage\n")
    assert fake.run("list", "-n", "prod", "-o", "wide", "--watch").returncode == 0
    assert fake.calls[0] == ["get", "--namespace=prod", "agentruns.everstep.dev", "-o", "wide", "--watch"]
    assert fake.run("get", "triage").returncode == 0
    assert fake.calls[1] == ["describe", "agentruns.everstep.dev", "triage"]


RUN = {"metadata": {"uid": "6f0e"}, "status": {"checkpoint": {"seq": 75, "hash": "a" * 64}}}
PLACE = {"items": [{"metadata": {"namespace": "ops", "name": "es-everstep"}}]}


def test_result_is_read_in_the_operators_pod(fake: Fake) -> None:
    fake.on("get", "triage", out=RUN)
    fake.on("get", "deployments", out=PLACE)
    fake.on("exec", out={"run": "triage", "outcome": "succeeded", "result": "triaged"})
    done = fake.run("result", "triage", "-n", "prod")
    assert (done.returncode, done.stdout) == (0, "triaged\n"), done.stderr
    call = fake.calls[-1]
    assert call[:4] == ["exec", "--namespace=ops", "deployment/es-everstep", "--container=operator"]
    words = f"-- python -m everstep_operator.inspect result --run triage --journal 6f0e --anchor 75:{'a' * 64}"
    assert call[4:] == words.split()


def test_exit_code_of_the_pods_answer_reaches_the_terminal(fake: Fake) -> None:
    fake.on("get", "triage", out=RUN)
    fake.on("get", "deployments", out=PLACE)
    fake.on("exec", out={"error": "run triage has no result yet: it is Running", "exit": 3})
    done = fake.run("result", "triage")
    assert done.returncode == 3
    assert "run triage has no result yet" in done.stderr


def test_several_operators_must_be_told_apart(fake: Fake) -> None:
    two = {"items": [{"metadata": {"namespace": n, "name": "everstep"}} for n in ("a", "b")]}
    fake.on("get", "triage", out=RUN)
    fake.on("get", "deployments", out=two)
    done = fake.run("steps", "triage")
    assert done.returncode == 1
    assert "several operators (a, b); choose one with --operator-namespace" in done.stderr


def operator(namespace: str, installation: str) -> dict[str, Any]:
    containers = [{"name": "operator", "env": [{"name": "EVERSTEP_INSTALLATION", "value": installation}]}]
    meta = {"namespace": namespace, "name": "everstep"}
    return {"metadata": meta, "spec": {"template": {"spec": {"containers": containers}}}}


def kept_by(installation: str) -> dict[str, Any]:
    checkpoint = {"seq": 75, "hash": "a" * 64, "key": f"es:{installation}:{{6f0e}}:journal"}
    return {"metadata": {"uid": "6f0e"}, "status": {"checkpoint": checkpoint}}


def test_the_operator_that_keeps_the_journal_is_asked(fake: Fake) -> None:
    fake.on("get", "triage", out=kept_by("prod-eu"))
    fake.on("get", "deployments", out={"items": [operator("a", "prod-us"), operator("b", "prod-eu")]})
    fake.on("exec", out={"run": "triage", "steps": []})
    assert fake.run("steps", "triage", "-o", "json").returncode == 0
    assert fake.calls[-1][:2] == ["exec", "--namespace=b"]


def test_an_operator_of_another_installation_is_not_asked(fake: Fake) -> None:
    """It would call the journal lost."""
    fake.on("get", "triage", out=kept_by("prod-eu"))
    fake.on("get", "deployments", out={"items": [operator("a", "prod-us")]})
    done = fake.run("verify", "triage", "--operator-namespace", "a")
    assert done.returncode == 1
    assert (
        "kept by installation prod-eu, but the operator found is another one's: prod-us in namespace a" in done.stderr
    )
    assert not any(c[0] == "exec" for c in fake.calls)


def test_a_run_without_a_result_is_told_with_the_word_of_its_status(fake: Fake) -> None:
    run = {**RUN, "status": {**RUN["status"], "summary": "Blocked", "reason": "Diverged"}}
    fake.on("get", "triage", out=run)
    fake.on("get", "deployments", out=PLACE)
    fake.on("exec", out={"error": "run triage has no result yet: it is Running", "exit": 3})
    done = fake.run("result", "triage")
    assert done.returncode == 3
    assert "run triage has no result yet: it is Blocked (Diverged)" in done.stderr


def test_kubectls_log_lines_are_left_out_of_an_error(fake: Fake) -> None:
    noise = 'E1130 22:05:01.123456   42 memcache.go:265] "Unhandled Error" err="couldn\'t get server API group list"\n'
    refused = "The connection to the server localhost:8080 was refused - did you specify the right host or port?\n"
    fake.on("get", err=noise * 5 + refused, code=1)
    done = fake.run("result", "triage")
    assert (done.returncode, done.stderr) == (1, f"Error: {refused}")


def test_who_may_not_list_the_whole_cluster_asks_the_usual_namespace(fake: Fake) -> None:
    fake.on("get", "triage", out=RUN)
    fake.on("get", "deployments", "--all-namespaces", err="forbidden", code=1)
    fake.on("get", "deployments", "--namespace=everstep-system", out=PLACE)
    fake.on("exec", out={"run": "triage", "steps": []})
    done = fake.run("steps", "triage", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"run": "triage", "steps": []}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("settle", "r", "1"), "say one of --done VALUE"),
        (("settle", "r"), "Missing argument 'STEP'"),
        (("sudo",), "No such command 'sudo'"),
        (("result", "r", "-o", "xml"), "'xml' is not"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(fake: Fake, arguments: tuple[str, ...], told: str) -> None:
    done = fake.run(*arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert fake.calls == []


AGENTRUN = {
    "metadata": {"name": "triage", "namespace": "prod", "uid": "u-1"},
    "status": {"checkpoint": {"seq": 4, "hash": "a" * 64, "key": "es:prod:{u-1}:journal"}},
}
OPERATORS = {
    "items": [
        {
            "metadata": {"name": "everstep", "namespace": "ops"},
            "spec": {"template": {"spec": {"containers": [
                {"name": "operator", "env": [{"name": "EVERSTEP_INSTALLATION", "value": "prod"}]}
            ]}}},
        }
    ]
}  # fmt: skip
END = {"end": {"records": 4}, "signature": {"id": "3f2a"}}


def test_export_comes_from_the_operators_pod_whole(fake: Fake, tmp_path: Path) -> None:
    lines = '{"everstep": "export/1"}\n{"n": 1}\n' + json.dumps(END) + "\n"
    fake.on("get", "agentruns.everstep.dev", out=AGENTRUN)
    fake.on("deployments", out=OPERATORS)
    fake.on("exec", out=lines)
    done = fake.run("export", "triage", "-o", str(tmp_path / "t.jsonl"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "triage: 4 records exported, signed by 3f2a" in done.stderr
    assert (tmp_path / "t.jsonl").read_text() == lines
    asked = fake.calls[-1]
    assert asked[asked.index("everstep_operator.inspect") + 1 :] == [
        "export", "--run", "triage", "--journal", "u-1", "--anchor", f"4:{'a' * 64}", "--namespace", "prod",
    ]  # fmt: skip
    assert fake.run("export", "triage").stdout == lines


@pytest.mark.parametrize(
    ("out", "code", "said"),
    [
        ('{"everstep": "export/1"}\n{"n": 1}\n', 1, "did not send all of the export"),
        ("", 1, "did not send all of the export"),
        ('{"everstep": "export/1"}\n{"error": "journal tampered at record 3", "exit": 65}\n', 65, "at record 3"),
    ],
)
def test_half_an_export_is_none(fake: Fake, tmp_path: Path, out: str, code: int, said: str) -> None:
    fake.on("get", "agentruns.everstep.dev", out=AGENTRUN)
    fake.on("deployments", out=OPERATORS)
    fake.on("exec", out=out)
    done = fake.run("export", "triage", "-o", str(tmp_path / "t.jsonl"))
    assert done.returncode == code
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_public_key_needs_no_run(fake: Fake) -> None:
    fake.on("deployments", out=OPERATORS)
    fake.on("exec", out={"publicKeys": "# s1 3f2a\n"})
    done = fake.run("public-key")
    assert (done.returncode, done.stdout) == (0, "# s1 3f2a\n")
