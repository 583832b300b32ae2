"""LangGraph with its SQLite saver, durability="sync": a checkpoint after each node, before the next one starts.

python -m tests.bench.peers.langgraph_child PATH
"""

import sqlite3
import sys
from importlib.metadata import version
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from tests.bench.peers.child import Body, Engine, serve


class State(TypedDict):
    n: int
    steps: int
    text: str


class LangGraph(Engine):
    """One node that loops."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.db = self.open()
        SqliteSaver(self.db).setup()

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, check_same_thread=False, timeout=60)

    def settings(self) -> dict[str, object]:
        return {
            "langgraph": version("langgraph"),
            "durability": "sync",
            "journal_mode": self.db.execute("PRAGMA journal_mode").fetchone()[0],
            "synchronous": self.db.execute("PRAGMA synchronous").fetchone()[0],
        }

    def _go(self, given: State | None, run: str, steps: int, body: Body) -> None:
        def node(state: State) -> dict[str, object]:
            return {"n": state["n"] + 1, "text": body(state["n"])}

        graph: Any = StateGraph(State)
        graph.add_node("work", node)
        graph.add_edge(START, "work")
        graph.add_conditional_edges("work", lambda s: "work" if s["n"] < s["steps"] else END)
        compiled = graph.compile(checkpointer=SqliteSaver(self.open()))
        config = {"configurable": {"thread_id": run}, "recursion_limit": steps + 10}
        compiled.invoke(given, config, durability="sync")

    def run(self, run: str, steps: int, body: Body) -> None:
        self._go({"n": 0, "steps": steps, "text": ""}, run, steps, body)

    def resume(self, run: str, steps: int, body: Body) -> None:
        self._go(None, run, steps, body)

    def close(self) -> None:
        self.db.close()


if __name__ == "__main__":
    serve(lambda: LangGraph(sys.argv[1]))
