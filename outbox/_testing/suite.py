"""The conformance suite of publishers."""

from .arriving import Arriving
from .failing import PublisherFailing


class PublisherSuite(Arriving, PublisherFailing):
    """Tests what a relay relies on, with your publisher and your server. Inherit from it in a test file, and
    define `publisher`, `new_topic` and `received`; fixtures of your own can prepare what these need:

        class TestMyPublisher(PublisherSuite):
            def publisher(self):
                return MyPublisher("my://server", timeout=3)

            def new_topic(self):
                return create_topic(f"test-{uuid4()}")

            def received(self, topic, count):
                return read_all(topic, count)

    A test that needs an optional method (`refused`, `missing_topic`, `unreachable`, `freeze` and `thaw`,
    `kill` and `start`) is skipped without it. `cannot` names tests that your adapter cannot pass, with the
    reason. Needs pytest.
    """
