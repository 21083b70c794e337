"""A streaming job that reads Kafka: orders are delivered at least once, and written to a table once.

Needs Kafka, and Spark's package for it in Spark's own version:

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 examples/spark_kafka.py \\
        --servers localhost:9092 --topic orders --checkpoint /var/lib/orders \\
        --url postgresql://user@host/database

The key is the order's number in the message, not Kafka's topic, partition and offset: an order that a
producer sends again has a new offset. Producer retries, a rebalance, a batch that Spark repeats, and a lost
checkpoint (then set ``--starting earliest``) do not write an order twice.

Create the tables first: ``inbox-outbox migrate`` for the inbox's, and::

    CREATE TABLE orders (order_id text, item text, quantity int, sent_at timestamptz)
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from spark import InboxWriter

ORDER = "order_id string, item string, quantity int"


def main() -> None:
    options = parser().parse_args()
    spark = SparkSession.builder.appName("orders").getOrCreate()
    writer = InboxWriter(
        options.url,
        "orders",
        key="order_id",
        consumer="orders",
        null_keys="drop",  # a message that is not an order has no number; it is counted and left out
    )
    stream = orders(spark, options.servers, options.topic, options.starting).writeStream
    stream = stream.foreachBatch(writer.foreach_batch).option("checkpointLocation", options.checkpoint)
    stream.trigger(processingTime="10 seconds").start().awaitTermination()


def orders(spark: SparkSession, servers: str, topic: str, starting: str) -> DataFrame:
    """The topic's JSON messages as rows."""
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", starting)  # used only without a checkpoint
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    order = from_json(col("value").cast("string"), ORDER).alias("order")
    return messages.select(order, col("timestamp").alias("sent_at")).select("order.*", "sent_at")


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--servers", required=True, help="host:port, several with commas")
    result.add_argument("--topic", required=True)
    result.add_argument("--checkpoint", required=True, help="a folder that outlives the job")
    result.add_argument("--starting", default="latest", help="latest (default) or earliest")
    result.add_argument("--url", required=True, help="the database")
    return result


if __name__ == "__main__":
    main()
