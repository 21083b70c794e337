"""The command line `inbox-outbox` for operators. Needs the extra `cli`."""

from inbox_outbox_base.version import __version__ as __version__
