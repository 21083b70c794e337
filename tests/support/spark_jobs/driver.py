"""A Spark driver that runs jobs on request, until its standard input ends.

Started as `python -m tests.support.spark_jobs.driver SETTINGS`, where SETTINGS is a JSON object of Spark
settings. It prints one line when it is ready. Then each line that it reads is a job, run in a new thread, and
each line that it prints says how a job ended. All other output goes to standard error.
"""

import json
import os
import sys
import threading
import traceback
from typing import Any, TextIO

from pyspark.sql import SparkSession

from tests.support.spark_jobs import jobs
from tests.support.spark_jobs.faults import FAULTS


def main(settings: dict[str, str]) -> None:
    """Run jobs until there are no more."""
    answers = _answers()
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    lock = threading.Lock()

    def answer(content: dict[str, Any]) -> None:
        with lock:
            print(json.dumps(content), file=answers, flush=True)

    def run(job: dict[str, Any]) -> None:
        # A data source is found by the session that is active in the thread.
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        spark.sparkContext.setLocalProperty(FAULTS, job["faults"])
        try:
            result = getattr(jobs, job["name"])(spark, **job["arguments"])
        except Exception as error:  # noqa: BLE001 - every error is the job's answer
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer({"number": job["number"], "error": kinds, "message": traceback.format_exc()})
        else:
            answer({"number": job["number"], "result": result})

    answer({"application": spark.sparkContext.applicationId})
    for line in sys.stdin:
        threading.Thread(target=run, args=(json.loads(line),), daemon=True).start()
    spark.stop()


def _answers() -> TextIO:
    """The original standard output; everything else that prints gets standard error from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
