"""The rules, as data: what is looked for, why it matters, what to write instead. docs/change.md shows the same table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One kind of finding."""

    code: str
    title: str
    why: str
    cure: str


RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        Rule(
            "ES000", "suppression without a reason", "nobody can tell whether it still holds",
            "write `# everstep: ok <reason>`",
        ),
        Rule("ES001", "clock", "a replay reads another time", "everstep.now()"),
        Rule("ES002", "randomness", "a replay draws another value", "everstep.uuid4() or everstep.random()"),
        Rule(
            "ES003", "input or output", "it happens again at every replay, and what it reads may have changed",
            "put it into the body of a step",
        ),
        Rule(
            "ES004", "environment", "the next attempt may run in another pod, on another node",
            "pass it as an input, or read it in a step",
        ),
        Rule(
            "ES005", "process or thread", "it starts again at every replay, and its effects are in no record",
            "put it into the body of a step",
        ),
        Rule("ES006", "unordered iteration", "the order differs in the next process", "iterate over sorted(…)"),
        Rule(
            "ES007", "global state", "the next attempt begins without what this process has changed",
            "keep it in a local variable of the agent",
        ),
        Rule(
            "ES008", "swallowed cancellation", "a cancelled run or task would go on as if nothing had happened",
            "catch Exception, or raise again after the clean-up",
        ),
        Rule(
            "ES009", "dropped task", "nothing waits for it: it is cancelled when the agent returns, and its errors are lost",
            "keep it and await it, or use asyncio.TaskGroup",
        ),
        Rule("ES010", "call that is not awaited", "the coroutine never runs", "await it"),
        Rule(
            "ES011", "sleep that blocks", "it is not durable, and it waits again at every replay",
            "await everstep.sleep(…), or everstep.sleep(…) in a sync agent",
        ),
        Rule("ES012", "step body called directly", "it runs again at every replay, unjournaled", "call the step itself"),
    )
}  # fmt: skip

CALLS: dict[str, str] = {
    **dict.fromkeys(
        (
            "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
            "time.process_time", "time.localtime", "time.gmtime", "time.ctime", "time.asctime", "time.strftime",
            "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
            "pendulum.now", "pendulum.today", "arrow.now", "arrow.utcnow", "django.utils.timezone.now",
        ),
        "ES001",
    ),
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom"), "ES002"),
    **dict.fromkeys(
        (
            "open", "input", "io.open", "os.open", "os.remove", "os.unlink", "os.rename", "os.replace", "os.makedirs", "os.mkdir",
            "os.rmdir", "os.stat", "os.path.exists", "os.path.isfile", "os.path.isdir", "os.path.getsize", "os.path.getmtime",
            "sqlite3.connect", "smtplib.SMTP", "smtplib.SMTP_SSL", "ftplib.FTP", "redis.Redis", "redis.from_url",
            "psycopg.connect", "psycopg2.connect", "pymongo.MongoClient", "sqlalchemy.create_engine", "builtins.open",
            "asyncio.open_connection", "asyncio.start_server", "asyncio.open_unix_connection",
        ),
        "ES003",
    ),
    **dict.fromkeys(
        (
            "os.getenv", "os.getcwd", "os.getpid", "os.getppid", "os.getlogin", "os.cpu_count", "os.uname", "getpass.getuser",
            "socket.gethostname", "socket.getfqdn", "pathlib.Path.cwd", "pathlib.Path.home", "os.path.expanduser", "uuid.getnode",
            "locale.getlocale", "locale.setlocale", "os.path.expandvars", "os.environ.get",
        ),
        "ES004",
    ),
    **dict.fromkeys(
        (
            "os.system", "os.popen", "os.fork", "os.execv", "os.execve", "os.spawnv", "os.posix_spawn", "asyncio.to_thread",
            "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "concurrent.futures.ThreadPoolExecutor",
            "concurrent.futures.ProcessPoolExecutor", "threading.Thread", "threading.Timer", "anyio.to_thread.run_sync",
        ),
        "ES005",
    ),
    **dict.fromkeys(("id", "hash"), "ES006"),
    "time.sleep": "ES011",
}  # fmt: skip
"""Calls by their full name. A class stands for its constructor."""

PREFIXES: dict[str, str] = {
    "random.": "ES002",
    "secrets.": "ES002",
    "numpy.random.": "ES002",
    "requests.": "ES003",
    "httpx.": "ES003",
    "aiohttp.": "ES003",
    "urllib.request.": "ES003",
    "urllib3.": "ES003",
    "http.client.": "ES003",
    "socket.": "ES003",
    "ssl.": "ES003",
    "shutil.": "ES003",
    "tempfile.": "ES003",
    "boto3.": "ES003",
    "aiofiles.": "ES003",
    "platform.": "ES004",
    "subprocess.": "ES005",
    "multiprocessing.": "ES005",
    "_thread.": "ES005",
}
"""The same for whole modules: every call into them."""

ALLOWED = frozenset({"random.Random", "numpy.random.default_rng", "numpy.random.RandomState"})
"""Calls into those modules that repeat themselves: a generator with a seed. Without arguments it has none."""

READS: dict[str, str] = {"os.environ": "ES004", "sys.argv": "ES004", "os.environb": "ES004"}
"""Attributes that are read, called or not."""

METHODS: dict[str, str] = {
    **dict.fromkeys(
        (
            "read_text",
            "write_text",
            "read_bytes",
            "write_bytes",
            "unlink",
            "touch",
            "symlink_to",
            "hardlink_to",
            "rmdir",
        ),
        "ES003",
    ),
    **dict.fromkeys(("run_in_executor",), "ES005"),
}
"""Methods that say enough by their name, whatever they are called on."""

LISTINGS = frozenset({"os.listdir", "os.scandir", "glob.glob", "glob.iglob", "os.walk"})
LISTING_METHODS = frozenset({"iterdir", "glob", "rglob"})
"""Directories, in an order that nobody promises."""

ORDERED_BY = frozenset({"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool", "isinstance"})
"""Functions for which the order of what they are given does not matter."""

NOT_AGENT_CODE = frozenset({"run_step", "resource", "per_attempt", "wrap"})
"""Functions of everstep whose arguments are run outside agent code."""

CATCHES_ALL = frozenset({"BaseException", "builtins.BaseException"})
MAKES_TASK = frozenset({"asyncio.create_task", "asyncio.ensure_future"})
MUTATORS = frozenset(
    {"append", "extend", "insert", "pop", "remove", "clear", "add", "discard", "update", "setdefault", "popitem", "appendleft"}
)  # fmt: skip
