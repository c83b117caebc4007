"""Health of a rank's graphics cards, by NVML: no root, and CUDA is not started.

In: NVML through `nvml`, and the kernel's log for Xid errors. Out: a row of `gpu` samples a second and card, and events
for what changed. A driver that does not answer holds up nobody but its own thread.
"""
