"""Everstep's SDK: durable steps for AI agents.

    import everstep

    @everstep.step(effect="idempotent")
    async def file_ticket(title: str) -> str:
        return await tracker.create(title, key=everstep.idempotency_key())

    @everstep.agent
    async def run(goal: str) -> str:
        return await file_ticket(goal)

    everstep.run(run, goal="Printer on fire")

Names are imported at first use, so that `import everstep` costs nothing that is not needed.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everstep import errors, testing
    from everstep.budget import Budget, Price, Reserve
    from everstep.errors import (
        AgentFailed,
        BadCall,
        BadStep,
        BudgetExceeded,
        Cancelled,
        ConfigError,
        Diverged,
        EverstepError,
        JournalError,
        JournalUnavailable,
        MaybeDone,
        NotDone,
        NotInRun,
        NotJSON,
        OutsideStep,
        Parked,
        ResourceFailed,
        RetryAfter,
        StepFailed,
        TooManySteps,
        ValueTooLarge,
    )
    from everstep.run.adhoc import run_step
    from everstep.run.agents import agent
    from everstep.run.apart import per_attempt, resource
    from everstep.run.artifact import Artifact
    from everstep.run.durable import (
        artifact,
        idempotency_key,
        is_replaying,
        logger,
        now,
        random,
        report_usage,
        say,
        sleep,
        sleep_until,
        uuid4,
    )
    from everstep.run.heartbeat import heartbeat, heartbeat_details
    from everstep.run.inprocess import run
    from everstep.run.longrun import continue_as_new, restored, snapshot
    from everstep.run.patches import deprecate_patch, patched
    from everstep.run.probe import NOT_DONE, UNKNOWN, Done, Probed
    from everstep.run.retry import Retry
    from everstep.run.several import Winner, first
    from everstep.run.shared_loop import run_async
    from everstep.run.steps import step
    from everstep.run.wrap import wrap

_HOME = {
    "everstep.run.steps": ("step",),
    "everstep.run.adhoc": ("run_step",),
    "everstep.run.agents": ("agent",),
    "everstep.run.shared_loop": ("run_async",),
    "everstep.run.apart": ("per_attempt", "resource"),
    "everstep.run.wrap": ("wrap",),
    "everstep.run.retry": ("Retry",),
    "everstep.budget": ("Budget", "Price", "Reserve"),
    "everstep.run.several": ("Winner", "first"),
    "everstep.run.heartbeat": ("heartbeat", "heartbeat_details"),
    "everstep.run.probe": ("Done", "NOT_DONE", "UNKNOWN", "Probed"),
    "everstep.run.artifact": ("Artifact",),
    "everstep.run.durable": (
        "artifact",
        "idempotency_key",
        "is_replaying",
        "logger",
        "now",
        "random",
        "report_usage",
        "say",
        "sleep",
        "sleep_until",
        "uuid4",
    ),
    "everstep.run.patches": ("patched", "deprecate_patch"),
    "everstep.run.longrun": ("continue_as_new", "restored", "snapshot"),
    "everstep.errors": (
        "AgentFailed",
        "BadCall",
        "BadStep",
        "BudgetExceeded",
        "Cancelled",
        "ConfigError",
        "ContinuedAsNew",
        "Diverged",
        "EverstepError",
        "JournalError",
        "JournalUnavailable",
        "MaybeDone",
        "NotDone",
        "NotInRun",
        "NotJSON",
        "OutsideStep",
        "Parked",
        "ResourceFailed",
        "RetryAfter",
        "StepFailed",
        "TooManySteps",
        "ValueTooLarge",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_MODULES = ("errors", "run", "testing")  # `run` is the function, too: see everstep.run

__all__ = [  # noqa: RUF022  # in the order a reader meets them
    "step",
    "agent",
    "run",
    "run_async",
    "wrap",
    "run_step",
    "resource",
    "per_attempt",
    "Retry",
    "RetryAfter",
    "Done",
    "NOT_DONE",
    "UNKNOWN",
    "Probed",
    "Budget",
    "Reserve",
    "Price",
    "first",
    "Winner",
    "sleep",
    "sleep_until",
    "now",
    "uuid4",
    "random",
    "patched",
    "deprecate_patch",
    "restored",
    "snapshot",
    "continue_as_new",
    "idempotency_key",
    "report_usage",
    "heartbeat",
    "heartbeat_details",
    "say",
    "artifact",
    "Artifact",
    "logger",
    "is_replaying",
    "errors",
    "testing",
    "AgentFailed",
    "BadCall",
    "BadStep",
    "BudgetExceeded",
    "Cancelled",
    "ConfigError",
    "ContinuedAsNew",
    "Diverged",
    "EverstepError",
    "JournalError",
    "JournalUnavailable",
    "MaybeDone",
    "NotDone",
    "NotInRun",
    "NotJSON",
    "OutsideStep",
    "Parked",
    "ResourceFailed",
    "StepFailed",
    "TooManySteps",
    "ValueTooLarge",
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        value: object = getattr(importlib.import_module(_MODULE_OF[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"everstep.{name}")
    else:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
