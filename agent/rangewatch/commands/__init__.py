"""The commands of the agent's side: a module or a folder for each.

In: arguments, RANGEWATCH_URL and RANGEWATCH_TOKEN. Out: text or JSON, and an exit status. Which commands there are
stands in `rangewatch.core.commands`; `serve`, `token` and `audit` are the server's own.
"""
