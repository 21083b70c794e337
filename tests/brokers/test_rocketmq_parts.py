"""RocketMQ's URL, and the encoding of properties; without a server."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inbox_outbox_base.brokers.rocketmq import address, properties
from inbox_outbox_base.errors.outbox import InvalidOption

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(TEXT, TEXT, max_size=8), st.sampled_from([0, 126, 127, 128, 129]))
def test_every_text_can_be_a_property(given: dict[str, str], more: int) -> None:
    """Any number of any texts is encoded as properties that RocketMQ accepts, and decoded to the same
    texts."""
    given |= {f"name-{number}": "plain" for number in range(more)}
    sent = properties.encode(given)
    assert len(sent) <= properties.MOST
    assert all(properties.is_carried(text) for pair in sent.items() for text in pair)
    assert properties.decode(sent) == given


@pytest.mark.parametrize("strange", ["no JSON", "[1]", '{"a": 1}', "7"])
def test_what_others_have_encoded_stays_as_it_is(strange: str) -> None:
    """A property with the name of the encoding, but other content, is an ordinary property."""
    assert properties.decode({"a": "b", properties.ENCODED: strange}) == {
        "a": "b",
        properties.ENCODED: strange,
    }


def test_an_address_has_a_login_and_several_hosts() -> None:
    """Each part of the URL is parsed, also several hosts and default ports. Its text and repr do not contain
    the login."""
    parsed = address.parse("rocketmqs://k%40y:se%3Acret@10.0.0.1,10.0.0.2:82")
    assert (parsed.hosts, parsed.has_tls) == (("10.0.0.1:8081", "10.0.0.2:82"), True)
    assert (parsed.access_key, parsed.secret) == ("k@y", "se:cret")
    assert str(parsed) == "rocketmqs://10.0.0.1:8081,10.0.0.2:82"
    assert "cret" not in repr(parsed)
    assert str(address.parse("rocketmq://mq")) == "rocketmq://mq:8081"


@pytest.mark.parametrize(
    "url",
    [
        "",
        None,
        "mq:8081",
        "amqp://u:hidden@mq",
        "rocketmq://",
        "rocketmq://u:hidden@",
        "rocketmq://u:hid/den@mq",
        "rocketmq://u:hidden@mq:0",
        "rocketmq://u:hidden@mq:99999",
        "rocketmq://u:hidden@mq:port",
        "rocketmq://u:hidden@mq,other",
        "rocketmq://u:hidden@mq/hidden",
        "rocketmq://u:hidden@mq?x=1",
        "rocketmq://u:hidden@[::1]:8081",
    ],
)
def test_another_address_is_refused(url: str) -> None:
    """The error names the option and does not repeat its value, which may contain a secret."""
    with pytest.raises(InvalidOption, match=r"^url: ") as refused:
        address.parse(url, error=InvalidOption)
    assert "hid" not in str(refused.value)
