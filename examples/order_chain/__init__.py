"""The order flow as a chain: each step takes one message and publishes the next, in one transaction.

`examples.order_flow` does the same business in one long handler, and shows what is wrong with that: its
transaction is open while other systems are called, the calls are not part of it, and if a worker dies after
the third call, the first two are made again. Here no step does more than one thing:

    inventory     takes the stock, publishes                                    (one transaction)
    order         records the order, publishes                                  (one transaction)
    downstream    calls a system that is not ours, with an idempotency key      (status-table mode)
                  and publishes its answer
    done          records the outcome of the order                              (one transaction)
    release       returns the stock of a refused order                          (one transaction)

A step's message is written in the transaction that writes its data, and taken in the transaction that writes
the next data, so the chain cannot break anywhere. To show this, all processes (the customer, who publishes
the orders, the relays, and the consumers if there is a broker) are repeatedly killed with ``kill -9`` at
random, and restarted. Some orders are sent twice, with one key; some are rolled back after publishing; some
are refused downstream. In the end stock, orders and calls are counted.

It runs without a broker: the relays pass the messages to the inboxes themselves. With --broker it also runs
over a broker, in queues or topics whose names begin with "order-chain" and which are deleted afterwards. If
the broker is given by its name (rabbitmq, kafka, nats, redis, rocketmq, sqs), a server is started for the
trial, and killed as well. With --broker webhook there is none: relays post to the processes that run the
steps.

    python -m examples.order_chain [--url URL] [--broker NAME_OR_URL]... [--orders N] [--kills N] [--seed N]
"""
