"""What is said of an alert to people who are not looking: as JSON, for Slack and those like it, and as an e-mail."""

from __future__ import annotations

import email.utils
from email.message import EmailMessage
from typing import Any

import msgspec

from rangewatch_server import rules
from rangewatch_server.alerts.config import Email
from rangewatch_server.rules import Finding

MOST_LINES = 20
MOST_TEXT = 2_000  # characters of one line: names are as long as anybody likes


class Notice(msgspec.Struct, frozen=True):
    """One thing to say. `what` is `opened`, `resolved` or `test`; `url` the alert's page."""

    what: str
    alert: int
    run: str
    run_id: int
    finding: Finding
    url: str
    time_ns: int


def as_json(notice: Notice) -> bytes:
    """The body of a webhook of format `json`: docs/alerts.md."""
    finding = notice.finding
    return msgspec.json.encode({
        "version": 1, "event": notice.what, "alert": notice.alert, "run": notice.run, "run_id": notice.run_id,
        "url": notice.url, "time_ns": notice.time_ns, "rule": finding.rule, "severity": finding.severity,
        "label": rules.label(finding), "rank": finding.rank, "step": finding.step, "tensor": finding.tensor,
        "kind": finding.kind, "summary": finding.summary, "evidence": finding.evidence, "remedy": finding.remedy,
    })  # fmt: skip


def as_slack(notice: Notice) -> bytes:
    """The body of an incoming webhook as Slack has it: one text, in which only our own link is a link."""
    heading, link = f"*{_slack_text(title(notice))}*", f"<{_slack_text(notice.url)}|Open in Rangewatch>"
    lines = [heading, *map(_slack_text, _lines(notice)), link]
    return msgspec.json.encode({"text": "\n".join(lines)})


def as_email(notice: Notice, mail: Email) -> EmailMessage:
    """A message of plain text."""
    message = EmailMessage()
    message["From"], message["To"] = mail.sender, ", ".join(mail.to)
    message["Subject"] = title(notice)[:200]
    message["Date"] = email.utils.formatdate(notice.time_ns / 1e9)
    message["Message-ID"] = email.utils.make_msgid(f"alert{notice.alert}.{notice.what}", domain="rangewatch.invalid")
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join([*_lines(notice), "", notice.url, ""]))
    return message


def title(notice: Notice) -> str:
    """One line: what, how bad, in which run."""
    word = {"opened": notice.finding.severity, "resolved": "resolved", "test": "test"}[notice.what]
    return _plain(f"[{word}] {notice.run}: {rules.label(notice.finding)}")


def _lines(notice: Notice) -> list[str]:
    finding = notice.finding
    lines = [
        finding.summary,
        *(f"- {each}" for each in finding.evidence),
        *(f"- then: {each}" for each in finding.path),
    ]
    for remedy in finding.remedy:
        lines += [f"Try: {remedy.text}", *(f"    {line}" for line in remedy.code.splitlines())]
    shown = [_plain(line) for line in lines[:MOST_LINES]]
    return [*shown, f"... and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else shown


def _plain(text: str) -> str:
    """One line of printable characters: names are untrusted, and must make no header, line or escape of their own."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:MOST_TEXT])


def _slack_text(text: str) -> str:
    """Slack's three control characters written out, so that no name makes a link or calls @channel; nor * or `."""
    for raw, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(raw, written)
    return text.replace("*", "\N{ASTERISK OPERATOR}").replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}")


def test_finding() -> Finding:
    """What the test button sends."""
    return Finding(rule="test", severity="info", summary="This is a test: alerts of Rangewatch arrive here.")


def shown_of(row: Any) -> dict[str, Any]:
    """An alert's row as the API shows it (docs/api.md)."""
    shown = ("id", "run_id", "run", "opened_ns", "resolved_ns", "resolved_step", "acknowledged_ns", "acknowledged_by")
    finding = _finding(row)
    return {name: getattr(row, name) for name in shown} | {"label": rules.label(finding), "finding": finding}


def _finding(row: Any) -> Finding:
    """As stored, but for its links: pages move, and a restored run may have another number."""
    finding = msgspec.json.decode(row.finding, type=Finding)
    rule = rules.BY_NAME.get(finding.rule)
    return finding if rule is None else msgspec.structs.replace(finding, links=rule.links(row.run_id, finding))
