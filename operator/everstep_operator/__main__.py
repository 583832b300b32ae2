"""`python -m everstep_operator`: the operator's process.

It ends with 0 after SIGTERM or SIGINT, with 64 for a setting that cannot work, and with 1 when a watcher, the queue or the resync
ended: the kubelet starts it anew then, and everything it needs to know is in the cluster and the journal.
"""

import asyncio
import json
import logging
import os
import sys

import click

from everstep.clock import SystemClock
from everstep.contract import ExitCode
from everstep.errors import ConfigError, TerminalError
from everstep_operator import __version__, faults
from everstep_operator.process import started
from everstep_operator.settings import Settings

log = logging.getLogger("everstep_operator")


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(settings: Settings) -> None:
    """Everything to standard error. kopf speaks only of trouble unless DEBUG is asked for."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    if settings.log_level.upper() != "DEBUG":
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("aiohttp").setLevel(logging.WARNING)


async def serve(settings: Settings) -> int:
    """Run the operator; returns the exit code."""
    operator, api = await started(settings, SystemClock())
    log.info(
        "everstep operator %s, installation %s, watching %s",
        __version__,
        settings.installation,
        ", ".join(settings.watch_namespaces) or "the whole cluster",
    )
    try:
        return await operator.run(asyncio.Event())
    finally:
        await api.aclose()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--settings", "show_settings", is_flag=True, help="Print every setting (environment variable) and leave.")
@click.version_option(__version__)
def main(show_settings: bool) -> None:
    """Everstep's operator. All settings come from the environment; see --settings."""
    if show_settings:
        for variable, unit, default, meaning in Settings.table():
            click.echo(f"{variable}  ({unit}; default: {default or 'empty'})\n    {meaning}")
        return
    try:
        settings = Settings.from_env(os.environ)
        configure_logging(settings)
        faults.arm(settings.faults, settings.faults_dir)
        code = asyncio.Runner().run(serve(settings))
        # Not asyncio.run: it would wait for tasks of libraries that may hang on a connection, with nobody left to watch.
        logging.shutdown()
        os._exit(code)
    except (ConfigError, TerminalError, ValueError) as e:
        click.echo(f"everstep operator: {e}", err=True)
        sys.exit(ExitCode.BAD_CONFIG)


if __name__ == "__main__":
    main()
