"""A batch job: it writes a DataFrame that contains payments twice, and then writes it again.

Each partition's inbox rows and results commit in one transaction, so a payment counts once: if it is in the
DataFrame twice, if Spark retries a task, and if the whole job is submitted again. You decide what a partition
does with its new rows. Here they are appended to a table; then a second consumer adds them to balances, which
would show any payment that counts twice, or never.

    python -m examples.spark_batch [--url URL]
"""

from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select

from examples._common import CONSUMER, forget, prepared
from examples._spark import spark_session
from spark import InboxWriter, Statements, WriteReport

metadata = MetaData()
payment = Table(
    "example_payment",
    metadata,
    Column("payment_id", String(20)),  # no unique key here: the inbox has it
    Column("account", String(20)),
    Column("amount", Integer),
)
account = Table(
    "example_account",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("balance", Integer, nullable=False),
)

# The statement reads the partition's new rows from the temporary table new_rows.
ADD_TO_BALANCES = """
    UPDATE example_account SET balance = balance + coalesce(
        (SELECT sum(amount) FROM new_rows WHERE new_rows.account = example_account.name), 0)
"""
BALANCES = f"{CONSUMER}-balances"


def main() -> None:
    with prepared(__doc__, metadata) as engine, spark_session() as spark:
        forget(engine, BALANCES)
        with engine.begin() as connection:
            connection.execute(insert(account).values([{"name": "alice", "balance": 0}]))
        # 1,000 payments of 1 each, and a tenth of them a second time, in four partitions.
        payments = spark.range(0, 1_100, numPartitions=4).selectExpr(
            "concat('payment-', id % 1000) AS payment_id", "'alice' AS account", "1 AS amount"
        )
        to_table = InboxWriter(engine.url, "example_payment", key="payment_id", consumer=CONSUMER)
        show("into the table", to_table.write(payments))
        show("the same again", to_table.write(payments))
        to_balance = InboxWriter(
            engine.url, key="payment_id", consumer=BALANCES, results=Statements(ADD_TO_BALANCES)
        )
        show("into the balance", to_balance.write(payments))
        show("the same again", to_balance.write(payments))
        with engine.connect() as connection:
            rows = connection.scalar(select(func.count()).select_from(payment))
            balance = connection.scalar(select(account.c.balance))
        print(f"rows: {rows:,}, balance: {balance:,}, expected: 1,000 and 1,000")
        forget(engine, BALANCES)


def show(label: str, report: WriteReport) -> None:
    print(
        f"{label}: {report.rows:,} rows in {report.partitions} partitions: {report.new:,} new, "
        f"{report.repeated:,} repeated in this job, {report.duplicate:,} taken before"
    )


if __name__ == "__main__":
    main()
