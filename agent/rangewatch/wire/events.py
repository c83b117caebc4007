"""The details of events as typed structs: what an agent sends is what the server reads. One for each kind with details
that anybody reads; the kinds are described in docs/wire.md.

On the wire and in the database the details are a map: `event(struct, ...)` makes an event of it, and
`read(Struct, data)` reads it again without ever raising, since what another version or somebody else wrote may be
anything. A field that is `UNSET` is left out of the map, as are defaults of a struct with `omit_defaults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rangewatch.wire.records import Event

_MOST_WHOLE = 1 << 53  # what a float64 still counts by one
_MOST_S = 1e8  # three years

Whole = Annotated[int, Meta(gt=-_MOST_WHOLE, lt=_MOST_WHOLE)]
Factor = Annotated[float, Meta(gt=-_MOST_WHOLE, lt=_MOST_WHOLE)]
Seconds = Annotated[float, Meta(ge=0, le=_MOST_S)]

Shape = Annotated[tuple[Annotated[int, Meta(ge=0, lt=_MOST_WHOLE)], ...], Meta(max_length=64)]

Step = Annotated[int, Meta(ge=-1, le=10**12)]


class Details(msgspec.Struct, frozen=True):
    """The details of an event of kind `KIND`."""

    KIND: ClassVar[str]
    IS_WHOLE: ClassVar[bool] = False
    """Whether nothing of it is read where a part is not as it should be."""


class Died(Details, frozen=True):
    """How a process ended without a goodbye, as the watcher of its node saw it."""

    KIND = "died"
    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool | None = None
    signal_name: str | None = None
    oom_kills: int | None = None
    stack: str | None = ""
    """What faulthandler wrote."""
    replaced: bool = False
    """It went on as another program (exec)."""
    step: int | UnsetType = UNSET
    phase: str | UnsetType | None = UNSET
    last: dict[str, Any] | UnsetType | None = UNSET
    """The tensor that was recorded last: `fqn`, `kind`, `index`."""
    next: dict[str, Any] | UnsetType | None = UNSET
    module: str | UnsetType | None = UNSET
    collectives: list[dict[str, Any]] | UnsetType = UNSET


class Stderr(Details, frozen=True, omit_defaults=True):
    """The last lines of a process's stderr, when the user has asked for them; the newest event stands.

    `source`: "file", what any code of the process wrote, where stderr is a regular file, which is `path` on its host;
    "python", what went through Python's `sys.stderr`, where it is `stream` (a terminal, a pipe, ...); "" where nothing
    can be read, and `why_not` says so. `is_cut`: there were lines before these. `dropped_count`: pieces of text that
    are missing among them.
    """

    KIND = "stderr"
    lines: tuple[str, ...] = ()
    source: str = ""
    path: str = ""
    stream: str = ""
    why_not: str = ""
    is_cut: bool = False
    dropped_count: Whole = 0


Bytes = Annotated[int, Meta(ge=0, lt=1 << 62)]


class LiveBlocks(msgspec.Struct, frozen=True):
    """Blocks of a device's memory that were in use, allocated at one `place` of the user's code ("": not known)."""

    place: Annotated[str, Meta(max_length=200)]
    total_bytes: Bytes
    count: Bytes
    largest_bytes: Bytes


class Failed(Details, frozen=True, omit_defaults=True):
    """An exception ended the training. `devices`: the CUDA allocator's figures by device, in bytes and counts, as they
    were afterwards.
    """

    KIND = "failed"
    out_of_memory: bool = False
    interrupted: bool = False
    """It was Ctrl-C, and nothing has failed."""
    devices: dict[str, dict[str, int]] = {}
    on_host: bool = False
    """Of `out_of_memory`: it was the host's memory that was asked for."""
    asked_bytes: Bytes = 0
    """What the allocation that failed had asked for; 0: not known."""
    at_failure: dict[str, Bytes] = {}
    """What there was then: see `crash.out_of_memory.message_figures`, or of the host `_host` there."""
    blocks: Annotated[tuple[LiveBlocks, ...], Meta(max_length=64)] = ()
    """Who held most of it, where torch recorded the history of allocations; the largest sums first."""


class Optimizers(Details, frozen=True):
    """What the optimizers of the model train, by the names of parameters; the newest one stands.

    `left_out`: trainable, and of no optimizer. `unreached`: of an optimizer, and no backward has brought it a gradient
    since attach. The names may be fewer than the counts. `zero_rate_steps`: for how many steps in a row, up to that of
    the event, all learning rates have been exactly 0; 0 where one is not, or not for long yet. `kept_gradient_steps`:
    for how many updates in a row gradients had not been zeroed since the one before; 0 where they are, or not for long.
    `groups`: of several parameter groups each one's own name, or its first parameter's; "" where neither is known.
    `replaced`: those of `left_out` under whose name the model had another parameter before, which an optimizer has.
    `renewed`: names under which the model had another parameter when it was looked at before, of an optimizer both.
    `orphan_count`: parameters of the optimizers that are none of the model's and have no gradient, though some of the
    model's have. `frozen_count`: parameters of the model that require no gradient.
    `initial_lr`, which torch's schedulers begin from: of all parameter groups, 0 where it is not one and the same.
    `weight_decay`: the largest of any group; 0: none. `is_decoupled`: any of them takes it from the weights themselves
    by an option of its class. `momentum`: the largest of any group, or Adam's first beta, and `second_beta` its second
    in that group; 0 where there is none. `decay_part`: the part of each weight of a group, of which `decay_of` is the
    first parameter, that the decay takes with one update, or adds to it where it is below 0; 0 where it is not far too
    large. `maximizes`: all groups step along their gradients, not against them. `switched`: modules with an attribute
    requires_grad, which torch's have not, of the value `switched_to`, all of whose parameters have the other one.
    `cut_in`: modules whose output no backward goes through, though it would through that of a module in them that has
    `unreached` ones.
    """

    KIND = "optimizers"
    classes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0
    unreached: tuple[str, ...] = ()
    unreached_count: int = 0
    trainable_count: int = 0
    zero_rate_steps: int = 0
    kept_gradient_steps: int = 0
    groups: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()
    orphan_count: int = 0
    frozen_count: int = 0
    initial_lr: float = 0.0
    weight_decay: float = 0.0
    is_decoupled: bool = False
    momentum: float = 0.0
    second_beta: float = 0.0
    decay_part: float = 0.0
    decay_of: str = ""
    maximizes: bool = False
    switched: tuple[str, ...] = ()
    switched_to: bool = False
    cut_in: tuple[str, ...] = ()


class UntiedWeights(Details, frozen=True):
    """These names stood for one parameter, and stand for several since the event's step."""

    KIND = "untied_weights"
    names: tuple[str, ...] = ()


class Router(msgspec.Struct, frozen=True, omit_defaults=True):
    """A router of a mixture of experts, which gives each token to `top_k` (0: not known) of `experts` experts.

    Its counts are in the rows of output `index` of the module `fqn`. Its logits are output `logits_index` of the module
    `logits`, "" where they are not seen. `sees_drops`: what it returns shows tokens that an expert had no room for.
    """

    fqn: str
    experts: Annotated[int, Meta(ge=1, le=1 << 16)]
    top_k: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    index: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    logits: str = ""
    logits_index: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    sees_drops: bool = False


class Routers(Details, frozen=True):
    """The routers of the model that have been called; the newest one stands."""

    KIND = "routers"
    routers: Annotated[tuple[Router, ...], Meta(max_length=4_096)] = ()


class ScaledOperand(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operand that is cast by scales: the row of this `fqn`, `kind` and `index` (0: for the forward, or for the
    gradient of the input; 1: cast anew for another product of the backward).

    `format`: a name of `scales.ELEMENTS`. `granularity`: "tensor", "row" or "block 1x32": what has a scale of its own.
    `scale_format`: what scales are stored in. `source`: whose cast it is, `recipe`: what that library calls it.
    `history`: entries of the amax history that a delayed scale is made of, 0 where there is none; `margin`: bits that
    it leaves free. `unknown`: what of it cannot be read, and why; "" where all is.
    """

    fqn: str
    kind: Annotated[str, Meta(max_length=40)]
    index: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    format: Annotated[str, Meta(max_length=40)] = ""
    granularity: Annotated[str, Meta(max_length=60)] = ""
    scale_format: Annotated[str, Meta(max_length=40)] = "float32"
    source: Annotated[str, Meta(max_length=60)] = ""
    recipe: Annotated[str, Meta(max_length=100)] = ""
    history: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    margin: Annotated[float, Meta(ge=-1024, le=1024)] = 0.0
    unknown: Annotated[str, Meta(max_length=300)] = ""


class ScaledOperands(Details, frozen=True):
    """The operands of the model that are cast by scales, as far as any was read; the newest one stands.

    `every`: steps from one reading to the next from here on; 0: not said, by agents that have read each step.
    """

    KIND = "scaled_operands"
    operands: Annotated[tuple[ScaledOperand, ...], Meta(max_length=16_384)] = ()
    every: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class MeshAxis(msgspec.Struct, frozen=True, omit_defaults=True):
    """An axis of the mesh: the sender is the one at `index` of the `size` ranks along it, which are `first`,
    `first + stride` and so on, or else `ranks`."""

    name: Annotated[str, Meta(min_length=1, max_length=60)]
    size: Annotated[int, Meta(ge=1, le=1 << 16)]
    index: Annotated[int, Meta(ge=0)]
    first: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    stride: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    ranks: tuple[Annotated[int, Meta(ge=0, le=1 << 20)], ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks along it, in its order."""
        return self.ranks or tuple(range(self.first, self.first + self.size * self.stride, self.stride))


class Mesh(Details, frozen=True, omit_defaults=True):
    """Where a rank stands: the axes of the mesh that it knows, the outermost first. The newest one stands.

    `source`: who says so: "declared", "DeviceMesh", "Megatron", "DeepSpeed", "FSDP" or "DDP"; of several the first.
    `problems`: sentences, where they contradict one another.
    """

    KIND = "mesh"
    source: str = ""
    axes: tuple[MeshAxis, ...] = ()
    problems: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """How parameters lie: `axes`: axis -> "shard(DIM)", "replicate", "partial" or another of torch's placements; of an
    axis that is not in it this is unknown. `alike`: axes along which all ranks must hold the same bits of them when an
    optimizer is about to update them, and of their gradients; "all ranks" where no axis is told from others.
    """

    axes: dict[str, str] = {}
    alike: tuple[str, ...] = ()


class Placements(Details, frozen=True, omit_defaults=True):
    """How the parameters of a rank lie on its mesh: `parameters`, in the order of the model, each with its place in
    `groups`. `parameter_count`: of all that the rank holds; the names may be fewer. The newest one stands.
    """

    KIND = "placements"
    IS_WHOLE = True  # `parameters` counts groups
    groups: tuple[Placement, ...] = ()
    parameters: dict[str, int] = {}
    parameter_count: int = 0


class FormatOf(msgspec.Struct, frozen=True):
    """Tensors of `kind` whose name matches `pattern` ("": all) are rounded to `format`, see `statistics.formats`."""

    kind: Annotated[str, Meta(max_length=40)]
    pattern: Annotated[str, Meta(max_length=1_000)]
    format: Annotated[str, Meta(max_length=40)]


class FormatsInUse(Details, frozen=True):
    """The smaller formats that tensors are really rounded to; of several that match a tensor the first. The newest one
    stands.
    """

    KIND = "formats_in_use"
    IS_WHOLE = True  # without one of them another would be the first
    formats: Annotated[tuple[FormatOf, ...], Meta(max_length=256)] = ()


class Dropouts(Details, frozen=True):
    """Modules whose masks are compared, one in `every` steps, in this order. The newest one stands."""

    KIND = "dropouts"
    names: tuple[str, ...] = ()
    every: Annotated[int, Meta(ge=1, le=1 << 40)] = 1


class TiedWeight(Details, frozen=True):
    """The parameter that `tied_checksum` is of, on a stage of a pipeline; `is_marked`: whether the model says that it
    is shared with another stage. The newest one stands.
    """

    KIND = "tied_weight"
    name: str = ""
    is_marked: bool = False


class NotReduced(Details, frozen=True):
    """Updates are made though gradients have not been reduced over the ranks that hold the same parameters, as
    `parameter` is: since step `first`, in `steps` readings in a row; 0 readings: no longer. The newest one stands.

    `is_alone`: all parameters are wrapped by what reduces over this rank alone. Whether others hold the same is not
    known then; `axes` are those of other ranks along which no parameter lies.
    """

    KIND = "not_reduced"
    reason: str = ""
    parameter: str = ""
    first: Step = -1
    steps: int = 0
    axes: tuple[str, ...] = ()
    is_alone: bool = False


class OwnSteps(Details, frozen=True):
    """In `updates` updates, since step `first`, nothing of the size of the parameters has gone from this rank to
    another or come from one, and nothing is known that keeps them alike, such as `parameter`; 0: no longer. `axes`: of
    other ranks, along which no parameter lies. The newest one stands.
    """

    KIND = "own_steps"
    updates: Whole = 0
    first: Step = -1
    parameter: str = ""
    axes: tuple[str, ...] = ()


class EvaluatedInTrain(Details, frozen=True):
    """At a place of the code, `line`, where the model was called without gradients in `eval()` in `evals` steps before,
    it was called so in `train()` in `steps` steps since, from step `first` on; 0: in `eval()` again. `norms`: of what
    was called, those in `train()` that keep running statistics, which such a call moves; `dropouts`: those that drop
    out elements. The newest one stands.
    """

    KIND = "evaluated_in_train"
    steps: Whole = 0
    first: Step = -1
    evals: Whole = 0
    norms: Whole = 0
    dropouts: Whole = 0
    line: str = ""


class StateLoaded(Details, frozen=True):
    """An optimizer was given another state while it trained, at the event's step; `name`: its class."""

    KIND = "state_loaded"
    name: str = ""


class SampledWeights(Details, frozen=True):
    """Which parameters the series `weights_written` is of; `are_held`: whether attached optimizers update any of them.
    The newest one stands.
    """

    KIND = "sampled_weights"
    names: tuple[str, ...] = ()
    are_held: bool = False


class EvaluationMode(Details, frozen=True):
    """The model was trained in `eval()`, all of it, in `steps` steps in a row up to this one; 0: it is in `train()`
    again. `dropouts`, `norms`: modules of it that drop out elements, and that keep running statistics. `was_trained`:
    there were steps in `train()` before. `where`: the part of it that has all of these which are trained, "" the model
    itself. The newest one stands.
    """

    KIND = "evaluation_mode"
    steps: Whole = 0
    dropouts: Whole = 0
    norms: Whole = 0
    was_trained: bool = False
    where: str = ""


class FrozenInTrain(Details, frozen=True):
    """`parts` frozen parts of the model, `fqn` the first of them, came from `eval()` into `train()` while the rest was
    trained: in `steps` steps in a row, up to this one; 0: they are in `eval()` again, or no longer frozen. `dropouts`,
    `norms`: modules of theirs that drop out elements, and that keep running statistics. The newest one stands.
    """

    KIND = "frozen_in_train"
    steps: Whole = 0
    fqn: str = ""
    parts: Whole = 0
    dropouts: Whole = 0
    norms: Whole = 0


class WrapperBypassed(Details, frozen=True):
    """In `steps` steps in a row, up to this one, the forward of the module `fqn` of class `name` was called past the
    DistributedDataParallel that it is in, so that nothing reduced its gradients; 0: it goes through it again. The
    newest one stands.
    """

    KIND = "wrapper_bypassed"
    steps: Whole = 0
    name: str = ""


class LossFunction(Details, frozen=True):
    """What the loss of the first backward is: `op` ("nll" of a cross entropy, "bce" of a binary one with logits) of
    `classes`, as a mean over all its targets.

    `given`: the operation that made the logits that it takes, where it is one that makes none: "Softmax", "Sigmoid" or
    "Relu"; of an nll that no log_softmax comes before "Probabilities", or "Raw" where it is a layer's own output.
    `is_negated`: the loss is minus it, in each of many backwards. `op` "mse" is a mean of squared differences, or of
    huber_loss and the like: it has no classes, and `target_rms`, the root mean square of a sample of the targets in
    host memory. "kl" is kl_div, and "ctc" ctc_loss, both only where what is `given` is no log-probability.
    """

    KIND = "loss_function"
    op: str = ""
    classes: Whole = 0
    given: str = ""
    is_negated: bool = False
    target_rms: float = 0.0


class LossBroadcast(Details, frozen=True):
    """One of the first losses compares each prediction with each target: in its operation `op` what has a gradient, of
    shape `prediction`, and what has none, of `other` (empty where that is not known), were broadcast to `result`.
    """

    KIND = "loss_broadcast"
    IS_WHOLE = True  # a shape without one of its sizes is another shape
    op: str = ""
    prediction: Shape = ()
    other: Shape = ()
    result: Shape = ()


class Unregistered(Details, frozen=True, omit_defaults=True):
    """Since step `first` losses depend on `count` parameters that the model does not hold and that nothing trains.

    `names` and `shapes` of some: "blocks[0].weight" where they lie in a plain list, tuple or dict of the model
    (`is_inside`; `is_alone`: it holds nothing else), else the class of the module and the name there. `is_serial`: each
    is used with what the model gives, or the model uses what they give. `is_fresh`: matrices are as torch's layers draw
    them; False where that is not known. `is_on_device`: the series `unregistered_moved` says whether any has moved.
    `is_anew`: they are layers that each forward makes anew; of these there are no names.
    """

    KIND = "unregistered"
    names: tuple[str, ...] = ()
    shapes: Annotated[tuple[Shape, ...], Meta(max_length=64)] = ()
    count: Whole = 0
    elements: Whole = 0
    first: Step = -1
    is_inside: bool = False
    is_alone: bool = False
    is_serial: bool = False
    is_fresh: bool = False
    is_on_device: bool = False
    is_anew: bool = False


class SequenceAxes(Details, frozen=True):
    """The module `fqn` of class `name`, built with `batch_first`, runs along the rows of the batch: in `steps` steps,
    the first of them the event's, the dimension of its output `shape` that it takes for the sequence had as many
    elements as the loss had `rows`, and the other one had not. `given`: the shape of what the model was given.
    `is_varied`: batches of other sizes were so, too; `alike`: so many modules of its family are so; `right`: so many
    run along what is not the batch. `steps` 0: it was chance. The newest one stands.
    """

    KIND = "sequence_axes"
    IS_WHOLE = True  # a shape without one of its sizes is another shape
    fqn: str = ""
    name: str = ""
    batch_first: bool = False
    shape: Shape = ()
    given: Shape = ()
    rows: Whole = 0
    steps: Whole = 0
    is_varied: bool = False
    alike: Whole = 0
    right: Whole = 0


class LossChanged(Details, frozen=True, omit_defaults=True):
    """From the event's step on, for some steps in a row, a loss is computed by other operations than any before in this
    process: the names of those that are nearest to it, `before` and `after`, such as ("Mean", "Pow", "Sub"). Of a
    function of torch's with "mean" or "sum".
    """

    KIND = "loss_changed"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class RepeatedOrder(Details, frozen=True):
    """A loader whose `sampler`, a class, is there to shuffle gave the pass that began in step `first` the order of the
    one before; `repeats` passes in a row, 0: no longer. Known by the sampler's `epoch`, or where `batches` is more than
    0 by so many first batches that were the same: `is_epoch_unused`: though its `epoch` was another one;
    `is_seeded`: torch's random numbers were in the same state in both. The newest one stands.
    """

    KIND = "repeated_order"
    sampler: str = ""
    repeats: int = 0
    first: Step = -1
    batches: int = 0
    epoch: int = 0
    is_epoch_unused: bool = False
    is_seeded: bool = False


class RepeatedRandom(Details, frozen=True):
    """Torch's random numbers on the host were, before the first forward of step `first` and of those after it, in the
    state in which they were `period` steps before, and in another one between. `are_inputs_same`: what the model was
    given was the same as then, where that is of whole numbers; else None. Sent once.
    """

    KIND = "repeated_random"
    first: Step = -1
    period: int = 0
    are_inputs_same: bool | None = None


class CommunicationHook(Details, frozen=True):
    """DistributedDataParallel reduces gradients by a hook that is not one of torch's, `name`, as the rank trains."""

    KIND = "communication_hook"
    name: str = ""


class UnscaledLoss(Details, frozen=True):
    """A backward began at a loss that the loss scaler had not multiplied, though it divides the gradients: in `steps`
    of the steps that were looked at in a row, the first of them `first`; 0: no longer. `others`: another loss of the
    same steps, or another part of it, was multiplied. The newest one stands.
    """

    KIND = "unscaled_loss"
    steps: int = 0
    first: Step = -1
    others: bool = False


class ReducedByHand(Details, frozen=True):
    """The loop itself reduces the gradients of `parameters` parameters over all ranks, by `all_reduce`."""

    KIND = "reduced_by_hand"
    parameters: int = 0


class Clipping(Details, frozen=True):
    """How gradients were clipped by their norm in the event's step: `max_norm`, and whether the loss scaler had not
    unscaled them (`is_scaled`), which was so in `steps` steps in a row, up to this one; in `early_steps` they were
    clipped before the step's first backward alone, and in `far_steps` their norm was a hundred times `max_norm` and
    more. Sent where one of these lasts, and where `max_norm` is not above 0.
    The newest one stands.
    """

    KIND = "clipping"
    max_norm: float = 0.0
    is_scaled: bool = False
    steps: int = 0
    early_steps: int = 0
    far_steps: int = 0


class Compilation(msgspec.Struct, frozen=True):
    """Code that was compiled anew: its function with file and line, and the guard that failed."""

    place: str = ""
    reason: str = ""


class Compiled(Details, frozen=True):
    """What `torch.compile` did in the event's step besides first compilations: how often code was compiled anew, and
    graphs broke; some `compilations`, and `break_reasons` that are new.
    """

    KIND = "compiled"
    recompiles: int = 0
    graph_breaks: int = 0
    compilations: tuple[Compilation, ...] = ()
    break_reasons: tuple[str, ...] = ()


class Flops(Details, frozen=True):
    """Floating-point operations: of a step of this rank, or of a token, and what its device does a second at most.

    None where it is not known. `source`: `declared` or `measured`. The newest event stands.
    """

    KIND = "flops"
    per_step: Annotated[float, Meta(gt=0, lt=1e30)] | None = None
    per_token: Annotated[float, Meta(gt=0, lt=1e30)] | None = None
    peak: Annotated[float, Meta(gt=0, lt=1e30)] | None = None
    device: Annotated[str, Meta(max_length=200)] = ""
    source: str = "declared"


class TensorDetails(msgspec.Struct, frozen=True):
    """A tensor that was seen beside a NaN or Inf: counts of elements, `amax` of the finite ones.

    What is UNSET was not counted.
    """

    name: str
    dtype: str
    numel: int
    amax: float
    nan_count: int
    inf_count: int
    zero_count: int | UnsetType = UNSET
    negative_count: int | UnsetType = UNSET
    negative_inf_count: int | UnsetType = UNSET
    masked_rows: int | UnsetType = UNSET
    """Rows along the last dimension that are -Inf alone."""
    shape: tuple[int, ...] | UnsetType = UNSET
    peak_count: int | UnsetType = UNSET
    """Elements of more than a thousandth of `amax`, NaN and Inf among them; `rest_amax` is that of all others."""
    rest_amax: float | UnsetType = UNSET
    is_buffer: bool | UnsetType = UNSET
    """Of what belongs to a module: it is no parameter."""

    @property
    def noun(self) -> str:
        """What it is, of what belongs to a module."""
        return "buffer" if self.is_buffer is True else "weight"

    @property
    def is_bad(self) -> bool:
        """Whether it held NaN or Inf."""
        return self.nan_count > 0 or self.inf_count > 0

    @property
    def is_mask(self) -> bool:
        """Whether all that is not finite in it is -Inf, as in masks that are added to attention scores."""
        return not self.nan_count and 0 < self.inf_count == self.negative_inf_count


class MaskDetails(msgspec.Struct, frozen=True):
    """A tensor of zeros and ones, or of booleans, that a module was given: rows along its last dimension, and how many
    of them are 0 and how many are 1 in all elements."""

    name: str
    rows: Whole
    zero_rows: Whole
    one_rows: Whole


class LoadedBatch(msgspec.Struct, frozen=True):
    """The batch that a DataLoader gave last, as it lies there unchanged: `count` floating tensors, of which `bad_count`
    hold NaN or Inf; `is_given`: what the model or the loss was given that was not finite lies in one of them.
    """

    count: int = 0
    bad_count: int = 0
    is_given: bool = False


class SavedValue(msgspec.Struct, frozen=True):
    """What an operation of the loss kept for its backward: its operand `name`, or its result where that is "result".

    `is_given`: no gradient goes on from it, so it came from outside of what was differentiated.
    """

    op: str
    name: str
    is_given: bool
    value: TensorDetails


class LossGraph(Details, frozen=True, omit_defaults=True):
    """Operations between the modules' outputs and a loss, at the event's step.

    Of a loss that was not finite `bad`: the first that kept NaN or Inf, with no such operation before them; `risky`:
    those that were given what their function has no finite value for, such as a divisor of 0. Of a finite one whose
    gradient became NaN or Inf: `gradient_of`, the output at which it was first seen, and `ops`, the operations from
    there towards the loss, nearest first, as far as the next that has parameters. `loaded`: of a loss that was given
    what was not finite; None where nothing is known of a loader's batch.
    """

    KIND = "loss_graph"
    bad: tuple[SavedValue, ...] = ()
    risky: tuple[SavedValue, ...] = ()
    gradient_of: str | None = None
    ops: tuple[str, ...] = ()
    loaded: LoadedBatch | None = None


class OptimizerDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The optimizer of `parameter`: its settings, and the tensors of its state.

    `gradient`: what was in `.grad` at that moment, which is what the last update was given unless it was zeroed since;
    None where that was finite.
    """

    name: str = msgspec.field(name="class")
    parameter: str = ""
    lr: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    amsgrad: float | None = None
    state: tuple[TensorDetails, ...] = msgspec.field(default_factory=lambda: ())  # a factory's is sent when empty too
    gradient: TensorDetails | None = None


class Nonfinite(Details, frozen=True, omit_defaults=True):
    """What surrounded the first output, weight or update that held NaN or Inf. What was not seen is None."""

    KIND = "nonfinite"
    IS_WHOLE = True  # the cause is concluded from it
    fqn: str
    kind: str
    index: int
    autocast: str | UnsetType | None = UNSET
    """The dtype to which operations on a CPU are cast; None where they are not, which is sent."""
    model_inputs: tuple[TensorDetails, ...] | None = None
    inputs: tuple[TensorDetails, ...] | None = None
    eps: float | None = None
    """Of the module."""
    weights: tuple[TensorDetails, ...] | None = None
    entered: str | None = None
    """The outermost module under way where that was not the whole model: `model_inputs` are what it was given, but for
    what was computed with gradient."""
    large_weights: tuple[TensorDetails, ...] | None = None
    """Parameters anywhere in the model that are not finite, or far larger than parameters are."""
    optimizer: OptimizerDetails | None = None
    masks: tuple[MaskDetails, ...] = ()
    """Of the module's inputs those that may be masks."""
    masks_of: str = ""
    """The module around it whose inputs they are, where its own have none."""
    inf_count: int | None = None
    negative_inf_count: int | None = None
    """Of the Inf of this call those that are -Inf; both None where nobody counted, as agents before did not."""
    loaded: LoadedBatch | None = None
    """Where any of `model_inputs` is not finite, and a loader's batch is known."""

    @property
    def has_positive_inf(self) -> bool | None:
        """Whether some of its Inf were +Inf; None where that is not known."""
        if self.inf_count is None or self.negative_inf_count is None:
            return None
        return self.inf_count > self.negative_inf_count


class RowLoss(msgspec.Struct, frozen=True):
    """The loss of one row of a batch: "NaN", "Inf" or "-Inf" where it is not finite, which JSON has no numbers for."""

    row: int | str
    loss: float | str


class BatchRows(Details, frozen=True, omit_defaults=True):
    """Which rows of the data the event's step was made of on a rank, as its loop says. `count`: how many, of which
    the first are in `ids`; 0: unknown. `largest`: those with the largest losses, by their place in the batch where no
    ids are known; `median`: of the finite ones of `loss_count`. `reason`: "nonfinite", "loss", "gradient", "output",
    "failed", or "before" for one of the two steps before such a step.
    """

    KIND = "batch"
    ids: tuple[int | str, ...] = ()
    count: int = 0
    microbatches: int = 1
    reason: str = ""
    largest: tuple[RowLoss, ...] = ()
    median: float | None = None
    loss_count: int = 0


class Scaler(Details, frozen=True, omit_defaults=True):
    """How a loss scaler is set to change its scale. `series`: the name of its series; what is unknown is None."""

    KIND = "scaler"
    series: str
    name: str | None = msgspec.field(name="class", default=None)
    growth_interval: Factor | None = None
    """Clean steps after which it grows."""
    growth_factor: Factor | None = None
    backoff_factor: Factor | None = None
    was_passed: bool = True
    """`attach` was given it. One that was found later scales gradients all the same, though `RankInfo.loss_scaled` is
    false."""

    @property
    def interval(self) -> int | None:
        """The growth interval in whole steps; None for one that cannot be."""
        known = self.growth_interval
        return int(known) if known is not None and known >= 1 else None


class CodeLine(msgspec.Struct, frozen=True):
    """Where in its code a thread is."""

    file: str
    line: int = 0
    function: str = "?"

    def __str__(self) -> str:
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line} in {self.function}"


class WaitingCall(msgspec.Struct, frozen=True):
    """A collective that was called and has not ended. `bytes`: None where it is not known."""

    op: str
    sequence: Whole
    bytes: float | None = None
    dtype: str = ""
    enqueued_ns: int | UnsetType | None = UNSET
    waited_s: Seconds = 0.0
    step: int | UnsetType | None = UNSET
    bucket: Any | UnsetType = UNSET


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a rank is in one process group: sequences. `completed` None: nobody tells that rank of ends."""

    enqueued: Whole
    completed: Whole | None
    name: str = ""
    hash: str = ""
    ranks: tuple[Whole, ...] = ()
    desc: str | None = ""
    backend: str = ""
    instance: int | str = ""
    flight_recorder: dict[str, Any] | UnsetType | None = UNSET
    waiting: tuple[WaitingCall, ...] = ()


class Hang(Details, frozen=True):
    """A rank's report that no step ends. `stalled_s`: for how long; `line`: where its training thread is."""

    KIND = "hang"
    step: int | UnsetType = UNSET
    stalled_s: Seconds = 0.0
    is_waiting: bool = False
    rung: str | UnsetType = UNSET
    """The timing source, see `CollectiveTiming`."""
    groups: tuple[GroupProgress, ...] = ()
    line: CodeLine | None = None
    where: CodeLine | UnsetType | None = UNSET
    """The line, as older agents called it."""


class Stacks(Details, frozen=True):
    """The stacks of all threads of a process: the sender's, or those of rank `of_rank` of its host."""

    KIND = "stacks"
    text: str = ""
    line: CodeLine | UnsetType | None = UNSET
    of_rank: int | UnsetType | None = UNSET


class CollectiveTiming(Details, frozen=True):
    """How a rank times its collectives, and why so. `rung`: the timing source, under its name on the wire."""

    KIND = "collectives"
    rung: str = ""
    why: str = ""
    hang_threshold_s: float | UnsetType = UNSET
    stuck_timer: str | UnsetType = UNSET
    flight_recorder: bool | UnsetType = UNSET
    hidden: int | UnsetType = UNSET
    dropped: int | UnsetType = UNSET
    no_longer_followed: int | UnsetType = UNSET
    overwritten: int | UnsetType = UNSET


class EnvironmentFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong, or odd, with an environment: docs/doctor.md."""

    code: str = ""
    severity: str = ""
    what: str = ""
    why: str = ""
    do: str = ""
    where: str = ""


class Environment(Details, frozen=True):
    """What the doctor sees of a rank: sections by name, and its findings."""

    KIND = "environment"
    facts: dict[str, Any] = {}
    findings: tuple[EnvironmentFinding, ...] = ()


class ModuleClass(msgspec.Struct, frozen=True):
    """`module`: the bare name, as tensors have it; `name`: with its Python module; `source`: `file:line` of forward."""

    module: str
    name: str
    source: str | None = None


class Modules(Details, frozen=True):
    """Where modules are written. `of`: fqn -> place in `classes`, where several have one bare name."""

    KIND = "modules"
    IS_WHOLE = True  # `of` counts classes
    classes: tuple[ModuleClass, ...] = ()
    of: dict[str, int] = {}


AnswerState = Literal["accepted", "done", "refused"]


class CommandAnswer(Details, frozen=True, omit_defaults=True):
    """What a rank made of a command. `first_step` and `last_step` are the steps that it covers."""

    KIND = "command"
    IS_WHOLE = True  # it is acted on
    id: Annotated[int, Meta(ge=1, lt=2**62)]
    state: AnswerState
    first_step: Step | None = None
    last_step: Step | None = None
    reason: str = ""


class MergedSteps(Details, frozen=True):
    """The spool was full: steps `first_step` to `last_step` have one row for up to `steps_a_row` steps."""

    KIND = "spool_merged"
    first_step: int
    last_step: int
    steps_a_row: Annotated[int, Meta(ge=2, le=1 << 24)]


class GpuEvent(Details, frozen=True, omit_defaults=True):
    """What is read of events of the kinds `gpu`, `gpu_lost` and `xid`, which hold more. `uuid`: of the card."""

    KIND = "gpu"
    uuid: str | None = None
    reason: str | None = None
    """Why nothing is recorded of a rank's cards."""
    resolution: str | None = None
    """Of an Xid: "ignore" where nothing is to be done."""
    xid: int | None = None
    """Its number."""


GPU_KINDS = ("xid", "gpu_lost", "gpu")

SPOOL_DAMAGED = "spool_damaged"
ACCOUNTS: dict[str, Any] = {
    "dropped": dict[str, int],
    SPOOL_DAMAGED: dict[str, int],
    "fault": dict[str, int],
    "not_observed": dict[str, str],
    "not_fused": dict[str, str],
    "other_values": dict[str, dict[str, Any]],
}
"""Kinds whose details are a whole account by name: reason, place, fqn, device. The newest one stands."""

T = TypeVar("T")


def details_of(details: Details) -> dict[str, Any]:
    """The map that is sent."""
    data: dict[str, Any] = msgspec.to_builtins(details)
    return data


def event(details: Details, time_ns: int, step: int, message: str = "") -> Event:
    """The event of these details; `step` -1 where it belongs to none."""
    return Event(details.KIND, time_ns, step, message, details_of(details))


def read(kind: type[T], data: bytes | Mapping[str, Any]) -> T | None:
    """The details of an event, stored as JSON or just decoded; None where they cannot be read. Raises nothing.

    A field or an item of a list that does not have its type is as if it had not been sent, but where it `IS_WHOLE`.
    """
    try:
        if isinstance(data, bytes):
            try:
                return msgspec.json.decode(data, type=kind)
            except msgspec.ValidationError:
                data = msgspec.json.decode(data)
        details: T = msgspec.convert(data, kind) if getattr(kind, "IS_WHOLE", False) else _readable(kind, data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return details


def _readable(kind: Any, value: Any) -> Any:
    """The part of `value` that has its type. Raises `msgspec.ValidationError` where that is nothing."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return _readable_fields(kind, value)
        if isinstance(value, Mapping) and get_origin(kind) is dict:
            items = ((name, _or_unset(get_args(kind)[1], each)) for name, each in value.items())
            return {name: each for name, each in items if each is not UNSET}
        if isinstance(value, list | tuple) and get_origin(kind) is tuple:
            return tuple(each for each in (_or_unset(get_args(kind)[0], item) for item in value) if each is not UNSET)
        for each in get_args(kind):  # of `tuple[...] | UnsetType` the first
            if get_origin(each) is tuple or (isinstance(each, type) and issubclass(each, msgspec.Struct)):
                return _readable(each, value)
        raise


def _readable_fields(kind: type[msgspec.Struct], value: Mapping[str, Any]) -> Any:
    fields = {}
    for each in msgspec.structs.fields(kind):
        known = _or_unset(each.type, value[each.encode_name]) if each.encode_name in value else UNSET
        if known is not UNSET:
            fields[each.name] = known
        elif each.required:
            raise msgspec.ValidationError(f"no {each.encode_name} of its type")
    return kind(**fields)


def _or_unset(kind: Any, value: Any) -> Any:
    try:
        return _readable(kind, value)
    except msgspec.ValidationError:
        return UNSET
