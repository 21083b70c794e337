"""What the tests of the Spark writer share."""

import pytest

rows_and_table = pytest.mark.parametrize(
    "target", ["rows", pytest.param("table", marks=pytest.mark.long)], indirect=True
)
"""With the inbox, and with `inbox="table"`."""
