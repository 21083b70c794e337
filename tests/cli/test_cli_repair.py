"""The commands for messages in status-table mode."""

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from inbox import Inbox, SqlStore, Status
from inbox._status_mode.stores import Store, remember
from inbox.schema import tables
from tests.support.cli import Done, as_json, error, in_this_process, inbox_outbox, line, succeeded
from tests.support.database import Database
from tests.support.on_servers import both_stores, on
from tests.support.program import ROOT
from tests.support.status_mode.stores import (
    CONSUMER,
    ENDS,
    PAYLOAD,
    Place,
    change,
    end,
    held,
    request,
    stored,
)

KEY = "order-1"
SECRET = "s3cr3t-P@ss"  # noqa: S105 - of nobody


@pytest.fixture
def run(place: Place) -> Callable[..., Done]:
    """A function that runs an `inbox` command on the test's store."""

    def run(*arguments: str) -> Done:
        prefix = ["--prefix", place.prefix] if place.name == "redis" else []
        return in_this_process("inbox", *arguments, *prefix, url=place.url)

    return run


def rows(printed: str) -> list[list[str]]:
    """The printed cells, without headings and lines."""
    printed_rows = [each for each in printed.splitlines() if each.startswith("│")]
    return [[cell.strip() for cell in row.split("│")[1:-1]] for row in printed_rows]


@both_stores
def test_list(store: Store, run: Callable[..., Done]) -> None:
    """`list` prints one line for each message, filtered by status and consumer, up to a limit."""
    for status in (Status.DEAD, Status.HALTED):
        end(store, store.claim(request(f"order-{status}")), status)
    store.claim(request("parcel", consumer="shipping"))
    (dead,) = rows(succeeded(run("list", "--status", "dead")))
    assert dead == [CONSUMER, "order-dead", "dead", "1", dead[4], "no"]
    assert dead[4].endswith(" s ago")
    assert [row[1] for row in rows(succeeded(run("list", "--consumer", CONSUMER)))] == [
        "order-dead",
        "order-halted",
    ]
    assert [row[1] for row in rows(succeeded(run("list", "--limit", "1")))] == ["order-dead"]
    (found,) = as_json(run("list", "--status", "halted", "--json"))
    assert (found["key"], found["pending_step"], found["error"]) == ("order-halted", "charge", "unknown")
    assert as_json(run("list", "--consumer", "nobody", "--json")) == []


def is_dead_after_a_step(store: Store) -> None:
    """Make a dead message whose record has every field except a result."""
    claimed = store.claim(request(KEY, digest=b"1" * 16))
    steps = '{"lock":{"state":"done","result":[7]},"charge":{"state":"begun"}}'
    history = remember(claimed.record, "\x1b[31mno", claimed.now)
    fields: dict[str, Any] = {"steps": steps, "history": history, "payload": PAYLOAD}
    assert store.write(held(claimed), change(status=Status.DEAD, **ENDS[Status.DEAD] | fields))


@both_stores
def test_show(store: Store, run: Callable[..., Done]) -> None:
    """`show` prints the complete record with its steps and history, and the length of its payload; bytes are
    in hexadecimal, control characters are escaped."""
    is_dead_after_a_step(store)
    printed = rows(succeeded(run("show", CONSUMER, KEY)))
    columns = {row[0]: row[1] for row in printed if len(row) == 2}
    assert (columns["status"], columns["error"], columns["result"]) == ("dead", "no", "-")
    assert (columns["digest"], columns["payload"]) == ((b"1" * 16).hex(), f"{len(PAYLOAD)} B")
    assert [row for row in printed if len(row) == 3] == [["lock", "done", "[7]"], ["charge", "begun", "null"]]
    ((_, attempt, owner, said),) = [row for row in printed if len(row) == 4]
    assert (attempt, owner, said) == ("1", "worker", "\\x1b[31mno")


@on("sqlite", fixture="place")
def test_show_as_json(store: Store, run: Callable[..., Done]) -> None:
    """`show --json` prints the fields of `Record`, steps and history as JSON, and the length of the
    payload."""
    is_dead_after_a_step(store)
    found = as_json(run("show", CONSUMER, KEY, "--json"))
    assert (found["consumer"], found["key"], found["status"]) == (CONSUMER, KEY, "dead")
    assert found["payload_bytes"] == len(PAYLOAD)
    assert "payload" not in found
    assert found["steps"]["lock"] == {"state": "done", "result": [7]}
    assert found["history"][0]["error"] == "\x1b[31mno"
    assert datetime.fromisoformat(found["updated_at"]) == stored(store, KEY).updated_at


def test_show_the_payload(postgres: Database) -> None:
    """`show --payload` writes the payload unchanged; the exit code is 3 if none is stored."""
    store = SqlStore(postgres.engine())
    end(store, store.claim(request("without")), Status.DEAD)
    done = inbox_outbox("inbox", "show", CONSUMER, "without", "--payload", url=postgres.url)
    assert done.returncode == 3
    assert error(done) == "no payload of this message is stored"
    is_dead_after_a_step(store)
    command = line("inbox", "show", CONSUMER, KEY, "--payload", url=postgres.url)
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout == PAYLOAD


def test_show_of_both_modes(postgres: Database) -> None:
    """A key that a consumer has taken in both modes is shown twice; as JSON, one object is inside the
    other."""
    engine = postgres.engine()
    end(SqlStore(engine), SqlStore(engine).claim(request(KEY)), Status.CONSUMED)
    with engine.begin() as connection:
        Inbox(CONSUMER).accept(connection, KEY)
    printed = succeeded(inbox_outbox("inbox", "show", CONSUMER, KEY, url=postgres.url))
    assert printed.count(KEY) == 2
    found = as_json(inbox_outbox("inbox", "show", CONSUMER, KEY, "--json", url=postgres.url))
    assert "accepted_at" in found
    assert found["record"]["status"] == "consumed"


@both_stores
@pytest.mark.parametrize("command", ["retry", "discard"])
def test_retry_and_discard(store: Store, run: Callable[..., Done], command: str) -> None:
    """`retry` and `discard` print the message's new state; the history records who did it."""
    end(store, store.claim(request(KEY)), Status.DEAD)
    status, did = {"retry": ("failed", "to be retried"), "discard": ("consumed", "discarded")}[command]
    ((*_, printed, attempts, _, said),) = rows(succeeded(run(command, CONSUMER, KEY, "--by", "ann")))
    assert (printed, said) == (status, f"{did} by ann")
    assert attempts == ("0" if command == "retry" else "1")
    (entry,) = json.loads(stored(store, KEY).history or "")
    assert (entry["owner"], entry["error"]) == ("ann", did)


@on("sqlite", fixture="place")
def test_who_decides(store: Store, run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    """The default for `--by` is the user who is logged in."""
    monkeypatch.setenv("USER", "bob")
    end(store, store.claim(request(KEY)), Status.DEAD)
    assert as_json(run("retry", CONSUMER, KEY, "--json"))["error"] == "to be retried by bob"


@both_stores
def test_release(store: Store, run: Callable[..., Done]) -> None:
    """`release` takes a message away from its handler, whose next write is rejected."""
    claimed = store.claim(request(KEY))
    assert as_json(run("release", CONSUMER, KEY, "--json"))["status"] == "failed"
    assert not store.write(held(claimed), change(status=Status.CONSUMED))


@on("sqlite", fixture="place")
@pytest.mark.parametrize(
    ("outcome", "options", "steps"),
    [
        ("done", ["--result", '{"id": 7}'], {"charge": {"state": "done", "result": {"id": 7}}}),
        ("done", [], {"charge": {"state": "done", "result": None}}),
        ("not_done", [], {}),
    ],
)
def test_resolve_step(
    store: Store, run: Callable[..., Done], outcome: str, options: list[str], steps: dict[str, Any]
) -> None:
    """`resolve-step` records the outcome of the step; the message is then failed, and can run again."""
    claimed = store.claim(request(KEY))
    begun = change(status=Status.HALTED, steps='{"charge":{"state":"begun"}}', **ENDS[Status.HALTED])
    assert store.write(held(claimed), begun)
    found = as_json(run("resolve-step", CONSUMER, KEY, "charge", outcome, *options, "--json"))
    assert (found["status"], found["pending_step"], found["steps"]) == ("failed", None, steps)


def test_a_result_that_is_no_json(store: Store, run: Callable[..., Done]) -> None:
    """`resolve-step` refuses it as wrong usage, and changes nothing."""
    claimed = store.claim(request(KEY))
    begun = change(status=Status.HALTED, steps='{"charge":{"state":"begun"}}', **ENDS[Status.HALTED])
    assert store.write(held(claimed), begun)
    assert run("resolve-step", CONSUMER, KEY, "charge", "done", "--result", "NaN").returncode == 2
    assert stored(store, KEY).status is Status.HALTED


COMMANDS = (["retry"], ["discard"], ["release"], ["resolve-step", "charge", "done"])


@both_stores
def test_an_unknown_message(store: Store, run: Callable[..., Done]) -> None:
    """If the store does not know the message, the exit code is 3."""
    for name, *rest in COMMANDS:
        done = run(name, CONSUMER, KEY, *rest)
        assert done.returncode == 3, name
        assert error(done) == f"consumer '{CONSUMER}' has no message '{KEY}' in status-table mode"


@on("sqlite", fixture="place")
def test_a_message_in_another_status(store: Store, run: Callable[..., Done]) -> None:
    """If the command does not fit the message's status, the exit code is 5, and nothing changes."""
    end(store, store.claim(request(KEY)), Status.CONSUMED)
    before = stored(store, KEY)
    for name, *rest in COMMANDS:
        done = run(name, CONSUMER, KEY, *rest)
        assert done.returncode == 5, name
        assert error(done).startswith(f"key='{KEY}': status is consumed; this needs ")
        assert stored(store, KEY) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--status", "lost"], "--status"),
        (["list", "--limit", "0"], "--limit=0: expected a whole number"),
        (["list", "--consumer", ""], "consumer='': expected 1 to 128 bytes"),
        (["retry", CONSUMER], "expected a consumer and a key, or --all"),
        (["retry", CONSUMER, ""], "expected 1 to 512 bytes"),
        (["resolve-step", CONSUMER, KEY, "charge", "maybe"], "maybe"),
        (["resolve-step", CONSUMER, KEY, "charge", "done", "--result", "{"], "--result='{': expected JSON"),
        (["resolve-step", CONSUMER, KEY, "charge", "not_done", "--result", "1"], "result=1: expected None"),
        (["purge", "--dead-older-than", "1w"], "--dead-older-than='1w': expected a time such as 30s"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    """A wrong option is a usage error with exit code 2, in one line that names the option."""
    done = in_this_process("inbox", *arguments, url="sqlite://")
    assert said in error(done)
    assert done.returncode == 2


def test_status(postgres: Database) -> None:
    """`status` prints how many messages have each status, next to the rows of the exactly-once path or alone,
    and each consumer's policy."""
    store = SqlStore(postgres.engine())
    for number, status in enumerate((Status.DEAD, Status.DEAD, Status.HALTED)):
        end(store, store.claim(request(str(number))), status)
    (only,) = rows(succeeded(inbox_outbox("inbox", "status", url=postgres.url)))
    assert only == [CONSUMER, "0", "0", "0", "2", "1"]
    with postgres.engine().begin() as connection:
        Inbox("billing").accept(connection, KEY)
    first, second, third = rows(succeeded(inbox_outbox("inbox", "status", url=postgres.url)))
    assert first[:3] == ["billing", "1", "1"]
    assert second == only
    assert third[:4] == ["billing", "exactly-once", "7d", "-"]
    billing, orders = as_json(inbox_outbox("inbox", "status", "--json", url=postgres.url))
    assert (billing["consumer"], billing["rows"], billing["messages"]) == ("billing", 1, {})
    assert (orders["rows"], orders["oldest"], orders["messages"]) == (0, None, {"dead": 2, "halted": 1})


def test_purge(postgres: Database) -> None:
    """`purge` also deletes messages in status-table mode; dead and halted ones by `--dead-older-than`."""
    engine, status = postgres.engine(), tables().status
    store = SqlStore(engine)
    for each in (Status.CONSUMED, Status.DEAD):
        end(store, store.claim(request(each)), each)
    with engine.begin() as connection:
        connection.execute(update(status).values(updated_at=datetime.now(UTC) - timedelta(days=20)))
    assert as_json(inbox_outbox("inbox", "purge", "--json", url=postgres.url))["rows"] == 1
    options = ["--dead-older-than", "19d", "--json"]
    assert as_json(inbox_outbox("inbox", "purge", *options, url=postgres.url))["rows"] == 1
    assert store.list(None, None, 10) == []


@pytest.mark.parametrize("command", [["list"], ["show", CONSUMER, KEY], ["retry", CONSUMER, KEY]], ids=str)
def test_a_redis_that_does_not_answer(command: list[str]) -> None:
    """If Redis does not answer, the exit code is 1, and the error is one line without the password."""
    done = in_this_process("inbox", *command, url="redis://user:s3cr3t-P%40ss@127.0.0.1:1/0")
    assert done.returncode == 1
    message = error(done)
    assert message.startswith("redis: ")
    assert "s3cr3t" not in message


@on("redis", fixture="place")
def test_what_redis_has_not(place: Place) -> None:
    """Commands that need tables are rejected by name on a Redis."""
    for command in (["status"], ["purge"]):
        done = in_this_process("inbox", *command, url=place.url)
        assert done.returncode == 1
        assert error(done).startswith("dialect='redis': only ")


@on("redis", fixture="place")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--schema", "app"], "--schema='app': only PostgreSQL has schemas inside a database"),
        (["--prefix", ""], "--prefix='': expected some text"),
        (["--limit", "0"], "--limit=0: expected a whole number, one or more"),
    ],
)
def test_wrong_usage_with_redis(place: Place, options: list[str], said: str) -> None:
    """A wrong option is a usage error with a Redis, too."""
    done = in_this_process("inbox", "list", *options, url=place.url)
    assert (done.returncode, error(done)) == (2, said)


def test_a_bad_address_of_a_redis() -> None:
    """A URL that redis-py rejects is a usage error."""
    done = in_this_process("inbox", "list", url="redis://127.0.0.1/0?socket_timeout=soon")
    assert done.returncode == 2
    assert error(done).startswith("--url: ")


@on("redis", fixture="place")
def test_a_redis_that_refuses(place: Place) -> None:
    """If Redis rejects the password, the exit code is 1, and the error does not contain it."""
    url = place.url.replace("redis://", f"redis://nobody:{SECRET.replace('@', '%40')}@")
    done = in_this_process("inbox", "list", url=url)
    assert done.returncode == 1
    message = error(done)
    assert message.startswith("redis: ")
    assert "s3cr3t" not in message
