"""Without an extra, the import or class that needs it names the missing module and the extra to install."""

import json
import sys

import pytest

from tests.support.program import run

NEEDS = {
    "import inbox.kafka": ("confluent_kafka", "kafka"),
    "import outbox.kafka": ("confluent_kafka", "kafka"),
    "import inbox.rabbitmq": ("aiormq", "rabbitmq"),
    "import outbox.rabbitmq": ("aiormq", "rabbitmq"),
    "import inbox.redis_streams": ("redis", "redis"),
    "import outbox.redis_streams": ("redis", "redis"),
    "import inbox.rocketmq": ("rocketmq", "rocketmq"),
    "import outbox.rocketmq": ("rocketmq", "rocketmq"),
    "import inbox.nats": ("nats", "nats"),
    "import outbox.nats": ("nats", "nats"),
    "import inbox.sqs": ("boto3", "sqs"),
    "import outbox.sqs": ("boto3", "sqs"),
    "import outbox.webhook": ("httpcore", "webhook"),
    "import inbox.otel": ("opentelemetry", "otel"),
    "import inbox_outbox.metrics": ("opentelemetry", "otel"),
    "import inbox_outbox.prometheus": ("opentelemetry", "prometheus"),
    "import spark": ("pyarrow", "spark"),
    "import inbox_outbox.web": ("starlette", "web"),
    "import inbox; inbox.RedisStore(None)": ("redis", "redis"),
    "import inbox; inbox.AsyncInbox('a')": ("greenlet", "asyncio"),
    "import inbox; inbox.AsyncStatusInbox('a', store=None)": ("greenlet", "asyncio"),
}
SCRIPT = """
import json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
import inbox, outbox
said = {}
for code in json.loads(sys.argv[2]):
    try:
        exec(code)
    except ModuleNotFoundError as error:
        said[code] = [str(error), error.name]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, tuple[str, str]]:
    """The error's text and the missing module for each import or class, where only the plain package is
    installed."""
    hidden = json.dumps([module for module, _ in NEEDS.values()])
    done = run([sys.executable, "-c", SCRIPT, hidden, json.dumps(list(NEEDS))])
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("code", NEEDS)
def test_what_is_missing_is_named(code: str, said: dict[str, tuple[str, str]]) -> None:
    """The error names the missing module and the extra to install."""
    module, extra = NEEDS[code]
    text, name = said[code]
    assert name.partition(".")[0] == module
    assert text == f"{name} is not installed; install inbox-outbox[{extra}]"


def test_the_import_loads_what_everybody_needs() -> None:
    """Importing the packages loads no driver, dialect or broker client, and neither Alembic nor pyarrow."""
    later = [
        "alembic",
        "pyarrow",
        "psycopg",
        "pymysql",
        "aiosqlite",
        "redis",
        "confluent_kafka",
        "aiormq",
        "rocketmq",
        "grpc",
        "nats",
        "boto3",
        "botocore",
        "httpcore",
        "pytest",
    ]
    later += [f"sqlalchemy.dialects.{name}" for name in ("mysql", "postgresql", "sqlite")]
    script = "import json, sys, inbox, outbox; print(json.dumps([*{*sys.argv[1:]} & {*sys.modules}]))"
    done = run([sys.executable, "-c", script, *later])
    assert (json.loads(done.stdout), done.stderr) == ([], "")
