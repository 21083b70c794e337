"""The cost of the brokers' consumers and publishers, as ratios of variants that ran side by side.

    python -m benchmarks.brokers [--rounds N] [--messages N] [--only NAME]

Runs on a private PostgreSQL with fsync on, and on brokers that the tests' classes start; one that is not
installed is left out. The exit code is 1 if a target is missed.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.embedded_postgres import EmbeddedPostgres
from tests import servers
from tests.servers import Missing
from tests.support.brokers.kafka_topics import Topics as KafkaTopics
from tests.support.brokers.rabbit_queues import Queues
from tests.support.brokers.rocketmq_topics import Topics as RocketTopics

from . import _print
from ._brokers_consume import consume
from ._brokers_import import importing
from ._brokers_kafka import Kafka
from ._brokers_lab import BrokersLab
from ._brokers_publish import publish
from ._brokers_rabbitmq import Rabbit
from ._brokers_rocketmq import Rocket
from ._lab import SETTINGS, Lab
from ._measure import Grid, Report


def _kafka(lab: BrokersLab) -> Report:
    found = servers.find_kafka()
    if isinstance(found, Missing):
        return _left_out("Kafka", found)
    with KafkaTopics(found.address) as topics, closing(Kafka(topics)) as kafka:
        return consume(lab, "Kafka", kafka)


def _rabbitmq(lab: BrokersLab) -> Report:
    found = servers.find_rabbit()
    if isinstance(found, Missing):
        return _left_out("RabbitMQ", found)
    with Queues(found.url) as queues, closing(Rabbit(queues)) as rabbit:
        return consume(lab, "RabbitMQ", rabbit)


def _rocketmq(lab: BrokersLab) -> Report:
    found = servers.find_rocket()
    if isinstance(found, Missing):
        return _left_out("RocketMQ", found)
    with RocketTopics(found.address, found.broker) as topics, closing(Rocket(topics)) as rocket:
        return consume(lab, "RocketMQ", rocket)


def _publisher(lab: BrokersLab) -> Report:
    found = servers.find_rocket()
    if isinstance(found, Missing):
        return _left_out("RocketMQ", found)
    with RocketTopics(found.address, found.broker) as topics:
        return publish(lab, topics)


BENCHMARKS: dict[str, Callable[[BrokersLab], Report]] = {
    "kafka": _kafka,
    "rabbitmq": _rabbitmq,
    "rocketmq": _rocketmq,
    "publisher": _publisher,
    "import": importing,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen benchmarks and print the results; return 1 if a target is missed."""
    options = _options(arguments)
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    try:
        with (
            EmbeddedPostgres(SETTINGS) as server,
            Progress(*columns, console=console, auto_refresh=False) as progress,
        ):
            lab = BrokersLab(Lab(server, progress, quick=False), options.rounds, options.messages)
            reports = [BENCHMARKS[name](lab) for name in options.only or BENCHMARKS]
    finally:
        servers.stop_all()
    subtitle = f"PostgreSQL {server.version}, fsync on, median of {lab.rounds} rounds"
    _print.show(console, reports, subtitle)
    return int(any(figure.holds is False for report in reports for figure in report.figures))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers", description=description)
    parser.add_argument("--rounds", type=int, default=7, help="how often variants take turns (7)")
    parser.add_argument("--messages", type=int, default=2_000, help="messages in a turn (2,000)")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="one benchmark; may repeat")
    return parser.parse_args(arguments)


def _left_out(name: str, missing: Missing) -> Report:
    return Report(grids=[Grid(f"{name} was left out", ["reason"], [[missing.reason]])])


if __name__ == "__main__":
    sys.exit(main())
