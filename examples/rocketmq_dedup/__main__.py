"""The command line: ``python -m examples.rocketmq_dedup``."""

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine

from examples._common import add_url, database, url_of
from examples.rocketmq_dedup import __doc__ as about
from examples.rocketmq_dedup.shop import METADATA
from inbox import migration
from tests import servers
from tests.servers import Missing
from tests.servers.rocketmq import RocketServer
from tests.support.brokers.rocketmq_topics import Topics

KEPT, BROKEN, FAILED = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the acts; return 0 if everything took effect once, 1 if not, 2 if it could not run."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_url(parser)
    given = url_of(parser, parser.parse_args(arguments))
    logging.disable()  # what fails here is meant to
    console = Console()
    try:
        from examples.rocketmq_dedup.acts import ACTS, DEAD, TOPICS, Shown, Stage

        with database(given) as url, broker() as server, Topics(server.address, server.broker) as topics:
            engine = create_engine(url)
            migration.migrate(engine)
            METADATA.drop_all(engine)
            METADATA.create_all(engine)
            for topic in (*TOPICS, DEAD):
                topics.new(name=topic)
                topics.group(name=topic)
            stage = Stage(engine, url, f"rocketmq://{server.address}")
            with ThreadPoolExecutor(len(ACTS)) as pool:
                shown: list[Shown] = [*pool.map(lambda act: act(stage), ACTS)]
            METADATA.drop_all(engine)
            engine.dispose()
    except (ModuleNotFoundError, RuntimeError) as error:
        console.print(f"cannot run: {error}")
        return FAILED
    table = Table("what happened", "verdicts about its deliveries", "took effect", "expected")
    for each in shown:
        verdicts = ", ".join(f"{number} {name}" for name, number in Counter(each.verdicts).items())
        table.add_row(each.act, verdicts, str(each.effect), str(each.expected))
    console.print(table)
    return KEPT if all(each.effect == each.expected for each in shown) else BROKEN


@contextmanager
def broker() -> Iterator[RocketServer]:
    """RocketMQ while the block runs.

    Raises:
        RuntimeError: there is none.
    """
    found = servers.find_rocket()
    if isinstance(found, Missing):
        raise RuntimeError(found.reason)  # noqa: TRY004 - not a wrong type
    try:
        yield found
    finally:
        servers.stop_all()


if __name__ == "__main__":
    sys.exit(main())
