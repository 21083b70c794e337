"""Sends code to the executors.

A function sent by value compares the versions before it unpickles what was sent by name: an executor without
this package, or with another version, raises a clear error.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from inbox_outbox_base.version import __version__
from spark._executor.failures import guarded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Opener = Callable[[str, bytes], Any]
Function = Callable[[Iterable[Any]], Iterator[Any]]


def sent(call: Callable[..., Any], *arguments: object) -> tuple[Opener, tuple[str, bytes]]:
    """A function and its arguments, which run `call(*arguments)` on an executor after comparing versions.

    Raises (on the executor):
        VersionMismatch: another version of this package is there, or none.
    """

    def opened(here: str, packed: bytes) -> Any:
        # Imported here: this function is sent by value, and runs before anything of this package does.
        import pickle
        import sys

        # Not the metadata of what is installed: the code may have come as a zip, which has none.
        try:
            from inbox_outbox_base.version import __version__ as there
        except ImportError:
            there = "none"
        if there != here:
            text = (
                f"the driver runs inbox-outbox {here}, this executor has {there} (in {sys.executable}): "
                "install the same version, send it with the job (of --py-files, Spark reads a wheel only if "
                "it is named .zip), or set PYSPARK_PYTHON to the Python that has it"
            )
            try:
                from inbox_outbox_base.errors.spark import VersionMismatch as Mismatch
            except ImportError:
                raise RuntimeError(text) from None
            raise Mismatch(text)
        function, given = pickle.loads(packed)  # noqa: S301 - it comes from the driver
        return function(*given)

    # Packed apart: the outer function must unpickle on an executor that lacks this package.
    packed: bytes = cloudpickle.dumps((call, arguments))  # type: ignore[no-untyped-call]
    return opened, (__version__, packed)


def mapped(
    df: "DataFrame", output: "StructType | str", function: Callable[..., Iterator[Any]], *arguments: object
) -> "DataFrame":
    """`df.mapInArrow` with `function(*arguments, batches)`; raises the errors of `sent`."""
    if not any(set(name) & {".", "`"} for name in df.columns):
        return df.mapInArrow(shipped(function, *arguments), output)
    # PySpark looks the columns up by their names, without quoting these.
    plain = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    return plain.mapInArrow(shipped(_renamed, df.columns, function, *arguments), output)


def _renamed(names: list[str], function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    *others, batches = arguments
    return function(*others, (batch.rename_columns(names) for batch in batches))


def shipped(function: Callable[..., Iterator[Any]], *arguments: object) -> Function:
    """`function(*arguments, batches)` as a function of batches, for `mapInArrow`; raises the errors of
    `sent`."""
    opened, packed = sent(partial, guarded, function, *arguments)

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        yield from opened(*packed)(batches)

    return run
