"""The HTTP API, a module a resource: decode the request, call a view, encode what it gives.

In: requests that `access` has let through. Out: JSON and files, as docs/api.md has them. Never: SQL or arithmetic.
"""
