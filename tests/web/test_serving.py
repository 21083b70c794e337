"""`inbox-outbox web` as a process, and further stores."""

import signal
import subprocess
import time

import httpx
import pytest
from redis import Redis

from inbox import RedisStore, StatusInbox
from tests.support.browsing import Visit, seen
from tests.support.cli import line
from tests.support.database import Database
from tests.support.on_servers import on
from tests.support.outbox_publishers import publish
from tests.support.status_mode.stores import Place


def test_the_command(sqlite: Database) -> None:
    """It says where the page is, lets nobody decide unless it is told so, and ends at a signal although a
    browser listens to its events."""
    publish(sqlite.engine(), "a1", topic="mail")
    command = line("web", "--port", "0", "--user", "ann", "--allow", "pause", url=sqlite.url)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        at = process.stderr.readline().split()[0]
        with httpx.Client(base_url=at) as client, client.stream("GET", "/live") as events:
            assert next(events.iter_lines()).startswith("data: ")
            topic = client.get("/topic", params={"name": "mail"}).text
            assert "Pause this topic" in topic
            assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
            process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 30
            while process.poll() is None:
                assert time.monotonic() < end
                time.sleep(0.05)
        assert process.stderr.read() == ""


@on("redis", fixture="place")
def test_a_store_on_redis(place: Place, sqlite: Database) -> None:
    """It is asked only by a link of its own; its messages are decided about like the others."""
    with Redis.from_url(place.url) as client:
        store = RedisStore(client, prefix=place.prefix)
        orders = StatusInbox("orders", store=store, max_attempts=1)
        with pytest.raises(ValueError, match="no"), orders.claim("x"):
            raise ValueError("no address")
        ann = Visit(sqlite.engine(), stores=[store], allow=("retry", "discard"))
        assert "No message waits for somebody." in ann.see("/stopped")
        stopped = ann.get("/stopped?store=1")
        assert "1 ValueError: no address dead orders consumer" in seen(stopped)
        path = stopped.text.partition('href="/group?')[2].partition('"')[0].replace("&amp;", "&")
        done = ann.submit(ann.get(f"/group?{path}").text, "retry every")
        assert "1 message was retried." in seen(ann.get(done.headers["location"]))
        assert "failed" in ann.see("/message", q="x", store="1")
        assert "Nothing is known" in ann.see("/message", q="x")
        assert ann.get("/stopped?store=2").status_code == 404
