"""NVIDIA FLARE's connections through a proxy.

Its driver opens a WebSocket without a proxy, whatever the environment says. Ours differs only in
that.
"""

from __future__ import annotations

import logging

import aiohttp
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.aio_http_driver import WS_PATH, AioHttpDriver
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from confide.errors import EngineError
from confide.flare import proxies

_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())  # a lead has no log, and Python would print


def use_proxy() -> None:
    """From now on, connect from this process through the proxy that its environment names."""
    AioHttpDriver.connect = connect


def connect(driver: AioHttpDriver, connector: ConnectorInfo) -> None:
    """Connect through the proxy, and return when the connection has ended.

    Raises EngineError, SettingsError, LockedKeyError; FLARE then tries again.
    """
    driver.connector = connector
    driver.ssl_context = net_utils.get_ssl_context(connector.params, False)
    if driver.ssl_context is None:
        raise EngineError("a connection without TLS does not go through a proxy")
    proxy = proxies.of_environment()
    if proxy is None:
        raise EngineError(f"{proxies.ADDRESS} is gone from the environment of this process")
    own = proxies.credentials(proxy)
    host, port = (connector.params[name.value] for name in (DriverParams.HOST, DriverParams.PORT))
    timeout = aiohttp.ClientTimeout(total=2 * proxies.WITHIN)  # until the server has answered

    async def connected() -> None:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.ws_connect(
                f"wss://{host}:{port}/{WS_PATH}",
                ssl=driver.ssl_context,
                proxy=f"http://{proxy.at}",
                proxy_headers=own,
            ) as stream,
        ):
            await driver._connection_handler(stream)

    try:
        driver.aio_context.run_coro(connected()).result()
    except aiohttp.ClientHttpProxyError as error:
        asked = error.headers.getall("Proxy-Authenticate", []) if error.headers else []
        offers = [one.partition(" ")[0] for one in asked]
        failed = proxies.refusal(
            proxy, f"{host}:{port}", error.status, reason=error.message, offers=offers
        )
    except (aiohttp.ClientError, OSError) as error:  # its words may hold anything
        failed = EngineError(
            f"no connection through the proxy at {proxy.at} ({type(error).__name__})",
            fix="ask `confide site status`, which knocks at the server and says why",
        )
    else:
        return
    _LOG.warning("%s", failed)
    raise failed
