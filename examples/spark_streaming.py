"""A streaming job that is killed between its COMMIT and Spark's own record of it, and started again.

Spark records in the checkpoint which batches are done, after they are. A batch that is killed in between is
repeated, with the same rows. The inbox knows their keys, so every payment is in the table once. The same
holds if the whole checkpoint is lost and the stream starts over, shown here with ``format("inbox")``, the
other way to write a stream.

    python -m examples.spark_streaming [--url URL]
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, func, select

from examples._common import CONSUMER, prepared
from examples._spark import ROOT, spark_session
from spark import InboxDataSource, InboxWriter

FILES, PAYMENTS = 3, 1_000
KILLED_IN = 1
"""The number of a batch, counted from 0."""

metadata = MetaData()
payment = Table(
    "example_payment",
    metadata,
    Column("payment_id", String(20)),  # no unique key here: the inbox has it
    Column("amount", Integer),
)


def payments(spark: SparkSession, folder: Path) -> DataFrame:
    """The files of a folder as a stream, each of them a batch."""
    schema = "payment_id string, amount int"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(str(folder))


def with_foreach_batch(url: str, folder: Path, killed_in: int | None = None) -> None:
    """The job: write all files in the folder to the table."""
    writer = InboxWriter(url, "example_payment", key="payment_id", consumer=CONSUMER)

    def write(batch: DataFrame, number: int) -> None:
        writer.foreach_batch(batch, number)
        if number == killed_in:  # the worst moment: committed, and not recorded in the checkpoint
            os.kill(os.getpid(), signal.SIGKILL)

    with spark_session() as spark:
        stream = payments(spark, folder / "in").writeStream.foreachBatch(write)  # else: writer.foreach_batch
        stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()


def with_format(url: str, folder: Path) -> None:
    """The same job in the other form, with a new checkpoint: every file is read again."""
    options = {"url": url, "dbtable": "example_payment", "key": "payment_id", "consumer": CONSUMER}
    with spark_session() as spark:
        spark.dataSource.register(InboxDataSource)
        stream = payments(spark, folder / "in").writeStream.format("inbox").options(**options)
        stream = stream.option("checkpointLocation", str(folder / "other-checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    with prepared(__doc__, metadata) as engine, TemporaryDirectory() as name:
        folder = Path(name)
        deliver(folder / "in")
        code = in_a_process(engine, folder, killed_in=KILLED_IN)
        print(f"first start: killed by {signal.Signals(-code).name} in batch {KILLED_IN}")
        show(engine, folder)
        code = in_a_process(engine, folder)
        print(f"second start, same checkpoint: exit code {code}")
        show(engine, folder)
        with_format(engine.url.render_as_string(hide_password=False), folder)
        print('format("inbox") with an empty checkpoint: everything is delivered again')
        show(engine, folder)


def deliver(folder: Path) -> None:
    """Payments of 1 each in three files; each file begins with the last 100 of the one before."""
    folder.mkdir()
    for number in range(FILES):
        ids = range(max(0, number * PAYMENTS - 100), (number + 1) * PAYMENTS)
        file = folder / f"{number}.csv"
        file.write_text("".join(f"payment-{id_},1\n" for id_ in ids))
        os.utime(file, (number, number))  # Spark reads the oldest first


def in_a_process(engine: Engine, folder: Path, killed_in: int | None = None) -> int:
    """Run the job in another process until that and its JVM have ended; return its exit code."""
    call = f"import examples.spark_streaming as it; it.in_this_process({killed_in})"
    environment = os.environ | {
        "EXAMPLE_URL": engine.url.render_as_string(hide_password=False),
        "TMPDIR": str(folder),  # a killed process leaves files behind
    }
    # The JVM ends a little later than the program; the pipe closes when neither has it open.
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=False
    )
    return done.returncode


def in_this_process(killed_in: int | None) -> None:
    """The code that `in_a_process` runs."""
    with_foreach_batch(os.environ["EXAMPLE_URL"], Path(os.environ["TMPDIR"]), killed_in)


def show(engine: Engine, folder: Path) -> None:
    noted = [file for file in (folder / "checkpoint" / "commits").iterdir() if file.name.isdigit()]
    counts = select(func.count(), func.count(payment.c.payment_id.distinct()), func.sum(payment.c.amount))
    with engine.connect() as connection:
        rows, keys, total = connection.execute(counts).one()
    print(f"  batches recorded by Spark: {len(noted)}; payments: {rows:,}, keys: {keys:,}, total: {total:,}")


if __name__ == "__main__":
    main()
