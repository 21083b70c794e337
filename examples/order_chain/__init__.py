"""The order flow as a chain: each step takes one message and publishes the next, in one transaction.

`examples.order_flow` has the same business as one long handler, and shows what is wrong with that: around it
a transaction is open while other systems are called, their calls are no part of it, and a worker that dies
after the third call has the first two made again. Here no step does more than one thing:

    inventory     takes the stock, publishes                                    (one transaction)
    order         writes the order down, publishes                              (one transaction)
    downstream    calls a system that is not ours, with an idempotency key      (status-table mode)
                  and publishes what it said
    done          says what became of the order                                 (one transaction)
    release       gives the stock of a refused order back                       (one transaction)

A step's message is written by the transaction that writes its data, and taken by the one that writes the
next data, so the chain can be cut nowhere. To show it, all processes (the customer, who publishes the
orders, the relays, and the consumers if there is a broker) are killed with ``kill -9`` at random, again and
again, and started anew. Some orders are sent twice, with one key; some are rolled back after they were
published; some are refused downstream. In the end stock, orders and calls are counted.

It runs without any broker: the relays hand the messages to the inboxes themselves. With --broker it runs
over that RabbitMQ as well, in queues whose names begin with "order-chain", which are deleted afterwards.

    python -m examples.order_chain [--url URL] [--broker AMQP_URL] [--orders N] [--kills N] [--seed N]
"""
