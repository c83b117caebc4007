"""Pages made from the command table (`core.commands`): completion, the manual page, docs/cli.md."""
