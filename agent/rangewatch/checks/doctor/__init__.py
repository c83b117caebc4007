"""What this process runs in: details of its environment, what is known to be wrong with them, and `rangewatch doctor`.

`details.environment` gathers, `checks.ALL` judges, `checks.environment_event` is both for a rank in training, and
`rangewatch.commands.doctor` prints both for a person. Torch is never imported here: `torch_details.torch_details` reads
the one that is loaded, or asks a child process.
"""
