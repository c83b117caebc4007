"""`python -m rangewatch_server.http.probe /readyz`: a container's health check, which has no curl.

It asks the server of this container, at the port and by the scheme of the same variables as `rangewatch serve`: 0 for a
good answer, 1 for another or none. The certificate is not checked, since it is for a name that browsers use.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

TIMEOUT_S = 3.0


def main(path: str) -> int:
    """Ask for `path`."""
    port = int(os.environ.get("RANGEWATCH_PORT", "").strip() or 8642)
    connection: http.client.HTTPConnection
    if os.environ.get("RANGEWATCH_TLS_CERT", "").strip():
        unchecked = ssl._create_unverified_context()  # noqa: S323 - our own loopback, as said above
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=unchecked)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"no answer from port {port}: {error}\n")
        return 1
    finally:
        connection.close()
    sys.stderr.write(f"{path}: {status}\n")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
