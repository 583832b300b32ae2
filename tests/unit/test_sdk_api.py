"""The public API is frozen here: a name that comes, goes or changes its parameters is a decision, not an accident."""

import importlib
import inspect
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import everstep

NAMES = """
    step agent run run_async
    wrap run_step resource per_attempt
    Retry RetryAfter Done NOT_DONE UNKNOWN Probed
    Budget Reserve Price
    first Winner
    sleep sleep_until now uuid4 random
    patched deprecate_patch
    restored snapshot continue_as_new
    idempotency_key report_usage
    heartbeat heartbeat_details say artifact Artifact
    logger is_replaying errors testing
    AgentFailed BadCall BadStep
    BudgetExceeded
    Cancelled ConfigError
    ContinuedAsNew
    Diverged EverstepError JournalError JournalUnavailable MaybeDone NotDone NotInRun NotJSON OutsideStep Parked
    ResourceFailed
    StepFailed TooManySteps ValueTooLarge
""".split()  # noqa: SIM905 - easier to read and to change
SIGNATURES = {
    "step": "effect timeout total_timeout heartbeat_timeout retry probe on_uncertain name reserve mask",
    "agent": "fn",
    "wrap": "x effect effects retry timeout total_timeout heartbeat_timeout on_uncertain name live reserve",
    "resource": "factory name timeout",
    "run_step": "name fn args effect timeout total_timeout heartbeat_timeout retry probe on_uncertain reserve kwargs",
    "per_attempt": "fn args kwargs",
    "Retry": "max_tries backoff_s backoff_max_s factor jitter retry_on retry_if max_tries_by retry_after_max_s on_exhausted",
    "Done": "value",
    "first": "awaitables ignore_failures",
    "sleep": "seconds",
    "sleep_until": "when",
    "now": "",
    "uuid4": "",
    "random": "",
    "patched": "id",
    "deprecate_patch": "id",
    "idempotency_key": "",
    "report_usage": "input_tokens output_tokens cost_micro_usd model",
    "heartbeat": "details",
    "heartbeat_details": "type",
    "is_replaying": "",
    "restored": "type",
    "snapshot": "state",
    "continue_as_new": "inputs",
}
REPOSITORY = Path(__file__).parents[2]


def test_the_public_names_are_these() -> None:
    assert everstep.__all__ == NAMES
    for name in NAMES:
        assert getattr(everstep, name) is not None
    assert sorted(NAMES) == dir(everstep)


def test_the_parameters_are_these() -> None:
    for name, wanted in SIGNATURES.items():
        parameters = [p.name for p in inspect.signature(getattr(everstep, name)).parameters.values()]
        assert [p for p in parameters if not (name == "step" and p == "fn")] == wanted.split(), name
    run = importlib.import_module("everstep.run.inprocess").run
    assert list(inspect.signature(run).parameters) == [
        "agent",
        "goal",
        "run_id",
        "directory",
        "budget",
        "encrypt",
        "inputs",
    ]


def test_run_is_the_function_and_the_package() -> None:
    assert callable(everstep.run)
    module = importlib.import_module("everstep.run.scope")
    assert module.__name__ == "everstep.run.scope"
    assert callable(everstep.run)


def test_importing_everstep_is_quick_and_pulls_nothing_in() -> None:
    code = (
        "import sys, time; t = time.process_time(); import everstep; took = time.process_time() - t;"
        "print(took, [m for m in ('pydantic', 'redis', 'asyncio', 'click') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "agent_image")}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    took, loaded = out.split(" ", 1)
    assert loaded.strip() == "[]"
    assert float(took) < 0.15


def test_every_public_thing_says_what_it_is() -> None:
    for name in NAMES:
        thing = getattr(everstep, name)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            assert (thing.__doc__ or "").strip(), name


def test_users_of_the_api_type_check_strictly() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "tests/unit/typing_api.py"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert out.returncode == 0, out.stdout


def test_journals_name_the_version_that_is_released() -> None:
    from everstep.run.attempt import SDK_VERSION

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == SDK_VERSION
