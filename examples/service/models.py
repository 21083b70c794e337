"""The shop's tables, and where its database and broker are."""

import os

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

DATABASE = os.environ.get("SHOP_DATABASE", "postgresql+psycopg://postgres@localhost/shop")
BROKER = os.environ.get("SHOP_BROKER", "amqp://guest:guest@localhost/")
TOPIC = os.environ.get("SHOP_TOPIC", "shop.orders")


class Base(DeclarativeBase):
    """The shop's models."""


class Order(Base):
    """What a client ordered."""

    __tablename__ = "shop_order"
    number: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]


class Invoice(Base):
    """What a client has to pay; nothing but the inbox keeps an order from having two."""

    __tablename__ = "shop_invoice"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_number: Mapped[str]
    cents: Mapped[int]
