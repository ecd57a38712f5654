"""A page and a REST interface over trained models, runs in progress and a site's consent.

Everything is served from one local address: no build step, nothing from outside. starlette and
uvicorn are imported only here (extra `serve`). docs/serve.md says how to use it, and what stands
between it and a hostile browser, page or caller.
"""

from __future__ import annotations
