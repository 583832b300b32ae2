"""The command: `python -m tests.kind up|down|status|env|images|load`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.kind import bring_up, engine, images, load
from tests.kind import cluster as clusters
from tests.kind.cache import CACHE_VARIABLE, Cache
from tests.kind.cluster import Cluster
from tests.kind.errors import KindToolError
from tests.kind.progress import Reporter


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kind",
        description="A kind cluster of one control plane and two workers, on any host, with or without an image registry.",
        epilog=f"Built things are kept in ${CACHE_VARIABLE} (default ~/.cache/everstep-kind).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    helps = {
        "up": "bring the cluster up, or find it; prints the line that points kubectl to it",
        "down": "delete the cluster; what was built stays in the cache",
        "status": "show nodes and images; exit code 1 if there is no healthy cluster",
        "env": "print the export line of a running cluster, for eval",
        "images": "build the project's images",
        "load": "build the project's images and load them, or the given tags, into the nodes",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text, description=text)
        if name != "images":
            command.add_argument("--name", default=clusters.DEFAULT_NAME, help="cluster name (default: %(default)s)")
        if name == "down":
            command.add_argument(
                "--engine", action="store_true", help="also stop the Docker engine, if this tool started it"
            )
        if name == "load":
            command.add_argument(
                "tags", nargs="*", metavar="TAG", help="images of the engine to load instead of the project's"
            )
    return parser


def _running(cache: Cache, name: str, patience_s: float = 5.0) -> Cluster:
    clusters.check_name(name)
    found = clusters.find(cache, name, patience_s=patience_s) if engine.answers() else None
    if found is None:
        raise KindToolError(f"no healthy cluster {name}: run `python -m tests.kind up --name {name}`")
    return found


def _down(cache: Cache, reporter: Reporter, name: str, *, with_engine: bool) -> None:
    clusters.check_name(name)
    with cache.lock("up", reporter.say):
        if engine.answers():
            with reporter.step(f"delete cluster {name}"):
                clusters.delete(cache, name)
        if with_engine:
            with reporter.step("stop the Docker engine"):
                stopped = engine.stop()
            if not stopped:
                reporter.say("no engine of ours was running")


def _status(cache: Cache, name: str) -> int:
    nodes = clusters.node_containers(name) if engine.answers() else []
    cluster = clusters.find(cache, name, patience_s=0) if nodes else None
    table = Table(
        "NODE",
        "ROLE",
        "CONTAINER",
        "PROJECT IMAGES",
        title=f"cluster {name}: {'healthy' if cluster else 'not healthy' if nodes else 'absent'}",
    )
    for node in nodes:
        held = ", ".join(load.project_images_in(node.name)) if node.running else ""
        table.add_row(node.name, node.role, "running" if node.running else "stopped", held)
    Console(soft_wrap=True).print(table)
    return 0 if cluster else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 not (the reason is printed), 2 wrong usage."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a CI system's way to say Ctrl-C
    cache, reporter = Cache.default(), Reporter()
    try:
        if arguments.command == "up":
            print(bring_up.up(cache, reporter, arguments.name).shell_line())
        elif arguments.command == "down":
            _down(cache, reporter, arguments.name, with_engine=arguments.engine)
        elif arguments.command == "status":
            return _status(cache, arguments.name)
        elif arguments.command == "env":
            print(_running(cache, arguments.name).shell_line())
        elif arguments.command == "images":
            built = images.build(cache, reporter)
            print("\n".join(built.tags()))
        else:
            cluster = _running(cache, arguments.name, patience_s=60)
            tags = arguments.tags or images.build(cache, reporter).tags()
            load.load(cluster, tags, reporter)
    except KindToolError as e:
        reporter.say(f"error: {e}")
        return 1
    except KeyboardInterrupt:
        reporter.say("interrupted; the next call goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
