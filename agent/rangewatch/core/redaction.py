"""Secrets out of text that leaves the process: values of variables, and what a program wrote to stderr."""

from __future__ import annotations

import re

HIDDEN = "***"

_NAME_OF_ONE = (
    r"(?:[\w.-]*(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential|signature|"
    r"authorization|cookie)[\w-]{0,20}|[\w.-]*token(?=[^\w-][^\n]{0,3}[\w.~+/=-]{12})|(?:[\w.-]*[_-])?pw|pwd|sig|auth)"
)  # eos_token, max_tokens and tokenizer are no secrets: of a token only what is as long as one
_SECRET = re.compile(
    r"(?<=://)[^/@\s]{1,500}(?=@)"  # user:password of a URL
    r"|\b(?:hf|sk|pk|rk|ghp|gho|ghs|ghu|ghr|glpat|xox[abprs]|github_pat|rangewatch|npm|pypi)[_-][A-Za-z0-9_-]{16,500}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\beyJ[A-Za-z0-9_-]{20,4000}\.[A-Za-z0-9_.-]{1,4000}"
    r"|(?:(?<=hooks\.slack\.com/services/)|(?<=discord\.com/api/webhooks/))[\w/-]{8,500}"  # who has it may post
    r"|(?<=bearer )[A-Za-z0-9._~+/=-]{8,4000}"
    r"|(?<=basic )[A-Za-z0-9+/=]{12,4000}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,8000}?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_NAMED = re.compile(
    # After a URL's ? or & whatever the value is like.
    rf"""(?P<query>[?&][\w.-]*(?:token|sig|signature|key|secret|password|passwd|pwd|auth|code|credential)=)[^&\s"'#]+"""
    rf"""|(?<![\w.-])(?P<name>["']?{_NAME_OF_ONE}["']?(?:\s?[=:]\s?|=))(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s&,;"'}})\]]+)""",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """`text` with what looks like a secret hidden: by its form, or because of the name before it (`api_key=...`)."""
    return _NAMED.sub(_without_value, _SECRET.sub(HIDDEN, text))


def _without_value(match: re.Match[str]) -> str:
    return match["query"] + HIDDEN if match["query"] else match["name"] + _hidden(match["value"])


def _hidden(value: str) -> str:
    quote = value[:1] if value[:1] in "\"'" else ""
    return f"{quote}{HIDDEN}{quote}"
