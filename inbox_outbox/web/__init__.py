"""The web page for operators, an ASGI application (extra `web`).

It shows what waits, what has stopped and why, and lets those decide to whom you allow it:

    page = web.app(engine, user=lambda request: request.headers.get("x-forwarded-user"))

There is no page without a user. Whoever has one may look; decisions are refused unless `allow` names them,
and payloads are hidden unless `show` makes text of them.
"""

from ._access import ACTIONS, nobody
from ._app import app

__all__ = ["ACTIONS", "app", "nobody"]
