"""A small shop: a service with an idempotent POST, whose event leaves once, and a consumer that bills once.

`alembic -c examples/service/alembic.ini upgrade head` creates the tables in the database that SHOP_DATABASE
names; `uvicorn examples.service.shop:app` serves, and relays to the broker that SHOP_BROKER names;
`python -m examples.service.billing` consumes. docs/start.md goes through them.
"""
