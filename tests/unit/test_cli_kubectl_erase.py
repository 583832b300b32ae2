"""`kubectl everstep erase|rotate-key`: what is asked of kubectl and of the person. The operator's side is in tests/component."""

import itertools

import pytest
from click.testing import CliRunner
from tests.unit.test_cli_kubectl import Fake, fake
from tests.unit.test_cli_kubectl_fork import OPERATOR, SOURCE

from everstep.cli.kubectl import everstep

__all__ = ["fake"]


def ready(fake: Fake, told: dict[str, object]) -> None:
    fake.on("get", "agentruns.everstep.dev", out=SOURCE)
    fake.on("get", "deployments", out={"items": [OPERATOR]})
    fake.on("exec", out=told)


def test_journal_first_then_the_secret(fake: Fake) -> None:
    ready(fake, {"run": "monday", "journal": "u-1", "secret": "monday-run", "rewrapped": 3, "problem": ""})
    fake.on("delete", "secret", "monday-run")
    done = fake.run("erase", "monday", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "run monday erased; kubectl everstep verify monday still proves what happened"
    asked = dict(itertools.pairwise(fake.calls[2]))
    assert (asked["--journal"], asked["--namespace"]) == ("u-1", "prod")
    assert "erase" in fake.calls[2]
    assert fake.calls[3][:2] == ["delete", "--namespace=prod"]


def test_nothing_left_to_delete(fake: Fake) -> None:
    ready(fake, {"run": "monday", "journal": "u-1", "secret": None, "rewrapped": 0, "problem": ""})
    assert fake.run("erase", "monday", "--yes").returncode == 0
    assert [call[0] for call in fake.calls] == ["get", "get", "exec"]


def test_asked_first(fake: Fake) -> None:
    ready(fake, {})
    said = CliRunner().invoke(everstep, ["erase", "monday"], input="n\n")
    assert said.exit_code == 1
    assert "for ever?" in said.output
    assert not [call for call in fake.calls if call[0] == "exec"]


def test_older_keys_that_had_to_stay_are_told(fake: Fake) -> None:
    ready(fake, {"run": "monday", "journal": "u-1", "secret": "monday-run", "rewrapped": 0, "problem": "w1 is gone"})
    fake.on("delete", "secret", "monday-run")
    done = fake.run("erase", "monday", "--yes")
    assert (done.returncode, "monday erased" in done.stdout) == (1, True)
    assert "copies of the store from before can still be opened: w1 is gone" in done.stderr


@pytest.mark.parametrize("code", [2, 75])
def test_what_the_operator_refuses_deletes_nothing(fake: Fake, code: int) -> None:
    ready(fake, {"error": "run monday is not over", "exit": code})
    done = fake.run("erase", "monday", "--yes")
    assert (done.returncode, "is not over" in done.stderr) == (code, True)
    assert not [call for call in fake.calls if call[0] == "delete"]


def test_a_secret_that_may_not_be_deleted_is_named(fake: Fake) -> None:
    ready(fake, {"run": "monday", "journal": "u-1", "secret": "monday-run", "rewrapped": 0, "problem": ""})
    fake.on("delete", code=1, err="Error from server (Forbidden): secrets is forbidden")
    done = fake.run("erase", "monday", "--yes")
    assert done.returncode == 1
    assert "Secret monday-run still holds a copy" in done.stderr
    assert "Forbidden" in done.stderr


def test_rotation_tells_how_many(fake: Fake) -> None:
    fake.on("get", "deployments", out={"items": [OPERATOR]})
    fake.on("exec", out={"rewrapped": 2})
    assert fake.run("rotate-key").stdout.strip() == "2 data keys wrapped anew"
