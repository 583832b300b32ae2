"""The command: `python -m tests.support.world --port 8090`."""

import logging
from pathlib import Path

import click
from aiohttp import web

from tests.support.world.app import make_app
from tests.support.world.state import World


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8090, show_default=True, help="TCP port.")
@click.option(
    "--log", "log_path", type=click.Path(path_type=Path), help="Append each request to this file and go on from it."
)
@click.option("--model-latency-ms", default=0, show_default=True, help="How long the model thinks.")
@click.option("--tool-latency-ms", default=0, show_default=True, help="How long tracker and mail gateway take.")
def main(host: str, port: int, log_path: Path | None, model_latency_ms: int, tool_latency_ms: int) -> None:
    """Serve the outside world until a signal ends it."""
    logging.basicConfig(level=logging.WARNING)
    world = World(log_path)
    world.latency_ms |= {"model": model_latency_ms, "ticket": tool_latency_ms, "mail": tool_latency_ms}
    web.run_app(make_app(world), host=host, port=port, access_log=None, handle_signals=True)


if __name__ == "__main__":
    main()
