"""What the collectors give and when each kind of event is sent: docs/collectors.md has them. Tests hold the
names against the shelf and the agent's sources.
"""

from __future__ import annotations

from collections.abc import Mapping

EVENT_WORDS: Mapping[str, str] = {
    "attached": "the rank attached: versions, options, what is recorded",
    "modules": "once, at attach: in which file and line each module's `forward` is written",
    "finished": "a goodbye: the run ended on this rank, or was detached",
    "failed": "an exception ended the rank; with its type and message, and the allocator's figures for out of memory",
    "died": "reported by the watcher: how a rank ended that could not say so ([crashes.md](crashes.md))",
    "stderr": "with `stderr_tail=True`: the last lines of stderr, at a death by the watcher ([stderr.md](stderr.md))",
    "no_last_words": "there is no watcher, and why",
    "fault": "place: how often something of ours failed there; after some faults that place is left alone",
    "dropped": "reason: how many batches were given up ([spool.md](spool.md))",
    "not_observed": "module: why its hooks do not fire",
    "not_fused": "device: why the fused kernel is not in use",
    "sampled_weights": "which parameters are compared between updates",
    "frozen_in_train": "a frozen part of the model came from `eval()` into `train()` while the rest was trained",
    "evaluation_mode": "the whole model was trained in `eval()` for 8 steps, or 2 after `train()`, and when that ends",
    "wrapper_bypassed": "the module inside DistributedDataParallel was called itself for 8 steps, and when that ends",
    "loss_function": "the first loss is a cross entropy, and over how many classes",
    "loss_broadcast": "one of the first losses compares every prediction with every target, by its shapes",
    "repeated_order": "a loader that is there to shuffle gave a second pass over its data the order of the first",
    "repeated_random": "torch's random numbers are in the state in which they were some steps before",
    "communication_hook": "gradients are reduced by a communication hook of your own",
    "untied_weights": "names that stood for one parameter, and stand for several since",
    "unscaled_loss": "a backward of a loss that the loss scaler has not multiplied, for some steps, and when that ends",
    "reduced_by_hand": "the loop reduces gradients over all ranks itself, by `torch.distributed.all_reduce`",
    "clipping": "gradients are clipped while they are multiplied by the loss scale, or to a norm not above 0",
    "compiled": "a step compiled code anew, or its graph broke: where, and the guard that failed",
    "flops": "floating-point operations of a step or token, and of the device, where they are known "
    "([memory.md](memory.md#goodput-and-mfu))",
    "loss_graph": "operations that made a loss or a gradient NaN or Inf",
    "state_loaded": "an optimizer was given another state, as by `load_state_dict`, while it was watched",
    "mesh": "where the rank stands: the axes of its mesh, and the ranks along each ([mesh.md](mesh.md))",
    "placements": "how each of its parameters lies on the mesh, and along which axes ranks hold the same",
    "formats_in_use": "which smaller formats tensors are rounded to, as `attach(formats=...)` was given it "
    "([whatif.md](whatif.md))",
    "scaled_operands": "at the end of a step in which it changed, which operands of layers are cast by scales of low "
    "precision, and how, and at one step in how many they are read ([scales.md](scales.md))",
    "routers": "routers of a mixture of experts that have been called ([experts.md](experts.md))",
    "dropouts": "which modules' dropout masks are compared between ranks, in which order",
    "tied_weight": "which parameter of a stage is compared with another stage's, and whether it is marked as shared",
    "not_reduced": "updates are made for a while without a reduction of gradients that ranks should share",
    "optimizers": "parameters that no optimizer has, and those of an optimizer that no backward has reached",
    "other_values": "module: what it takes or gives that is no floating tensor",
    "allowed_inf": "a tensor of `allow_inf` that held Inf, with the count of its first step",
    "level": "the agent records less to keep to its budget, or was asked to record more or less",
    "command": "what became of a command of the server: accepted, done or refused",
    "nonfinite": "the first NaN or Inf of a spell, and what was around it at that moment",
    "batch": "the rows of the data of a step in which something was wrong ([which rows](index.md#which-rows))",
    "scaler": "class and settings of a loss scaler, at first and when they change",
    "spool": "the spool's folder cannot be used, and what is done instead",
    "spool_merged": "by older agents: steps were merged because the spool was full, from which to which",
    "collectives": "how this rank sees collectives (`rung`), and why so",
    "hang": "the rank has neither opened a step nor called a collective for far longer than usual",
    "hang_over": "it goes on",
    "stacks": "Python's stacks of all threads of a rank that hangs",
    "environment": "facts of the machine, and findings",
    "gpu": "NVML is absent, or a card has news: an error, an NVLink that went down, memory errors, a recovery action",
    "gpu_lost": "a card or the driver stopped answering",
    "xid": "the driver reported an Xid: its number, meaning and what to do",
    "host": "a file system has not answered for 10 s",
    "linkcheck": "the result of `rangewatch linkcheck --post` ([linkcheck.md](linkcheck.md))",
}
