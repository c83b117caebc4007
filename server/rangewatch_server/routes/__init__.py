"""The HTTP API, a module a resource: decode the request, call a view, encode what it gives. No SQL, no arithmetic."""
