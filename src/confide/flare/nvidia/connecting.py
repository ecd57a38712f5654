"""NVIDIA FLARE's connections to the server: through the site's proxy, and to nobody else.

Its driver opens a WebSocket without a proxy, whatever the environment says, and follows the server
where that sends it: to any address that the site reaches. Ours differs only in these two.
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


def connect_safely() -> None:
    """From now on, connect from this process to the server alone, and by the proxy if it has one.

    The environment names the proxy. Raises SettingsError if it names none that can be.
    """
    proxies.of_environment()
    AioHttpDriver.connect = connect


def connect(driver: AioHttpDriver, connector: ConnectorInfo) -> None:
    """Connect to the server, and return when the connection has ended.

    Raises EngineError, SettingsError, LockedKeyError; FLARE then tries again.
    """
    driver.connector = connector
    driver.ssl_context = net_utils.get_ssl_context(connector.params, False)
    if driver.ssl_context is None:
        raise EngineError("the server is only spoken to by TLS")
    proxy = proxies.of_environment()
    host, port = (connector.params[name.value] for name in (DriverParams.HOST, DriverParams.PORT))
    timeout = aiohttp.ClientTimeout(total=8 * proxies.WITHIN)  # until the server has answered
    redirects = aiohttp.TraceConfig()
    redirects.on_request_redirect.append(_refuse)

    async def connected() -> None:
        async with (
            aiohttp.ClientSession(timeout=timeout, trace_configs=[redirects]) as session,
            session.ws_connect(
                f"wss://{host}:{port}/{WS_PATH}",
                ssl=driver.ssl_context,
                proxy=f"http://{proxy.at}" if proxy else None,
                proxy_headers=proxies.credentials(proxy) if proxy else None,
            ) as stream,
        ):
            await driver._connection_handler(stream)

    try:
        driver.aio_context.run_coro(connected()).result()
    except aiohttp.ClientHttpProxyError as error:
        assert proxy is not None, "it has answered"
        asked = error.headers.getall("Proxy-Authenticate", []) if error.headers else []
        offers = [one.partition(" ")[0] for one in asked]
        failed = proxies.refusal(
            proxy, f"{host}:{port}", error.status, reason=error.message, offers=offers
        )
    except (aiohttp.ClientError, OSError) as error:  # its words may hold anything
        way = f"through the proxy at {proxy.at}" if proxy else f"to the server at {host}:{port}"
        failed = EngineError(
            f"no connection {way} ({type(error).__name__})",
            fix="ask `confide site status`, which knocks at the server and says why",
        )
    else:
        return
    _LOG.warning("%s", failed)
    raise failed


async def _refuse(*_: object) -> None:
    raise aiohttp.ClientError("the server sends us elsewhere")
