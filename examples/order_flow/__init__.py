"""An order flow that calls other services, in three variants, with workers that are killed.

For each order: ask the inventory whether there is stock (a call), lock the stock (a call), insert the order
(own database), ship it (a call), update the order. Some orders cannot be shipped; their stock has to be
released again. Some messages are delivered twice. Workers are killed (``kill -9``) at random points and
restarted.

- transaction: the exactly-once path around everything. The order's rows are right, but the calls are not part
  of the transaction: a killed worker's calls are repeated, their effects stay, and the transaction is open
  for as long as all calls together take.
- steps: status-table mode. No transaction is open during a call, a finished step is not called again, and a
  step with an unknown outcome is called again with the same idempotency key.
- chain: one small message for each call, each on the exactly-once path. A killed worker's call is repeated
  with the same idempotency key, and a transaction is open for as long as one call takes.

    python -m examples.order_flow [--url URL] [--orders N] [--kills N]
"""
