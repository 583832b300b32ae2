"""`everstep check`: a table of snippets. A line that must be found ends in `#! CODE …`; every other line must not be."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from everstep.check.rules import RULES
from everstep.check.walk import check
from everstep.cli.app import everstep as cli
from everstep.errors import ConfigError

HEAD = """\
import asyncio, concurrent.futures, contextlib, datetime as dt, glob, os, pathlib, random, secrets, socket, subprocess, sys
import threading, time, uuid
import everstep, httpx, numpy as np, requests
from datetime import datetime, date
from pathlib import Path
from everstep import agent, step

seen = []
TOOLS = {"a": 1}

@everstep.step(effect="read")
async def look(n):
    return time.time(), open("x").read(), random.random(), os.environ["HOME"], seen.append(n)

@step(effect="read")
def look_there(n):
    return requests.get(str(n)).text

"""

SNIPPETS: dict[str, str] = {
    "clocks": """
        a = time.time()                              #! ES001
        b = datetime.now()                           #! ES001
        c = dt.datetime.utcnow()                     #! ES001
        d = date.today()                             #! ES001
        e = time.strftime("%Y")                      #! ES001
        f = everstep.now(), time.strftime("%Y", c), time.gmtime(0), datetime.fromtimestamp(0), asyncio.get_running_loop().time()
    """,
    "randomness": """
        a = random.random() + random.choice([1])     #! ES002 ES002
        b = uuid.uuid4()                             #! ES002
        c = secrets.token_hex()                      #! ES002
        d = np.random.rand()                         #! ES002
        e = random.Random()                          #! ES002
        f = random.Random(7), everstep.random(), everstep.uuid4(), uuid.uuid5(uuid.NAMESPACE_URL, "x")
    """,
    "input and output": """
        a = open("x")                                #! ES003
        b = Path("x").read_text()                    #! ES003
        c = requests.get("x")                        #! ES003
        async with httpx.AsyncClient() as d:         #! ES003
            await d.get("x")
        e = socket.create_connection(("x", 1))       #! ES003
        f = sorted(os.listdir("."))                  #! ES003
        print(Path("x").name, Path("x") / "y", os.path.join("a", "b"))
    """,
    "environment": """
        a = os.environ["HOME"]                       #! ES004
        b = os.getenv("HOME")                        #! ES004
        c = os.environ.get("HOME")                   #! ES004
        d = sys.argv[1]                              #! ES004
        e = socket.gethostname()                     #! ES004
        f = os.getpid()                              #! ES004
        g = os.sep, sys.maxsize
    """,
    "processes and threads": """
        a = subprocess.run(["x"])                    #! ES005
        b = threading.Thread(target=print)           #! ES005
        c = await asyncio.to_thread(print)           #! ES005
        d = concurrent.futures.ThreadPoolExecutor()  #! ES005
        e = await asyncio.get_running_loop().run_in_executor(None, print)   #! ES005
        f = os.system("x")                           #! ES005
        g = threading.get_ident, asyncio.Lock()
    """,
    "order": """
        names = {"a", "b"}
        for name in names:                           #! ES006
            await look(name)
        await asyncio.gather(*{look(x) for x in "ab"})   #! ES006
        a = [x for x in set(goal)]                   #! ES006
        b = list({"a"} | names)                      #! ES006
        c = ",".join(names)                          #! ES006
        d = names.pop()                              #! ES006
        for e in os.listdir("."):                    #! ES006
            pass
        for f in Path(".").iterdir():                #! ES006
            pass
        for g in asyncio.as_completed({look(1), look(2)}):  #! ES006
            await g
        w = await look.map(names)                    #! ES006
        h = hash(goal), id(goal)                     #! ES006 ES006
        i = sorted(names), len(names), "a" in names, [x for x in sorted(set(goal))], {x for x in names}, any(x for x in names)
        for j in {1, 2, 3}:
            pass
        for k in dict.fromkeys(goal):
            pass
        tasks = {asyncio.create_task(look(n)) for n in range(3)}
        done, rest = await asyncio.wait(tasks)
        for t in done:
            t.result()
        for t in tasks:
            t.result()
        mixed = {"a"}
        mixed = sorted(mixed)
        for m in mixed:
            pass
    """,
    "global state": """
        global counter
        counter = 1                                  #! ES007
        TOOLS["b"] = 2                               #! ES007
        TOOLS.update(c=3)                            #! ES007
        a = seen[0]                                  #! ES007
        b = TOOLS["a"]
        local = []
        local.append(1)
    """,
    "cancellation": """
        try:
            await look(1)
        except BaseException:                        #! ES008
            pass
        try:
            await look(1)
        except:                                      #! ES008
            pass
        with contextlib.suppress(BaseException):     #! ES008
            await look(1)
        try:
            await look(1)
        except BaseException:
            await look(2)
            raise
        except (ValueError, Exception):
            pass
    """,
    "tasks": """
        asyncio.create_task(look(1))                 #! ES009
        asyncio.get_running_loop().create_task(look(2))  #! ES009
        look(3)                                      #! ES010
        helper()                                     #! ES010
        kept = asyncio.create_task(look(4))
        async with asyncio.TaskGroup() as group:
            group.create_task(look(5))
        await kept
    """,
    "sleep and bodies": """
        time.sleep(1)                                #! ES011
        await look.fn(1)                             #! ES012
        await asyncio.sleep(1)
        await everstep.sleep(1)
    """,
    "outside of agent code": """
        a = await everstep.run_step("x", lambda: time.time())
        async with everstep.resource(lambda: httpx.AsyncClient(timeout=time.time())) as c:
            pass
        d = everstep.wrap(httpx.Client())
        e = await look_there.aio(1)
    """,
    "shadowed names": """
        random = goal
        a = random.choice("x")
        def open(name):
            return name
        b = open("x")
    """,
    "nested functions": """
        def inner():
            return time.time()                       #! ES001
        async def unused():
            return time.time()
        later = lambda: uuid.uuid4()                 #! ES002
        return inner()
    """,
    "suppressed": """
        a = time.time()      # everstep: ok only logged
        b = time.time()      # everstep: ok              #! ES000
        c = [
            time.time(),     # everstep: ok only logged
            time.time(),                             #! ES001
        ]
    """,
}
TAIL = """

async def helper():
    return 1
"""


def expected(text: str) -> set[tuple[int, str]]:
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, codes = line.partition("#!")
        if mark:
            found |= {(number, code) for code in codes.split()}
    return found


def found_in(path: Path, target: str = "") -> set[tuple[int, str]]:
    findings, _ = check(target or str(path), path.parent)
    return {(f.line, f.code) for f in findings if f.path == path.resolve()}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(name: str, tmp_path: Path) -> None:
    body = SNIPPETS[name].strip("\n")
    text = f"{HEAD}@everstep.agent\nasync def run(goal):\n{re.sub('^    ', '', body, flags=re.M)}{TAIL}"
    path = tmp_path / "snippet.py"
    path.write_text(text.replace("#!", "# !") if "everstep: ok  " not in text else re.sub("#!.*", "", text))
    assert found_in(path) == expected(text)


def test_every_rule_is_in_the_table() -> None:
    codes = {code for text in SNIPPETS.values() for _, code in expected(text)}
    assert codes == set(RULES)


def project(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tmp_path / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != tmp_path:
            (path.parent / "__init__.py").touch()
        path.write_text(text)
    return tmp_path


TRIAGE = """\
import everstep
from tools.plan import plan as p
from tools import steps

@everstep.agent
async def run(goal):
    await steps.look(1)
    return p(goal)

@everstep.agent
async def other(goal):
    pass
"""
PLAN = """\
from .helpers import Planner
from . import helpers

def plan(goal):
    return Planner(goal).make(helpers.clean)

def unused():
    import time
    return time.time()
"""
HELPERS = """\
import time

class Base:
    def again(self):
        return time.time()

class Planner(Base):
    def __init__(self, goal):
        self.began = time.time()
    def make(self, how):
        return self.again()
    def never(self):
        return time.time()

def clean(text):
    return time.time()
"""
STEPS = """\
import time
import everstep

@everstep.step(effect='read')
async def look(n):
    return time.time()
"""


def test_calls_are_followed_through_the_project_and_not_into_steps(tmp_path: Path) -> None:
    home = project(tmp_path, triage=TRIAGE, tools__plan=PLAN, tools__helpers=HELPERS, tools__steps=STEPS)
    findings, agents = check("triage:run", home)
    assert agents == 1
    assert {(f.path.name, f.line) for f in findings} == {("helpers.py", 5), ("helpers.py", 9), ("helpers.py", 16)}
    assert {f.trail for f in findings} >= {"run → plan → Planner", "run → plan → clean"}
    assert check("triage:other", home) == ([], 1)
    assert check("triage", home)[1] == 2


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nothing:run", "no module nothing"),
        ("nothing.py", "there is no file"),
        ("triage:walk", "it has run"),
        ("empty.py", "no @everstep.agent"),
        ("broken.py", "cannot be read as Python"),
    ],
)
def test_what_cannot_be_checked_is_said(tmp_path: Path, target: str, told: str) -> None:
    project(tmp_path, triage="import everstep\n@everstep.agent\nasync def run(goal): ...\n", empty="", broken="def (\n")
    with pytest.raises(ConfigError, match=told):
        check(target, tmp_path)


def test_a_suppression_on_a_def_holds_for_the_function(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import everstep, time\n@everstep.agent\nasync def run(goal):  # everstep: ok a benchmark\n    return time.time()\n"
    )
    assert check("a.py", tmp_path) == ([], 1)


def test_the_command_tells_the_line_the_reason_and_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project(tmp_path, a="import everstep, time\n\n@everstep.agent\nasync def run(goal):\n    return time.time()\n")
    done = CliRunner().invoke(cli, ["check", "a:run"])
    assert done.exit_code == 1
    assert done.stdout == (
        "a.py:5:12: ES001 clock: time.time(…)   (in run)\n    a replay reads another time; everstep.now()\n"
    )
    assert done.stderr == "1 finding in 1 agent\n"
    [document] = json.loads(CliRunner().invoke(cli, ["check", "a.py", "-o", "json"]).stdout)
    assert (document["path"], document["line"], document["code"], document["trail"]) == ("a.py", 5, "ES001", "run")
    assert CliRunner().invoke(cli, ["check", "b.py"]).exit_code == 2
    (tmp_path / "a.py").write_text(
        "import everstep\n\n@everstep.agent\nasync def run(goal):\n    return everstep.now()\n"
    )
    clean = CliRunner().invoke(cli, ["check", "a.py"])
    assert (clean.exit_code, clean.stdout) == (0, "nothing found in 1 agent\n")


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "agent_image" / "examples").glob("*.py")), ids=lambda p: p.name)
def test_no_false_alarm_on_the_examples(path: Path) -> None:
    findings, agents = check(str(path), path.parent)
    assert findings == []
    assert agents >= 1


@pytest.mark.parametrize("name", ["agents", "agents_patches"])
def test_no_false_alarm_on_the_agents_that_are_killed(name: str) -> None:
    """They use every form of asyncio, and were shown to replay."""
    assert check(f"tests.crash.{name}", ROOT)[0] == []
    assert check("tests.histories.agents", ROOT)[0] == []
