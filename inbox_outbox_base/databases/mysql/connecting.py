"""MySQL and MariaDB: through PyMySQL; asyncmy is for asynchronous engines."""

from inbox_outbox_base.checks.connecting import Connecting


class MySQLConnecting(Connecting):
    """All settings of the driver can be in the URL."""

    driver = "pymysql"
    extra = "mysql"
    port = 3306
    idle_properties = frozenset(
        {"rewritebatchedstatements", "useunicode", "characterencoding", "tcpkeepalive"}
    )
