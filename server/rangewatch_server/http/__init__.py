"""The process that serves: settings to routes (`app`), start and end (`serve`), live events, static files, health.

In: connections, bounded in number and in time. Out: answers of `routes`, and "this changed" events. Never: a run's data
in an event.
"""
