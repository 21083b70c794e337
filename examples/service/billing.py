"""Write an invoice for each order, however often its message is delivered."""

import json

from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from examples.service.models import BROKER, DATABASE, TOPIC, Invoice
from inbox import Delivery, Inbox, message_key
from inbox.rabbitmq import RabbitConsumer

engine = create_engine(DATABASE)


@Inbox("billing").handler(sessionmaker(engine), key=message_key)
def bill(session: Session, message: Delivery) -> None:
    """Runs once for each order, in one transaction with the inbox's row."""
    order = json.loads(message.payload)
    session.add(Invoice(order_number=order["number"], cents=order["cents"]))


if __name__ == "__main__":
    RabbitConsumer(BROKER, TOPIC, bill, declare=True).run()
