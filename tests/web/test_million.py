"""The pages beside a million messages of each kind."""

import html
import re
from functools import partial

import pytest
from sqlalchemy import Engine

import outbox
from tests.support.browsing import Visit
from tests.support.database import Database
from tests.support.filling import fill_inbox, fill_outbox
from tests.support.on_servers import on
from tests.support.reads import recorded, rows_read, scans

MILLION = 1_000_000
PAGES = (
    "/",
    "/topics",
    "/topic?name=topic-3",
    "/stopped",
    "/consumers",
    "/consumer?name=orders",
    "/relays",
    "/decisions",
)


@pytest.mark.long
def test_no_page_reads_them_all(engine: Engine) -> None:
    """Each page reads some ten thousand rows, by indexes; what it has not read it marks."""
    fill_outbox(engine, MILLION)
    fill_inbox(engine, MILLION)
    ann = Visit(engine)
    with recorded(engine) as statements:
        assert len(outbox.peek(engine, state="unknown")) == 20
    assert sum(rows for each in statements for _, _, rows, _ in scans(engine, *each)) < 10_000
    groups = re.findall(r'href="(/group[^"]*)"', ann.get("/stopped").text)
    assert "1,000+" in ann.see("/stopped")
    assert "Held messages were looked for among the oldest 10,000 that wait." in ann.see("/stopped")
    assert groups
    for path in (*PAGES, html.unescape(groups[0])):
        with recorded(engine) as statements:
            found = ann.get(path)
        assert found.status_code == 200, path
        assert "Not seen" not in found.text, path
        read = [scan for each in statements for scan in scans(engine, *each)]
        assert not [scan for scan in read if scan[0] == "Seq Scan" and scan[2] > 10_000], path
        assert sum(rows for _, _, rows, _ in read) < 100_000, path


@pytest.mark.long
@on("mariadb")
def test_no_page_reads_a_whole_table_on_mariadb(migrated: Database) -> None:
    """Beside a hundred thousand messages of each kind, each page reads fewer rows than one table has, but for
    the search by an id."""
    engine = migrated.engine(pool_size=1, max_overflow=0)  # the server counts by session
    fill_outbox(engine, MILLION // 10)
    fill_inbox(engine, MILLION // 10)
    ann = Visit(engine)
    groups = re.findall(r'href="(/group[^"]*)"', ann.get("/stopped").text)
    found: list[str] = []

    def look(path: str, _: Engine) -> None:
        found.append(ann.get(path).text)

    for path in (*PAGES, *(html.unescape(each) for each in groups[:2]), "/message?q=k-5"):
        assert rows_read(engine, partial(look, path)) < MILLION // 10, path
        assert "Not seen" not in found[-1], path
