"""A consumer with an inbox, against the broker's bare client with an inbox written by hand."""

from collections.abc import Callable
from contextlib import closing

from sqlalchemy import Engine

from . import _business
from ._brokers_lab import Broker, Count, Speed, grid, messages_of, rate_ratios, speeds_of
from ._brokers_messages import envelopes, send
from ._brokers_work import ByHand, done, in_sqlalchemy, of_delivery, of_payload
from ._lab import Lab
from ._measure import Report, figure

_WORKERS = (1, 4)
_TARGET = 0.6


def consume(lab: Lab, name: str, broker: Broker) -> Report:
    """With one message at a time, and with several."""
    report = Report()
    for workers in _WORKERS:
        title = f"{name}, {workers} at a time"
        with lab.database(f"{name}_{workers}", connections=workers) as engine:
            _business.prepare(engine, 1)
            turns = {
                "consumer": _turn(lab, engine, broker, workers, _ours),
                "bare client": _turn(lab, engine, broker, workers, _by_hand),
                "bare client with SQLAlchemy": _turn(lab, engine, broker, workers, _in_sqlalchemy),
                "bare client with an inbox": _turn(lab, engine, broker, workers, _with_inbox),
            }
            speeds = speeds_of(lab, title, turns)
        for other in list(turns)[1:]:
            target = _TARGET if other == "bare client" else None
            ratios = rate_ratios(speeds, "consumer", other)
            report.figures.append(figure(f"{title}: consumer / {other}", ratios, at_least=target))
        report.grids.append(grid(f"speed from {title}", speeds))
    return report


_Consume = Callable[[Engine, Broker, str, int, Count], None]


def _turn(lab: Lab, engine: Engine, broker: Broker, workers: int, consume: _Consume) -> Callable[[], Speed]:
    messages = messages_of(lab)

    def turn() -> Speed:
        topic, count, before = broker.new_topic(workers), Count(messages), done(engine)
        send(broker.publisher, envelopes(topic, messages))
        consume(engine, broker, topic, workers, count)
        if done(engine) - before != messages:
            raise AssertionError(f"{done(engine) - before} of {messages} messages took effect")
        return count.speed

    return turn


def _ours(engine: Engine, broker: Broker, topic: str, workers: int, count: Count) -> None:
    consumer = broker.consumer(topic, workers, of_delivery(engine, count))
    count.on_end = consumer.stop
    consumer.run()


def _by_hand(engine: Engine, broker: Broker, topic: str, workers: int, count: Count) -> None:
    with closing(ByHand(engine, count)) as work:
        broker.consume_bare(topic, workers, work, count)


def _in_sqlalchemy(engine: Engine, broker: Broker, topic: str, workers: int, count: Count) -> None:
    broker.consume_bare(topic, workers, in_sqlalchemy(engine, count), count)


def _with_inbox(engine: Engine, broker: Broker, topic: str, workers: int, count: Count) -> None:
    broker.consume_bare(topic, workers, of_payload(engine, count), count)
