"""The databases that tests get keep nothing of an earlier test."""

import pytest

from tests.support.database import Database

SEQUENCE = "outbox_message_sequence_seq"


@pytest.mark.parametrize("use", ["SELECT nextval('{}')", "SELECT setval('{}', 400)"])
def test_sequences_start_again(postgres: Database, use: str) -> None:
    """Sequences start again at their first number, even if an earlier test only drew a number and wrote no
    row."""
    server = postgres.server
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql(use.format(SEQUENCE))
    postgres.dispose()
    server.drop_database(postgres.url)
    again = Database(server, server.copy_database(postgres.url))
    try:
        assert again.url == postgres.url
        with again.engine().begin() as connection:
            assert connection.exec_driver_sql(f"SELECT nextval('{SEQUENCE}')").scalar_one() == 1
    finally:
        again.dispose()
