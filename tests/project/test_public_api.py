"""The public names of the packages, and what users can rely on about them."""

import importlib
import inspect
import pickle
import re
from pathlib import Path
from types import ModuleType
from typing import Unpack, get_type_hints

import pytest

import inbox
import outbox
import spark
from inbox._listening.options import ListenerOptions
from inbox.rabbitmq import RabbitConsumer
from tests.support.program import ROOT

PACKAGES = ("inbox", "inbox_outbox", "outbox", "spark")
NAMESPACES = (
    "inbox.celery",
    "inbox.django",
    "inbox.errors",
    "inbox.faststream",
    "inbox.kafka",
    "inbox.migration",
    "inbox.otel",
    "inbox.probes",
    "inbox.nats",
    "inbox.rabbitmq",
    "inbox.redis_streams",
    "inbox.rocketmq",
    "inbox.schema",
    "inbox.sqs",
    "inbox.testing",
    "inbox.webhook",
    "inbox_outbox.faults",
    "inbox_outbox.metrics",
    "inbox_outbox.prometheus",
    "inbox_outbox.testing",
    "inbox_outbox.web",
    "outbox.errors",
    "outbox.kafka",
    "outbox.nats",
    "outbox.rabbitmq",
    "outbox.redis_streams",
    "outbox.rocketmq",
    "outbox.schema",
    "outbox.sqs",
    "outbox.testing",
    "outbox.webhook",
    "spark.errors",
)
LONGEST_CONTENTS_PAGE = 70
ERROR = re.compile(r"^(?P<lead>[│ ├└─]*)(?P<name>[A-Z]\w+)(?:\s+\((?P<also>\w+)\))?")


def test_the_names_are_fixed() -> None:
    """`inbox` exports exactly these names."""
    assert sorted(inbox.__all__) == [
        "Action",
        "AsyncClaim",
        "AsyncInbox",
        "AsyncListener",
        "AsyncStatusInbox",
        "Backoff",
        "BulkResult",
        "CheckReport",
        "Claim",
        "ConsumerOverview",
        "ConsumerStatus",
        "Count",
        "DatabaseOverview",
        "DatabasePlace",
        "Decision",
        "Decisions",
        "Delivery",
        "Event",
        "EventKind",
        "Finding",
        "Inbox",
        "InboxOverview",
        "Key",
        "Listener",
        "Listing",
        "LogEvents",
        "Message",
        "OldestSnapshot",
        "OperatorDecision",
        "Outcome",
        "Partition",
        "Policy",
        "PurgeOverview",
        "PurgeService",
        "Purged",
        "Record",
        "RedisStore",
        "RefusedMessage",
        "Retention",
        "Series",
        "SeriesEvents",
        "SeriesKind",
        "SeriesPoint",
        "SqlStore",
        "Status",
        "StatusInbox",
        "Store",
        "TableOverview",
        "Taken",
        "Verdict",
        "Work",
        "check",
        "decisions",
        "discard",
        "discard_all",
        "dismiss",
        "dismiss_all",
        "errors",
        "is_transient",
        "list_messages",
        "message_id",
        "message_key",
        "overview",
        "partitions",
        "purge",
        "refused",
        "release",
        "release_all",
        "resolve_step",
        "retry",
        "retry_all",
        "schema",
        "series",
        "set_policy",
        "show",
        "show_message",
        "status",
        "timed_key",
    ]


def test_the_names_of_the_outbox_are_fixed() -> None:
    """`outbox` exports exactly these names."""
    assert sorted(outbox.__all__) == [
        "Accepted",
        "AsyncDirectDelivery",
        "AsyncPublisher",
        "AsyncRelay",
        "AsyncRouter",
        "Audit",
        "BulkResult",
        "CheckReport",
        "Count",
        "DatabaseOverview",
        "DatabasePlace",
        "DirectDelivery",
        "Envelope",
        "Finding",
        "GenerationStatus",
        "Listing",
        "Message",
        "MessageState",
        "Missing",
        "OldestSnapshot",
        "OperatorDecision",
        "Outbox",
        "OutboxOverview",
        "OutboxStatus",
        "Outcome",
        "PausedTopic",
        "Publisher",
        "Refused",
        "RejectedTopic",
        "Relay",
        "RelayStatus",
        "Router",
        "SentRecord",
        "Series",
        "SeriesKind",
        "SeriesPoint",
        "StoredMessage",
        "TableOverview",
        "TopicOverview",
        "TracedMessage",
        "Unavailable",
        "Unknown",
        "audit",
        "check",
        "decisions",
        "drop",
        "drop_all",
        "errors",
        "is_drained",
        "overview",
        "pause",
        "pauses",
        "peek",
        "purge_dead",
        "read_payload",
        "resume",
        "retry",
        "retry_all",
        "schema",
        "sent_messages",
        "series",
        "set_bucket_count",
        "status",
        "trace",
    ]


def test_the_names_of_the_spark_writer_are_fixed() -> None:
    """`spark` exports exactly these names."""
    assert sorted(spark.__all__) == [
        "Append",
        "Difference",
        "InboxDataSource",
        "InboxWriter",
        "PerPartition",
        "PerRow",
        "Reconciliation",
        "Statements",
        "Upsert",
        "WriteReport",
        "errors",
    ]


@pytest.mark.parametrize("package", ["inbox", "outbox", "spark"])
def test_everything_else_is_private(package: str) -> None:
    """Every module that is not a public namespace has a name with an underscore."""
    modules = {f"{package}.{path.stem}" for path in (ROOT / package).glob("[!_]*.py")}
    assert modules == {name for name in NAMESPACES if name.startswith(f"{package}.")}


@pytest.mark.parametrize("package", PACKAGES)
def test_contents_pages_are_short(package: str) -> None:
    """Every `__init__.py` is a contents page: at most 70 lines, not counting the names in `__all__`."""
    pages = list((ROOT / package).rglob("__init__.py"))
    assert pages
    for page in pages:
        lines = [line for line in page.read_text().splitlines() if not line.startswith('    "')]
        assert len(lines) <= LONGEST_CONTENTS_PAGE, page


def test_every_name_is_explained() -> None:
    """Every public name has a docstring, and so has every public method and property."""
    names = [(package, name) for package in (inbox, outbox, spark) for name in package.__all__]
    for package, name in names:
        found = getattr(package, name)
        if name != "Key":  # a type alias, which cannot have a docstring
            assert inspect.getdoc(found), name
            assert undocumented(found) == [], name


def test_every_name_of_the_namespaces_is_explained() -> None:
    """Everything that the public namespaces define has a docstring."""
    for name in NAMESPACES:
        module = importlib.import_module(name)
        assert module.__doc__, name
        assert undocumented(module) == [], name


def test_every_option_is_in_the_signature() -> None:
    """No function of `inbox` takes options that its signature does not name, so type checkers find misspelt
    options and editors suggest the right ones. Consumers name those of their listener by a `TypedDict`."""
    places = [
        inbox,
        *(
            importlib.import_module(f"inbox.{each}")
            for each in ("kafka", "nats", "rabbitmq", "redis_streams", "rocketmq", "sqs", "webhook")
        ),
    ]
    owners = [getattr(place, name) for place in places for name in place.__all__]
    functions = [each for each in owners if inspect.isfunction(each)]
    functions += [
        value
        for owner in owners
        if inspect.isclass(owner)
        for kind in owner.__mro__
        if kind.__module__.startswith("inbox.")
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_"))
    ]
    assert len(functions) > len(owners)
    open_ended = {
        each.__qualname__: parameter.annotation
        for each in functions
        for parameter in inspect.signature(each).parameters.values()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD
    }
    assert open_ended
    assert [name for name, kind in open_ended.items() if kind != Unpack[ListenerOptions]] == []


def test_the_options_of_consumers_are_the_listeners() -> None:
    """Each option that a consumer passes on to its listener is one of `Listener`, with the same type."""
    known = inspect.signature(inbox.Listener).parameters
    options = get_type_hints(ListenerOptions)
    assert options
    assert {name: known[name].annotation for name in options} == options


def test_a_consumer_refuses_a_misspelt_option() -> None:
    """An option that no consumer has is named, before anything else is done with the others."""

    def handle(message: inbox.Delivery) -> inbox.Outcome:
        return inbox.Outcome(inbox.Verdict.NEW)

    with pytest.raises(TypeError, match="'concurency'"):
        RabbitConsumer("amqp://localhost", "queue", handle, concurency=2)  # type: ignore[call-arg]


def undocumented(owner: ModuleType | type | object) -> list[str]:
    """The public functions, classes, methods and properties in `owner` without a docstring."""
    if not isinstance(owner, ModuleType | type):
        return []
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and is_ours(owner, value) and not inspect.getdoc(getattr(owner, name))
    ]


def is_ours(owner: ModuleType | type, value: object) -> bool:
    """Whether `value` is defined here and can have a docstring."""
    if isinstance(value, property | classmethod | staticmethod):
        return True
    home = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == home


@pytest.mark.parametrize(
    ("errors", "root"),
    [(inbox.errors, "Exception"), (outbox.errors, "InboxError"), (spark.errors, "InboxError")],
    ids=["inbox", "outbox", "spark"],
)
def test_the_error_tree_is_the_real_one(errors: ModuleType, root: str) -> None:
    """The tree in the docstring of `errors` names every error, its parent and its other bases."""
    assert drawn(errors.__doc__ or "", root) == {
        name: (error.__bases__[0].__name__, others(error))
        for name, error in vars(errors).items()
        if inspect.isclass(error) and error.__module__ == errors.__name__
    }


def others(error: type) -> list[str]:
    """The error's other bases; a base with the same name in another package is replaced by its own other
    bases."""
    return [
        name
        for base in error.__bases__[1:]
        for name in (others(base) if base.__name__ == error.__name__ else [base.__name__])
    ]


def drawn(text: str, root: str) -> dict[str, tuple[str, list[str]]]:
    """For each error in the drawing: its parent, and the classes in brackets."""
    tree: dict[str, tuple[str, list[str]]] = {}
    above = {-1: root}
    for line in text.split("\n\n", 1)[1].splitlines():
        if not line.startswith("    ") or not (found := ERROR.match(line[4:])):
            continue
        depth = len(found["lead"]) // 4
        above[depth] = found["name"]
        tree[found["name"]] = (above[depth - 1], [found["also"]] if found["also"] else [])
    return tree


@pytest.mark.parametrize(
    "value", [inbox.Action.ACK, inbox.Decision(inbox.Action.ACK), inbox.Outcome(inbox.Verdict.NEW)]
)
def test_pickles_outlive_a_move(value: object) -> None:
    """A pickle of what a listener decides names `inbox`, and no private module, which may move."""
    stored = pickle.dumps(value)
    assert b"inbox._" not in stored
    assert pickle.loads(stored) == value  # noqa: S301 - our own


def test_every_package_is_typed() -> None:
    """Every import package has the `py.typed` marker that type checkers look for."""
    for package in PACKAGES:
        assert Path(ROOT / package / "py.typed").is_file()
