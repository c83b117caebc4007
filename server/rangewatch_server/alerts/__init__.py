"""Findings over time: opened, acknowledged, silenced, resolved, and sent to people.

In: runs that have changed, and what `rules` finds in them. Out: rows of alerts, webhooks, Slack, e-mail, commands to
agents. Never: a finding of its own, or a request to an address that the operator has not named.
"""
