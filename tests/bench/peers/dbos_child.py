"""DBOS: a workflow of steps, on SQLite or Postgres.

python -m tests.bench.peers.dbos_child URL    sqlite:///… or postgresql://…
"""

import sys
from importlib.metadata import version

from tests.bench.peers.child import Body, Engine, serve

_bodies: dict[str, Body] = {}


def make(url: str) -> Engine:
    from dbos import DBOS, SetWorkflowID

    @DBOS.step()
    def work(run: str, n: int) -> str:
        return _bodies[run](n)

    @DBOS.workflow()
    def sequential(run: str, steps: int) -> str:
        for n in range(steps):
            work(run, n)
        return "done"

    class Dbos(Engine):
        def __init__(self) -> None:
            DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})
            self.launched = False

        def launch(self) -> None:
            if not self.launched:
                self.launched = True
                DBOS.launch()

        def settings(self) -> dict[str, object]:
            return {"dbos": version("dbos"), **read_back(url)}

        def run(self, run: str, steps: int, body: Body) -> None:
            self.launch()
            _bodies[run] = body
            with SetWorkflowID(run):
                sequential(run, steps)

        def resume(self, run: str, steps: int, body: Body) -> None:
            _bodies[run] = body
            self.launch()  # takes pending workflows up by itself
            DBOS.retrieve_workflow(run).get_result()

        def close(self) -> None:
            if self.launched:
                DBOS.destroy()

    return Dbos()


def read_back(url: str) -> dict[str, object]:
    """The settings of the database, as a connection made by DBOS's own engine sees them."""
    import sqlalchemy as sa

    if url.startswith("sqlite"):
        from dbos._sys_db_sqlite import SQLiteSystemDatabase

        engine = SQLiteSystemDatabase._create_engine(None, url, {})  # type: ignore[arg-type]  # it does not use itself
        names = ("journal_mode", "synchronous")
        with engine.connect() as db:
            return {name: db.execute(sa.text(f"PRAGMA {name}")).scalar() for name in names}
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as db:
        return {n: db.execute(sa.text(f"SHOW {n}")).scalar() for n in ("server_version", "fsync", "synchronous_commit")}


if __name__ == "__main__":
    serve(lambda: make(sys.argv[1]))
