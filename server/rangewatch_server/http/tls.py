"""The server's certificate and key, looked at before anything else starts: a bad file is one line."""

from __future__ import annotations

import ssl

from rangewatch_server.core.settings import SettingsError


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """For serving: TLS 1.2 and newer. Raises `SettingsError` for files that cannot be read or do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for name, path in (("--tls-cert", cert), ("--tls-key", key)):
        _check_readable(name, path)
    try:
        context.load_cert_chain(cert, key, _no_password)
    except ssl.SSLError as error:
        raise SettingsError(f"--tls-cert {cert}, --tls-key {key}: {_meaning(error)}") from None
    return context


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):  # noqa: PTH123 - as OpenSSL will
            pass
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name} {path}: {getattr(error, 'strerror', None) or error}") from None


def _no_password() -> str:
    """Asked for when the key is encrypted; without this OpenSSL would ask on the terminal."""
    raise SettingsError("--tls-key is encrypted: the server has nobody to ask for its password; decrypt it to a file")


def _meaning(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    return f"not a PEM certificate chain and its key ({error.reason or error.args[-1]})"
