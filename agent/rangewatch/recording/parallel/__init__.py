"""Where this rank stands among the others, and what it must hold as they do.

In: the model, its process groups, device meshes and placements, and what `attach` was told of them. Out: the events
`mesh` and `placements`, and checksums of what must be alike, for the server to compare. It never runs a collective,
makes no process group, imports no framework that is not imported already, and never waits for a device.
"""
