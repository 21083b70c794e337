"""Python imports this module when it starts, in the executors of the tests."""

from tests.support.spark_jobs import hooks

hooks.install()
hooks.warm_up()
