"""Sends what is due: webhooks and e-mail, a thread for each target, tried again with growing pauses, none forgotten.

What is to be sent is in the database with the alert itself, so the end of the server loses nothing. One that has been
tried `MOST_ATTEMPTS` times is given up, and the alert says so. Of several servers one sends: it claims a delivery
first. One that was sent just as the server died is sent again, `CLAIM_S` later: twice is better than never.
"""

from __future__ import annotations

import logging
import os
import smtplib
import socket
import ssl
import threading
import time
from email.message import EmailMessage
from typing import Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.alerts import message, safe_http
from rangewatch_server.alerts.config import Config, Email, Otlp
from rangewatch_server.alerts.config import Target as AlertTarget
from rangewatch_server.alerts.message import Notice
from rangewatch_server.alerts.otlp_events import OtlpEvents
from rangewatch_server.alerts.safe_http import SafeHttpError, Target
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.ingest.writer import Writer
from rangewatch_server.maintenance.jobs import QueuedJobs, Stopped
from rangewatch_server.query.reader import Queries
from rangewatch_server.rules import Finding
from rangewatch_server.store import alerts

logger = logging.getLogger("rangewatch.server")

MOST_ATTEMPTS = 10
FIRST_PAUSE_S, MOST_PAUSE_S = 5.0, 1_800.0
"""Pauses double: ten attempts take about an hour and a half, in which a chat or mail server may be down."""

AT_ONCE = 20
POLL_EVERY_S = 60.0
JOIN_S = 3.0
SMTP_TIMEOUT_S = 20.0
CLAIM_S = 300.0
"""Longer than any sending takes: a mail server is spoken to some ten times."""
GONE_S = 86_400.0
"""Without anybody who sends to its target: another server, with another file, may know it and be down."""


class Delivery:
    """`address`: where people open this server, when the file does not say."""

    def __init__(self, queries: Queries, writer: Writer, config: Config, address: str, metrics: Metrics) -> None:
        self.queries, self.config, self.metrics = queries, config, metrics
        self.page_url = (config.page_url or address).rstrip("/")
        self.jobs = QueuedJobs(writer, lambda: self.has_ended)
        self._collectors = {each.name: OtlpEvents(each.endpoint) for each in config.otlp}
        self._ended = threading.Event()
        # Each with its own: one that takes nothing for as long as it may holds up nobody else.
        self._lines = [_Line(self, each) for each in (*config.targets, None)]

    def start(self) -> None:
        """Start the threads; what an earlier server left is due."""
        for line in self._lines:
            line.start()

    def stop(self) -> None:
        """End them, after what they are sending."""
        self._ended.set()
        self.wake()
        until_s = time.monotonic() + JOIN_S
        for line in self._lines:
            line.join(max(0.0, until_s - time.monotonic()))

    @property
    def has_ended(self) -> bool:
        """Whether it was stopped."""
        return self._ended.is_set()

    def wake(self) -> None:
        """There may be something to send."""
        for line in self._lines:
            line.wake.set()

    def send(self, target: AlertTarget, notice: Notice) -> None:
        """Send one now. Raises `SafeHttpError`."""
        if isinstance(target, Email):
            _mail(target, message.as_email(notice, target), self.config)
            return
        if isinstance(target, Otlp):
            self._collectors[target.name].send(notice)
            return
        body = message.as_slack(notice) if target.format == "slack" else message.as_json(notice)
        headers = {"Content-Type": "application/json", "User-Agent": "Rangewatch", **target.headers}
        status = safe_http.post(target.url, body, headers, self.config.networks)
        if not 200 <= status < 300:
            raise SafeHttpError(f"{target.name} answered {status}")

    def test_notice(self) -> Notice:
        """What the test button sends."""
        return Notice("test", 0, "test", 0, message.test_finding(), self.page_url, time.time_ns())


class _Line:
    """What one target gets, one after the other; with None what was meant for those no longer in the file."""

    def __init__(self, delivery: Delivery, target: AlertTarget | None) -> None:
        self._all, self._target = delivery, target
        self.wake = threading.Event()
        self.wake.set()
        name = f"rangewatch-delivery-{'gone' if target is None else target.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.start, self.join = self._thread.start, self._thread.join

    def _work(self) -> None:
        while not self._all.has_ended:
            self.wake.wait(POLL_EVERY_S)
            self.wake.clear()
            try:
                while not self._all.has_ended and self._send_due():
                    pass
            except Stopped:
                return
            except SQLAlchemyError as error:
                if not self._all.has_ended:
                    logger.error("alerts are not sent: a fault of the database: %s", str(error).splitlines()[0])
            except Exception:
                logger.exception("alerts are not sent; it is tried again in %.0f s", POLL_EVERY_S)

    def _send_due(self) -> int:
        """Send what is due now; how many that were."""
        known = [each.name for each in self._all.config.targets]
        name = None if self._target is None else self._target.name
        with self._all.queries.read() as reader:
            until_ns = time.time_ns() - int(GONE_S * 1e9 if name is None else 0)
            due = alerts.waiting(reader.connection, until_ns, AT_ONCE, name, known)
        for each in due:
            if self._all.has_ended:
                break
            if not self._is_ours(each):
                continue
            if self._target is None:
                self._done(each.id, "the target is no longer in the file of --alerts")
                continue
            if each.run is None:
                self._done(each.id, "the run was deleted")
                continue
            finding = msgspec.json.decode(each.finding, type=Finding)
            url = f"{self._all.page_url}/runs/{each.run_id}/alerts?key={each.alert_id}"
            time_ns = (each.opened_ns if each.what == "opened" else each.resolved_ns) or time.time_ns()
            notice = Notice(each.what, each.alert_id, each.run, each.run_id, finding, url, time_ns)
            try:
                self._all.send(self._target, notice)
            except SafeHttpError as error:
                self._failed(each, str(error))
            else:
                self._done(each.id, "")
        return len(due)

    def _is_ours(self, due: Any) -> bool:
        until_ns = time.time_ns() + int(CLAIM_S * 1e9)
        return self._all.jobs(lambda connection: alerts.claimed(connection, due.id, due.next_ns, until_ns))

    def _done(self, delivery_id: int, error: str) -> None:
        self._all.metrics.alert_sent("given_up" if error else "sent")
        self._all.jobs(lambda connection: alerts.delivered(connection, delivery_id, time.time_ns(), error))

    def _failed(self, due: Any, error: str) -> None:
        attempts = due.attempts + 1
        if attempts >= MOST_ATTEMPTS:
            logger.error("an alert was not sent to %s after %d attempts: %s", due.target, attempts, error)
            self._done(due.id, error)
            return
        self._all.metrics.alert_sent("failed")
        pause_s = min(FIRST_PAUSE_S * 2 ** (attempts - 1), MOST_PAUSE_S)
        next_ns = time.time_ns() + int(pause_s * 1e9)
        logger.warning("an alert was not sent to %s: %s; again in %.0f s", due.target, error, pause_s)
        self._all.jobs(lambda connection: alerts.postponed(connection, due.id, next_ns, error))
        again = threading.Timer(pause_s, self.wake.set)
        again.daemon = True
        again.start()


def _mail(target: Email, letter: EmailMessage, config: Config) -> None:
    """Raises `SafeHttpError`. The address is examined as a webhook's is."""
    password = os.environ.get(target.password_env, "") if target.password_env else ""
    if target.user and not password:
        raise SafeHttpError(f"the environment variable {target.password_env or 'password_env'} holds no password")
    address = safe_http.resolve(Target("smtp", target.host, target.port, ""), config.networks)
    try:
        with _connected(target, str(address)) as server:
            if target.user:
                server.login(target.user, password)
            server.send_message(letter)
    except smtplib.SMTPResponseException as error:
        raise SafeHttpError(f"{target.host} refused the message with code {error.smtp_code}") from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise SafeHttpError(f"{target.host} took no message: {type(error).__name__}") from None


def _connected(target: Email, address: str) -> smtplib.SMTP:
    """A session with just that address; the certificate must be the host's."""
    context = ssl.create_default_context()
    kind = _Tls if target.security == "tls" else _Plain
    server = kind(address, target.host, context)
    server.connect(target.host, target.port)
    if target.security == "starttls":
        server.starttls(context=context)
    return server


class _Plain(smtplib.SMTP):
    """Connects to an address that was examined, whatever its name says a moment later."""

    def __init__(self, address: str, host: str, context: ssl.SSLContext) -> None:
        super().__init__(timeout=SMTP_TIMEOUT_S)
        self._address, self._host, self._context = address, host, context

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return socket.create_connection((self._address, port), timeout)


class _Tls(_Plain):
    """TLS from the first byte."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._context.wrap_socket(super()._get_socket(host, port, timeout), server_hostname=self._host)
