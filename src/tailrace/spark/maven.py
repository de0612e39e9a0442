"""What this machine says about reaching Maven Central: the mirror in Maven's settings, the proxy in the environment.

Ivy knows neither. Nothing here names a host: without such settings Spark's own default stands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies_environment
from xml.etree import ElementTree as ET

REPOSITORY = "DEFAULT_ARTIFACT_REPOSITORY"
"""Spark's own variable for the repository that stands in for Maven Central."""


def mirror_env() -> dict[str, str]:
    """Return the variable that points Spark's Ivy at the user's mirror; empty if there is none or it is set already."""
    if os.environ.get(REPOSITORY):
        return {}
    mirror = next(_mirrors(Path.home() / ".m2" / "settings.xml"), None)
    return {REPOSITORY: mirror.rstrip("/") + "/"} if mirror else {}


def proxy_options() -> list[str]:
    """Return the Java options for the proxy that the environment's variables name."""
    proxies = getproxies_environment()
    options = [
        f"-D{scheme}.{part}={value}"
        for scheme in ("http", "https")
        if (proxy := urlsplit(proxies.get(scheme, ""))).hostname
        for part, value in (("proxyHost", proxy.hostname), ("proxyPort", proxy.port or 80))
    ]
    # Java separates with a bar, and wants a star where the environment has a bare leading dot.
    direct = [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]
    if options and direct:
        options.append("-Dhttp.nonProxyHosts=" + "|".join("*" + h if h.startswith(".") else h for h in direct))
    return options


def _mirrors(settings: Path) -> Iterator[str]:
    if not settings.is_file():
        return
    for mirror in ET.parse(settings).iterfind(".//{*}mirror"):  # noqa: S314  the user's own file
        covered = (mirror.findtext("{*}mirrorOf") or "").replace(" ", "").split(",")
        url = (mirror.findtext("{*}url") or "").strip()
        if url and "!central" not in covered and {"central", "*", "external:*"} & set(covered):
            yield url
