"""Every size, interval and deadline of the agent that is not an option, with its unit and the reason for it."""

from __future__ import annotations

BUFFER_STEPS = 64
"""Steps the step buffer holds before it must ship: at 100 steps a second that is still more than half a second."""

BUFFER_BYTES = 16 << 20
"""Bytes of step buffer. Huge catalogues get fewer steps: 100,000 tensors x 10 statistics is 8 MB a step.

A block of this size also stays far below the wire's 64 MiB per message."""

HANDOFF_BYTES = 64 << 20
"""Bytes of blocks that wait for the sender's thread to encode them: four full buffers, which it empties at once."""

QUEUE_BYTES = 256 << 20
"""Default bytes of encoded batches kept while the server is away: some hours of a 300-module model."""

NONFINITE_FULL_EVERY = 20
"""Steps between two full sets caused by a NaN or Inf: a run that stays NaN must not pay for one at every step."""

NONFINITE_EVENTS = 32
"""Times that a process looks around where NaN or Inf began: each is a pass over a module's parameters."""

NONFINITE_EVENTS_IN_SPELL = 3
"""Of them while it lasts: weights that turn bad by it take more modules along, step by step, which tells no more."""

CONTEXT_TENSORS = 64
"""Inputs, and parameters, of one module that are looked at then."""

LARGE_WEIGHT = 1e6
"""Magnitude from which a parameter is listed beside a NaN or Inf, wherever in the model it is."""

UNWRITTEN = 1e30
"""Value above which an element of a buffer is what lay in the memory: nobody has written it."""

CONTEXT_ELEMENTS = 1 << 25
"""Elements that are read for it: some tenths of a second on a CPU. A parameter's count a sixteenth each."""

BLOCK_ELEMENTS = 1 << 17
"""Elements reduced at a time by passes with temporaries: 128 Ki float32 and a float64 copy fit a 2 MiB L2 cache."""

SEEN_TENSORS = 200_000
"""Tensors of one step that are known again when another module shows them; a loop that never steps must not gather."""

FLATTEN_DEPTH = 8
"""Nesting of containers that is looked into for tensors; a self-containing list must end somewhere."""

FLATTEN_TENSORS = 256
"""Tensors of one module's output that are recorded; a cache of 10,000 past keys is not what anybody wants to read."""

OTHER_VALUES = 32
"""Values of one module that are no tensors and are reported."""

ACCOUNT_NAMES = 1000
"""Names sent in one event of what was dropped, failed or not observed; 100,000 would be a batch of 10 MB."""

MESSAGE_CHARACTERS = 1000
"""Longest message of an event: the text of some exceptions is a whole tensor."""

FAULTS_TO_DETACH = 5
"""Faults after which a place gives up: often enough to see that it is no accident, few enough to cost nothing."""

LOG_INTERVAL_S = 60.0
"""Least seconds between two log lines of one place."""

CONNECT_TIMEOUT_S = 2.0
"""Seconds for a TCP (and TLS) connection."""

READ_TIMEOUT_S = 10.0
"""Seconds without a byte of the reply. Ingest is one short transaction: ten seconds is a server in trouble."""

REPLY_TIMEOUT_S = 20.0
"""Seconds for the whole of a reply, so that a server that sends a byte at a time cannot hold the thread."""

SEND_TIMEOUT_S = 60.0
"""Seconds for the whole of a request: the largest, 16 MiB, needs 280 kB/s. Less would send it again and again."""

REPLY_BYTES = 1 << 20
"""Bytes of a reply that are read: commands of a later version have room, a wrong server's page has not."""

BACKOFF_FIRST_S = 0.25
BACKOFF_LAST_S = 15.0
"""Seconds before the first and at most before any later retry; doubled each time, with jitter so that ranks spread."""

RETRY_AFTER_LAST_S = 60.0
"""Longest `Retry-After` that is obeyed, in seconds."""

UNAUTHORIZED_RETRY_S = 15.0
"""Seconds between retries with a refused token: a server restarted with the right one takes the data then."""

EVENTS_A_BATCH = 500
"""Events that wait for the next batch; then the oldest goes. The wire takes 1,000, and the sender adds some."""

OPENINGS_A_BATCH = 3
"""Times that an `StreamHeader` is sent again for one batch before the server counts as rejecting it."""

FLUSH_TIMEOUT_S = 5.0
"""Seconds that the end of a run waits for what is queued when the server answers."""

FLUSH_TIMEOUT_AWAY_S = 1.0
"""The same when the last attempt did not reach the server."""

HEARTBEAT_S = 5.0
"""Seconds without a batch after which an empty one is sent: a step may take minutes, and 15 s of silence is "stale"."""

PACE_LAST_S = 10.0
"""Most seconds between two batches that a server may ask for: at 15 s of silence a rank counts as stale."""

DEVICE_POLL_S = 0.005
"""Seconds between looks at a device copy that is not complete yet; a copy takes tens of microseconds."""

GRAPH_TENSORS = 4096
"""Tensors that CUDA graphs may read on one device: 0.3 MB, held from its first read on, since a capture allows none."""

HISTOGRAMS_AT_ONCE = 64
"""Histograms on a device whose memory is taken together: 0.14 MB."""

DEVICE_SCALARS = 32
"""Series values a step that may live on a device (loss scale, found_inf and the user's tensors)."""

NAME_CHARACTERS = 200
"""Longest name of a run or a series."""

CALL_INDEX_GAP = 1024
"""Call indices between two tensors of the first step, for those that show later. The server's column holds 2^31:
200,000 tensors are 2^28."""

CONTAINER_VISITS = 10_000
"""Objects of one module's output that are looked at in search of tensors: some milliseconds. A million plain numbers
in a list would be a second."""

DEVICE_BLOCK_ELEMENTS = 1 << 24
"""Elements of a tensor on an accelerator that are reduced at a time: its temporaries are some 30 bytes an element, so
half a GB where a whole logits tensor would take nine times its own size."""

COLLECT_EVERY_S = 1.0
"""Seconds between two looks at the collectors: NVML's own counters are averaged over up to a second."""

SAMPLES_EVERY_S = 2.0
"""Seconds that samples wait for the training thread to ship them with a batch; then they go on their own."""

SAMPLE_ROWS = 20_000
"""Rows of samples that wait: at 100 collectives a step and ten steps a second, twenty seconds."""

COLLECTOR_STOP_S = 2.0
"""Seconds that the end waits for the collectors' thread, which may be inside a driver that does not answer."""

LEFT_POLL_S = 1.0
"""Seconds between looks whether the model is gone: the garbage collector, which knows, may take no lock to say so."""

COST_EVERY = 17
"""Steps between two whose cost is measured. A prime, so that it falls on no cadence of the user's or of ours."""

COST_STEPS = 8
"""Measured steps whose median is held against the budget: one slow step says nothing."""

COST_S = 10.0
"""Seconds at a level before it may be lowered: the first steps compile, allocate and warm up caches."""

FORWARD_EVERY = (3, 7, 13, 31, 61)
"""Steps of which one has its outputs recorded where all would be above the budget. Primes, for the same reason."""

COMMANDS = 100
"""Commands of the server that wait for the next step, and ids that are known again."""

TRACE_STEPS = 1000
"""Steps of one trace in full: it may cost several times the step, and must end."""

FROZEN_A_STEP = 500
"""Frozen parameters that are looked at after each step, at 0.08 us each; more of them are looked at when shipping."""

REFRESH_FACTOR = 200
"""Times as long as a look at the model's structure took is waited before the next: half a percent. Torch's hooks tell
of most changes, but sharding and `ModuleList.insert` write to a module's dictionaries."""

GRADIENTS_AT_ONCE = 64
"""Gradients that are read together: few enough that what they hold, were somebody to let go of them, is little."""

SPOOL_BYTES = 256 << 20
"""Default bytes of a rank's spool: as much as the queue in memory had, times 8 ranks 2 GiB of a node's disk."""

SPOOL_SEGMENT_BYTES = 4 << 20
"""Bytes of one segment file of a spool. It is freed, dropped and read as a whole: read, it is memory."""

SPOOL_SEGMENTS = 16
"""Least number of segments that a spool's bound is cut into: a small spool has smaller segments."""

SPOOL_RETRY_S = 60.0
"""Seconds after a disk fault before the spool is tried again: a full disk does not get empty in a second."""

LAST_WRITE_S = 0.5
"""Seconds beyond the flush timeout in which what was not sent is written to the spool: milliseconds, as a rule."""

REPLICA_SEARCHES = 20
"""Forwards in which it is looked for what replicates the model: it may be wrapped some time after it is attached."""

REPLICA_ASSIGN_EVERY = 100
"""Least steps between two looks at a replicated model's parameters: milliseconds for thousands of modules."""

REDUCED_BY_HAND = 50_000
"""Reductions of one step that are remembered, 100 bytes each: one a parameter, of loops that reduce by themselves."""

RATE_GROUPS = 16
"""Parameter groups whose learning rates are compared between ranks: a series each."""

MESH_AXES = 8
"""Axes that can be declared; trainings have up to six."""

AXIS_CHARACTERS = 40
"""Of an axis's name; more of a longer one are cut off."""

AXES_SENT = 16
"""Axes of one rank, with those that are several others joined, such as "dp_cp"."""

PLACEMENTS_SENT = 10_000
"""Parameters of a rank whose placement is sent: 500 kB of names. Of others it is not known; all are compared."""

MODULE_CLASSES = 500
"""Classes of modules whose source is sent: each is some 150 bytes, and a model of thousands of modules has dozens."""

MODULES_SENT = 2_000
"""Modules of which is sent which class they are of, where several classes have one name."""

MODULE_SOURCE_BYTES = 256 << 10
"""Bytes of either of them: the wire takes 1 MiB of details in one event."""

BATCH_STEPS = 128
"""Last steps whose rows of data are in memory: a full step buffer, as much that it waits for a copy, and two before."""

BATCH_IDS = 1024
"""Rows of a step that are named, of `batch(ids=...)`: a rank's batch, but for the largest of contrastive losses."""

BATCH_ID_CHARACTERS = 128
"""Of the name of a row, which may be a file's path."""

BATCH_LOSSES = 16_384
"""Losses of the rows of one call that are looked at: 64 KiB a step, in memory that is pinned for a GPU."""

BATCH_LARGEST = 8
"""Rows with the largest losses of a step that are sent with them."""

BATCH_EVENTS, BATCH_EVENT_STEPS = 64, 1024
"""Steps whose rows are sent, out of so many: where each loss is a spike none is news."""

BATCH_EVENTS_IN_ALL = 2048
"""The same of a process: each may be 10 KB, and in the database they stay."""

BATCH_HISTORY, BATCH_HISTORY_LEAST = 64, 16
"""Values of a loss or gradient that show what is usual, and how many are needed."""

ATTENTION_HEADS = 256
"""Heads of an attention whose largest logits are recorded, a tensor each."""

SCALED_OPERANDS = 16_384
"""Operands that are cast by scales, of which the scales are recorded: as many as one event names."""

SCALES_FRACTION, SCALES_BURST = 0.005, 4
"""Of the training's time that reading scales may take on average, by `scales_every=0`; and how many readings may be
ahead of that where something is not as usual."""

CAST_FORMATS_FRACTION, CAST_FORMATS_EVERY = 0.002, 64
"""The same of readings of what is left of an operand in the format that it is cast to; steps between two of them."""

ENTROPY_EVERY = 10
"""Steps between two readings of routers' entropy: a softmax of 1,024 tokens each, where counts are one pass."""

WHATIF_FRACTION, WHATIF_STEP_FRACTION = 0.0035, 0.25
"""Of the training's time that what-if readings on a schedule may take: on average, and of a step that has any. By a
clock that does not see the caches which a reading empties: with them it is half a percent (bench/whatif.py)."""

DECLARED_FORMATS = 256
"""Of `attach(formats={...})`."""

FORMATS_FRACTION, FORMATS_EVERY = 0.02, 10
"""The same of readings of formats that are said to be in use, which are in steps so far apart at least."""

WHATIF_REQUEST_STEPS = 20
"""Steps that the tensors which somebody asked for have to be read in; some may not be read at all."""

STDERR_BYTES = 64 << 10
"""Bytes at the end of stderr that are looked at."""

STDERR_WRITE_BYTES = 8 << 10
"""Of one write: of a longer one the end. A traceback comes in many writes, a printed tensor in one."""

STDERR_LINES, STDERR_LINE_CHARACTERS, STDERR_CHARACTERS = 200, 500, 16_000
"""Last lines that are sent, of one line, and of all: the traceback of a deep model has some hundred lines."""

STDERR_EVERY_S = 30.0
"""Seconds between two times that they are sent while training goes on: 1,024 ranks are 34 events a second."""

STDERR_LOCK_S = 0.02
"""Seconds that a write to stderr waits for another thread's to be copied, which takes microseconds."""

STDERR_READ_S = 2.0
"""Seconds that the file behind stderr is waited for: it may be on a network file system that has gone away."""

MIRROR_EVERY_S, MIRROR_PAUSE_S = 1.0, 60.0
"""Seconds between two rows that an experiment tracker is given; and at most, after it has refused some."""

MIRROR_SHARE, MIRROR_REST_S = 0.005, 60.0
"""Of one core's time that writing to a tracker may take: the next row waits for longer where one took more. And seconds
that it waits at most, which a row of 0.3 s of processor time reaches."""

MIRROR_FIRST_REST_S = 10.0
"""The same after the first row: the link to the run, what is imported and the database that is opened come once."""

MIRROR_ALERTS = 200
"""Alerts of one process that it is given: W&B and MLflow get all of them anew with each."""

MIRROR_LAST_S = 2.0
"""Seconds that the end of a run waits for a tracker to take the last row."""
