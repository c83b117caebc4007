"""What monitoring systems are given: ranks of live runs for Prometheus to fetch, and all of it pushed by OTLP.

In: `core.metrics` and `query`. Out: Prometheus' text, or the OpenTelemetry SDK's instruments. Never: a request of ours
that waits for another system.
"""
