"""Redaction: secrets stay in the environment; everything that is sent or logged passes through `redacted`."""

import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

SECRET_NAMES = re.compile("KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
SHORTEST_SECRET = 6  # shorter values ("1", "true") are words of other texts
USER_INFO = re.compile(r"(?<=://)[^/?#\s@]+@")
HIDDEN = "***"


def secrets() -> list[str]:
    """Returns the values of all environment variables with the name of a secret, the longest first."""
    found = {value for name, value in os.environ.items() if SECRET_NAMES.search(name)}
    found |= {urllib.parse.quote(value, safe="") for value in found}
    return sorted((value for value in found if len(value) >= SHORTEST_SECRET), key=len, reverse=True)


def redacted(value: Any) -> Any:
    """Returns nested dicts and lists with secrets of the environment and `user:password@` of URLs replaced by ***.

    Names of classes and modules stay: settings are read back by them.
    """
    known = secrets()

    def clean(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {key: inner if key in ("class", "module") else clean(inner) for key, inner in part.items()}
        if isinstance(part, list | tuple):
            return [clean(inner) for inner in part]
        if not isinstance(part, str):
            return part
        for secret in known:
            part = part.replace(secret, HIDDEN)
        return USER_INFO.sub(f"{HIDDEN}@", part)

    return clean(value)


def holds_credentials(uri: str) -> bool:
    """Returns True if a URI names a user, a password or a token, before its host or in its query."""
    parts = urllib.parse.urlsplit(uri)
    named = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    return "@" in parts.netloc or any(name == "user" or SECRET_NAMES.search(name) for name, _ in named)
