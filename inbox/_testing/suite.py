"""The conformance suite of consumers."""

from .failing import ConsumerFailing
from .taking import ConsumerTaking


class ConsumerSuite(ConsumerTaking, ConsumerFailing):
    """Tests what a handler relies on, with your consumer and your server. Inherit from it in a test file, and
    define `address`, `consumer`, `new_topic` and `put`; fixtures of your own can prepare what these need:

        class TestMyConsumer(ConsumerSuite):
            def address(self):
                return "my://server"

            @staticmethod
            def consumer(address, topic, handler, **options):
                return MyConsumer(address, topic, handler, **options)

            def new_topic(self):
                return create_topic(f"test-{uuid4()}")

            def put(self, topic, messages):
                publish(topic, messages)

    Business rows are on SQLite, unless `database` names another database. A test that needs an optional
    method (`dead_letters`, `put_strange`, `unreachable`, ...) is skipped without it. `cannot`
    names tests that your adapter cannot pass, with the reason. Needs pytest.
    """
