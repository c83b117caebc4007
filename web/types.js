// The types of the server's answers and of what pages hand to each other. docs/api.md is the contract.

/** @typedef {"live" | "hung" | "finished" | "failed" | "died" | "terminated" | "interrupted" | "stale" | "empty" | "unreadable"} RunState */
/** @typedef {{bits: number | null, state: string, step: number, rank: number, tensor: number, label: string}} LeastHeadroom */
/**
 * @typedef {object} RunSummary
 * @property {number} id
 * @property {string} name
 * @property {string} title shown for the name, where there is one
 * @property {string[]} tags
 * @property {boolean} archived
 * @property {Record<string, number>} [alerts] severity -> how many stand
 * @property {{level: string, label: string | null, summary: string | null}} [headline] the gravest open finding
 * @property {RunState} state
 * @property {string | null} [reason] why a run that failed or died has ended
 * @property {number} ranks_reporting
 * @property {number} world_size
 * @property {number | null} first_step
 * @property {number | null} last_step
 * @property {number | null} loss_scale
 * @property {number | null} skipped_steps
 * @property {number} started_ns
 * @property {number} last_seen_ns
 * @property {LeastHeadroom | null} least_headroom
 * @property {(number | null)[]} sparkline
 * @property {RunLoss | null} [loss] in the list of runs
 */
/** @typedef {{last: number | null, step: number | null, values: (number | null)[], bad: number[]}} RunLoss the newest, and some 60 over the run; `bad`: which of them hold NaN or Inf */
/**
 * @typedef {object} RankInfo
 * @property {number} rank
 * @property {string} state
 * @property {string} host
 * @property {number} local_rank
 * @property {Record<string, number>} [coordinates] axis of the mesh -> place along it, of those that are known
 * @property {number} incarnation
 * @property {number | null} last_step
 * @property {number} last_seen_ns
 * @property {string} device
 * @property {number} [also_live] other live processes that claim this rank
 * @property {string[]} [also_live_hosts] the host of each
 * @property {Record<string, unknown>} dropped
 * @property {Record<string, unknown>} faults
 * @property {Record<string, string>} not_observed
 * @property {Record<string, string>} [not_fused]
 * @property {string | null} level
 * @property {string | null} failure what the training raised, if it ended so
 */
/**
 * @typedef {object} Verdict
 * @property {string} level `critical`, `warning`, `ok` or `empty`
 * @property {[string, string][]} parts kind and text
 * @property {{label: string, path: string}[]} links
 * @property {string[]} [chain] what it led to
 * @property {{text: string, code: string} | null} [fix]
 * @property {{severity: string, label: string, path: string}[]} [others] other open findings
 * @property {number} [more] open findings that are not among them
 * @property {{rule: string, severity: string, rank: number | null, step: number | null, summary?: string}[]} [findings] what is open above info, that of the sentence first
 */
/** @typedef {{step: number, rank: number, tensor: number, fqn: string, kind: string, index: number, what: string}} FirstOverflow */
/**
 * @typedef {object} RunDetail
 * @property {StatisticChoice[]} [derived] what a heatmap can show of it
 * @property {string} [default_statistic] what a heatmap of layers shows where nothing is chosen
 * @property {number} [now_ns]
 * @property {string} note what people wrote of it
 * @property {RankInfo[]} ranks
 * @property {number[]} missing_ranks
 * @property {RunMesh} [mesh]
 * @property {Verdict} verdict
 * @property {FirstOverflow | null} first_overflow
 * @property {string[]} kinds
 * @property {string[]} series
 * @property {number | null} step_time_s
 * @property {Goodput | null} [goodput]
 * @property {Mfu | null} [mfu]
 * @property {string | null} [hang] why the run does not advance, in a sentence
 * @property {string | null} [death] which ranks ended without a goodbye, and how, as text
 * @property {Death[]} [deaths]
 */
/** @typedef {{name: string, title: string, aka: string, help: string}} StatisticChoice */
/** @typedef {{source: string | null, axes: {name: string, size: number, is_joined: boolean}[], problems: {text: string, ranks: number[]}[]}} RunMesh the outermost axis first */
/** @typedef {{parameter: string, state: "compared" | "never" | "parts" | "unknown", alike: string[], unknown_axes: string[], step: number | null, gradient_step: number | null}} ReplicaParameter */
/** @typedef {{stop: number, parameters: ReplicaParameter[], counts: Partial<Record<ReplicaParameter["state"], number>>, oldest_step: number | null}} Replicas */
/** @typedef {{rank: number, state: string, text: string, step: number | null, stack: string}} Death */
/** @typedef {{rank: number, ranks: number[], host: string, is_recorded: boolean, lines: string[], source: string, path: string, is_cut: boolean, shared_with: number[], step: number | null, time_ns: number | null, note: string}} StderrTail */
/** @typedef {RunSummary & RunDetail} Run */
/** @typedef {{title?: string, tags?: string[], note?: string, archived?: boolean}} RunChange */
/** @typedef {{now_ns: number, address: string, runs: RunSummary[], next: number | null, total: number, of_newest?: number | null}} RunList */
/**
 * @typedef {object} Tensor
 * @property {number} tensor
 * @property {string} label
 * @property {string} fqn
 * @property {string} kind
 * @property {number} index
 * @property {string} module
 * @property {string | null} [module_class] with its Python module; null where it is not known
 * @property {string | null} [source] file:line of its forward
 * @property {string} dtype
 * @property {number[]} shape
 * @property {number} call_index
 * @property {number} max_finite
 * @property {number} smallest_normal
 */
/**
 * @typedef {object} FrameValues
 * @property {number} call_count
 * @property {number | null} numel
 * @property {number | null} amax
 * @property {number | null} amin
 * @property {boolean} full
 * @property {number | null} nan_count
 * @property {number | null} inf_count
 * @property {number | null} nonfinite_ns into the step, when NaN or Inf was first seen here, if that is known
 * @property {number | null} headroom_bits
 * @property {number | null} floor_room_bits
 * @property {string} state
 * @property {string} what
 */
/** @typedef {Tensor & FrameValues} Frame */
/** @typedef {{row: number | string, loss: number | string}} RowLoss where it is not finite a text */
/**
 * @typedef {object} BatchRows rows of the data that a step was made of
 * @property {(number | string)[]} [ids] the first of them
 * @property {number} [count]
 * @property {number} [microbatches]
 * @property {RowLoss[]} [largest]
 * @property {number | null} [median]
 * @property {number} [loss_count]
 */
/**
 * @typedef {object} StepAnswer
 * @property {number} step
 * @property {number} rank
 * @property {number} first_step
 * @property {number} last_step
 * @property {number[]} ranks
 * @property {boolean} observed
 * @property {number | null} loss
 * @property {string | null} loss_state
 * @property {number | null} loss_scale
 * @property {boolean | null} found_inf
 * @property {boolean | null} skipped
 * @property {number | null} step_time_s
 * @property {{step: number, steps: number} | null} thinned how it is stored, where retention has merged it with others
 * @property {BatchRows | null} [batch]
 * @property {Frame[]} frames in call order
 * @property {number | null} first_nonfinite index of the frame that was bad first, which call order alone does not show
 * @property {number | null} previous_nonfinite_step
 * @property {number | null} next_nonfinite_step
 * @property {string} report
 */
/** @typedef {{label: string, count: number, tensor: number | null, tensors: [number, number] | null, rank: number | null, place?: string}} HeatmapRow `place`: of a single rank on the mesh */
/** @typedef {{dtype: string, bdata: string, shape?: string}} TypedArraySpec */
/**
 * @typedef {object} FigureMeta
 * @property {number} start
 * @property {number} stop
 * @property {number} steps_per_column
 * @property {string} note
 * @property {string} [unit] of the values; "": they have none
 * @property {HeatmapRow[]} [rows]
 * @property {HeatmapRow[]} [tensors] of `ranks`, its columns
 * @property {TypedArraySpec} [states]
 * @property {string[]} [closed] modules that the server closed, where nobody chose
 * @property {number[]} [nonfinite_columns]
 * @property {number[]} [nonfinite_steps]
 * @property {{dtype: string, max_finite: number, smallest_normal: number, smallest_subnormal: number}} [limits]
 * @property {Record<string, (number | null)[]>} [steps] of `tensor`, the exact step of each point of a line by its name
 * @property {string} [label]
 * @property {string[]} [phases] of `phases`, those that are known
 * @property {number[]} [loader_bound_ranks] of `phases`
 * @property {boolean} [loss_scaled]
 * @property {number} [observed_ranks] of `percentiles`
 * @property {{rank: number, part: string, level: number, first_step: number, last_step: number}[]} [damaged]
 * @property {number} [damaged_tiles]
 */
/** One line has `x` and `y`; of a heatmap `z` is what its cells hold, in columns `dx` wide from `x0` on, or between the edges `x`. @typedef {{name: string, x?: unknown, y?: unknown, x0?: number, dx?: number, y0?: number, dy?: number, z?: unknown}} FigureData arrays are `TypedArraySpec`s or lists */
/** @typedef {{figure: {data: FigureData[]}, meta: FigureMeta}} FigureAnswer */
/** @typedef {{step: number, rank: number, tensor: number, label: string, state: string, bits: number | null}} Place */

/**
 * @typedef {object} CollectivesRow a group, op and size class
 * @property {string} group
 * @property {string} [group_hash]
 * @property {number} ranks
 * @property {string} op
 * @property {number | null} size_class_bytes
 * @property {number} count
 * @property {number} [timed_count] with a known duration
 * @property {number | null} bytes
 * @property {boolean} [is_symmetric]
 * @property {number | null} duration_p50_s
 * @property {number | null} duration_p99_s
 * @property {number | null} duration_max_s
 * @property {number | null} algbw_bytes_per_s
 * @property {number | null} busbw_bytes_per_s
 * @property {number | null} wait_p50_s
 * @property {number | null} wait_p99_s
 */
/** @typedef {{rank: number, share: number, wall_s: number, counted_s: number, skipped_s: number, other_s: number, skipped_steps: number, replayed_steps: number, starts: number}} Goodput */
/** @typedef {{rank: number, share: number | null, flops_per_step: number | null, peak_flops: number | null, device: string, source: string, step_time_s: number | null}} Mfu */
/** @typedef {{rank: number, rung: string, why: string}} TimingSource how a rank times its collectives */
/** @typedef {{rank: number | null, host?: string | null, ranks?: number[], class: string, where: string, cost_s: number, share: number, since_step: number, text: string}} WaitVerdict */
/** @typedef {{rank: number, last_share: number | null, cost_to_others_s: number | null, cost_s: number | null, stands_out?: boolean, wait_s: number | null}} RankWaits means a step */
/** @typedef {{sentence?: string, step: number, sequence: number, [name: string]: unknown}} Desync */
/**
 * @typedef {object} Collectives
 * @property {number} start
 * @property {number} stop
 * @property {number[]} ranks
 * @property {TimingSource[]} sources
 * @property {CollectivesRow[]} table
 * @property {Record<string, number>} left_out by op
 * @property {number | null} coverage share of the durations that are known
 * @property {Desync[]} [desyncs]
 * @property {number[]} steps
 * @property {(number | null)[][]} cost_to_others_s a row a rank, a column a step
 * @property {(number | null)[][]} wait_s
 * @property {RankWaits[]} by_rank
 * @property {WaitVerdict | null} verdict
 * @property {string | null} why_no_verdict
 */
/**
 * @typedef {object} Call one collective of one rank
 * @property {string} group
 * @property {string} op
 * @property {string | null} dtype
 * @property {number | null} bytes
 * @property {number} sequence
 * @property {number} begin_s since that rank's own first of the step
 * @property {number | null} duration_s
 * @property {number | null} wait_s
 * @property {number | null} bucket
 * @property {string[]} parameters
 * @property {boolean} [is_desync]
 */
/** @typedef {{rank: number, collectives: Call[]}} RankCalls */
/** @typedef {{step: number | null, first_step: number, last_step: number | null, ranks: RankCalls[]}} StepCalls */
/** @typedef {{host: string | null, local_ranks: number[], ranks: number[], values: (number | null)[]}} RankNode `host` null: ranks that have not reported */
/** @typedef {{rank: number, host: string, value: number, score: number}} RankOutlier */
/** @typedef {{count: number, median: number | null, p5: number | null, p95: number | null}} RankSpread */
/**
 * @typedef {object} RankMap
 * @property {string} measure
 * @property {string} title
 * @property {string} unit as the end of a column's name
 * @property {"most" | "least"} worst
 * @property {boolean} is_of_steps of the range, and not of now
 * @property {number} start
 * @property {number} stop
 * @property {{name: string, title: string}[]} measures
 * @property {{calm: number, hot: number, is_log: boolean}} scale
 * @property {RankNode[]} nodes
 * @property {number} rank_count
 * @property {number} known_count
 * @property {RankOutlier[]} outliers the worst first
 * @property {number} outlier_count
 * @property {RankSpread} others
 */
/** @typedef {{file: string, line: number, function: string}} CodeLine */
/** @typedef {{op: string, bytes: number | null, dtype: string, ranks: number[]}} CalledSide what some ranks called, where others called something else */
/** @typedef {{sequence: number, op: string, bytes: number | null, dtype: string, waited_s: number}} WaitedFor */
/**
 * @typedef {object} HangGroup
 * @property {string} group
 * @property {number[]} ranks
 * @property {string | null} op
 * @property {number | null} bytes
 * @property {string | null} [dtype]
 * @property {number | null} sequence
 * @property {Record<string, number | null>} last_enqueued by rank
 * @property {Record<string, number | null>} last_completed by rank
 * @property {number[]} missing
 */
/**
 * @typedef {object} HangRank
 * @property {number} rank
 * @property {string} role missing, waiting or other
 * @property {boolean} is_silent
 * @property {boolean} has_ended
 * @property {boolean} is_in_data_loader
 * @property {number | null} silent_s
 * @property {number} last_step -1 before the first
 * @property {WaitedFor | null} waits_for
 * @property {CodeLine | null} where
 * @property {string | null} stacks
 * @property {Record<string, number | null> | null} gpu its newest values
 */
/**
 * @typedef {object} Hang
 * @property {string} text
 * @property {string} kind the cause: mismatch, silent, ended, data loader, absent, order, communication, undecided or busy
 * @property {string} [class] communication hang or non-communication hang
 * @property {number | null} since_ns
 * @property {number | null} step
 * @property {number[]} [culprits]
 * @property {number[]} missing
 * @property {number[]} silent
 * @property {number[]} waiting
 * @property {HangGroup[]} groups
 * @property {CalledSide[]} mismatch
 * @property {HangRank[]} ranks
 */
/** @typedef {{hang: Hang | null, checked_ns: number}} HangAnswer */
/** @typedef {"gone" | "alarm" | "slowed" | "stale" | "ok"} GpuState */
/** @typedef {Record<string, number | null>} Values by column; null where not known or not supported */
/**
 * @typedef {object} Gpu
 * @property {number} rank
 * @property {string} key the card's UUID
 * @property {string | null} name
 * @property {string} host
 * @property {number | null} device_index
 * @property {GpuState} state
 * @property {string[]} why
 * @property {number} time_ns
 * @property {number | null} step
 * @property {Values} values
 * @property {Record<string, any>} about
 */
/** @typedef {{rank: number, host: string, time_ns: number, values: Values, about: Record<string, any>}} HostSample */
/** @typedef {{gpus: Gpu[], hosts: HostSample[], notes: {rank: number, message: string}[], throttle_reasons?: Record<string, string>, now_ns: number}} Gpus */
/** @typedef {{rank?: number, time_ns: number, step: number, kind: string, message: string, data: Record<string, any>}} GpuEvent */
/**
 * @typedef {object} GpuLanes
 * @property {number} rank
 * @property {string} key
 * @property {Record<string, any>} about
 * @property {number[]} times_ns
 * @property {(number | null)[]} steps
 * @property {Record<string, (number | null)[]>} values
 * @property {Record<string, string>} merge
 * @property {GpuEvent[]} events
 */
/** @typedef {{code: string, severity: string, what: string, why: string, do: string, where: string}} Finding */
/** @typedef {{rank: number, host: string, facts: Record<string, any>, findings: Finding[]}} RankEnvironment */
/** @typedef {{a: number, b: number, ok: boolean | null, slow: boolean, latency_s: number | null, busbw_bytes_per_s: number | null, error: string}} LinkPair */
/** @typedef {{rank: number, host: string, local_rank: number | null, device: string, ok: boolean, fault: string, error: string}} LinkRank */
/**
 * @typedef {object} Linkcheck a result of `rangewatch linkcheck`; what was sent may lack any of it
 * @property {boolean} ok
 * @property {number} time_ns
 * @property {number} [world_size]
 * @property {string} [backend]
 * @property {string} [backend_reason]
 * @property {string} [nccl_error]
 * @property {number} [duration_s]
 * @property {number} [message_bytes]
 * @property {number[]} [bad_ranks]
 * @property {[number, number][]} [bad_pairs]
 * @property {[number, number][]} [slow_pairs]
 * @property {number[][]} [bad_groups]
 * @property {[string, string][]} [bad_hosts]
 * @property {LinkPair[]} [pairs]
 * @property {number} [pairs_left_out]
 * @property {LinkRank[]} [ranks]
 */
/** @typedef {{ranks: RankEnvironment[], odd: (Finding & {ranks: number[]})[], linkcheck: Linkcheck | null}} Environment */

/**
 * @typedef {object} Module of the tree beside the layers
 * @property {string} path
 * @property {number} depth
 * @property {number} count tensors in it
 * @property {number | null} tensor the only one
 * @property {string} state the worst of any of them
 * @property {number | null} worst the worst value, on the statistic's scale
 * @property {boolean} has_children
 * @property {[number, number]} [began] first and last step of the first column that holds a NaN or Inf
 * @property {boolean} [is_first] whether no other tensor held one before
 * @property {number} hidden_children not in the list
 */
/** @typedef {{class: string | null, growth_factor: number | null, backoff_factor: number | null, growth_interval: number | null}} ScalerSettings */
/** @typedef {{name: string, min: number | null, max: number | null, last: number | null, settings?: ScalerSettings | null}} Scaler */
/** @typedef {{tensor: number, label: string, rank: number, limit_dtype: string, amax_before: number | null, headroom_before_bits: number | null}} FirstBad */
/** @typedef {{scaler: string, before: number | null, after: number | null}} ScaleChange */
/**
 * @typedef {object} ScaleDrop a step that was skipped, or after which the scale was lower
 * @property {number} step
 * @property {boolean} skipped
 * @property {string} cause
 * @property {ScaleChange[]} scales
 * @property {number[]} ranks
 * @property {number} rank_count
 * @property {FirstBad | null} first
 * @property {number} tensor_count
 */
/** @typedef {{tensor: number, label: string, first: number, overflows: number, last_step: number, amax: number | null, max_finite: number | null, dtype: string}} OverflowLayer */
/** @typedef {{survives: boolean, flushed_fraction: number, saturated_fraction: number, sqnr_db: number | null, relative_error: number, scale_log2: number | null, scale_spread_bits: number | null}} WhatIfValue */
/** @typedef {{name: string, title: string, survive: number, least_sqnr_db: number | null, modules: string[], module_count: number, code: string}} WhatIfFormat */
/** @typedef {{tensor: number, label: string, dtype: string, elements: number, formats: Record<string, WhatIfValue>}} WhatIfTensor */
/** @typedef {{start: number, stop: number, limits: {flushed_fraction: number, saturated_fraction: number, sqnr_db: number}, formats: WhatIfFormat[], tensors: WhatIfTensor[], measured: number, of: number}} WhatIf */
/** @typedef {{name: string, tensor: number, logits: number | null, experts: number, top_k: number, routed: number, tokens: number[], largest: number | null, largest_expert: number | null, unused: number, dropped_fraction: number | null, entropy_bits: number | null, logit_amax: number | null}} Router of a mixture of experts; `unused`: experts without a token */
/** @typedef {{start: number, stop: number, routers: Router[]}} Experts */
/** @typedef {{tensor: number | null, name: string, kind: string, index: number, format: string, granularity: string, scale_format: string, source: string, recipe: string, history: number, margin: number, unknown: string, state: string, headroom_bits: number | null, scale_log2: [number, number] | null, history_age: number | null, amax: number | null, saturated_fraction: number | null, flushed_fraction: number | null}} ScaledOperand that is cast to low precision by a scale */
/** @typedef {{start: number, stop: number, of: number, every: number | null, operands: ScaledOperand[]}} Scales */
/** @typedef {{start: number, stop: number, scalers: Scaler[], skipped_steps: number, drops: ScaleDrop[], next: number | null, layers: OverflowLayer[], layers_of_drops: number}} LossScale */
/** @typedef {{rank: number, state: string, first_step: number | null, last_step: number | null, reason: string, live: boolean}} CommandRank */
/**
 * @typedef {object} Command
 * @property {number} id
 * @property {string} kind
 * @property {number} [steps] of a trace
 * @property {string[]} [modules]
 * @property {number[] | null} ranks null: all
 * @property {number} created_ns
 * @property {number | null} withdrawn_ns
 * @property {CommandRank[]} states
 */
/** @typedef {{steps: number, modules: string[], ranks: number[] | null}} TraceRequest */
/** @typedef {{from: number, to: number}} Span */
/** @typedef {{name: string, bands: (Span & {style?: "warning" | "calm" | "bad"})[], marks: {at: number, text: string}[], isCalm: boolean, known?: Span[]}} BandRow `known`: where there are samples at all, if that is drawn */
/** @typedef {{rows: BandRow[], dx: number, meta: {steps_per_column: number, note: string}, isKnown: boolean}} BandModel */

/** @typedef {{start: number, stop: number}} StepRange Steps: start inclusive, stop exclusive. */
/**
 * @typedef {object} ViewState What the URL's query holds.
 * @property {number | null} start
 * @property {number | null} stop
 * @property {number | null} last The newest so many steps, however far the run goes on; null where steps are named, or all are shown
 * @property {number | null} from With `to` a part of the time axis of a GPU's lanes. Unix time, milliseconds
 * @property {number | null} to
 * @property {number | "all" | null} rank
 * @property {number | null} step
 * @property {number | null} tensor
 * @property {string[]} kinds
 * @property {string} q
 * @property {string} key UUID of a GPU, or "host"
 * @property {"" | "steps" | "time"} axis Of a GPU's lanes; "": as the samples ask for
 * @property {string} statistic "": what the server shows by itself
 * @property {"" | "step,rank" | "tensor,rank"} axes Columns and rows of the layers' figure; "": steps and tensors
 * @property {"" | "name" | "worst"} sort Of the tensors; "": in call order
 * @property {string[]} closed Modules whose rows stand together
 * @property {number | null} pin rank that is marked on every page
 * @property {string} measure what the map of ranks shows; "" as the page has it
 * @property {string} rows by which axis of the mesh the map has its rows, or "node"; "": by node
 * @property {string} columns the same of its columns; "": a column a rank
 * @property {string} fold by which of these the rows that are ranks stand together; "": none
 * @property {string[]} orders Of tables, where a reader chose another than the usual one: "table.column.up" or "table.column.down"
 * @property {string[]} lanes Of the Overview, which lanes are shown otherwise than usual: "loss.pin.log"
 * @property {string} against What to compare with: "step:N", "rank:N" or "run:N"
 */
/**
 * @typedef {object} PageContext What app.js gives a page.
 * @property {Record<string, string>} params
 * @property {ViewState} state The view as of the last change of URL.
 * @property {(patch: Partial<ViewState>, options?: {replace?: boolean}) => void} setState
 * @property {(path: string) => void} navigate
 * @property {(listener: () => void) => void} onState Called when only the query changed.
 * @property {(run: string | null, listener: () => void) => () => void} onChange Called when the run (null: any) changed.
 * @property {(text: string) => void} notify One line to the reader, for a few seconds.
 * @property {(title: string) => void} setTitle
 * @property {() => void} remount
 * @property {(run: Run) => void} updateRun The newest answer about the run, for the navigation and the pages to come.
 * @property {() => Run | null} knownRun That answer, of this page's run, where it is fresh.
 * @property {() => () => number} clock The server's, by that answer. Unix time, ns.
 */
/**
 * @typedef {object} Page What the shell derives a page from: its route, its entry in the navigation, its shortcut. `runPage` makes that of a page of a run.
 * @property {string} id
 * @property {string} title
 * @property {string} path such as "/runs/{id}/layers"
 * @property {string} [key] its letter after "g"
 * @property {string} [help] what the page shows, in a few words: the hint (title) of its entry
 * @property {string} [under] id of the page whose entry stands for this one: it is come to by a click on a cell or a name
 * @property {(run: Run) => boolean} [isAlarm] whether its entry is marked as urgent
 * @property {(run: Run) => Record<string, number>} [counts] severity -> how many stand there, beside its entry
 * @property {(root: HTMLElement, ctx: PageContext) => () => void} mount answers what unmounts it
 */
/** @typedef {{text: string, code: string, because: string}} Remedy */
/**
 * @typedef {object} RuleFinding
 * @property {string} rule
 * @property {string} severity critical, warning or info
 * @property {number | null} rank
 * @property {number | null} step
 * @property {string | null} tensor
 * @property {string | null} kind
 * @property {string} summary
 * @property {string[]} evidence
 * @property {string[]} path how it went on
 * @property {Remedy[]} remedy
 * @property {string[]} consequences
 * @property {[string, string][]} links
 */
/** @typedef {{run: string, start: number, stop: number, findings: RuleFinding[], failed: Record<string, string>}} Diagnosis */
/**
 * @typedef {object} Alert
 * @property {number} id
 * @property {number} run_id
 * @property {string} run
 * @property {number} opened_ns
 * @property {number | null} resolved_ns
 * @property {number | null} resolved_step
 * @property {number | null} acknowledged_ns
 * @property {string} acknowledged_by
 * @property {number | null} silenced_by
 * @property {string} [label] what the finding is called in a few words; a server before this one does not say it
 * @property {RuleFinding} finding
 */
/** @typedef {{now_ns: number, alerts: Alert[], next: number | null}} AlertList */
/** @typedef {{name: string, default: number, unit: string, help: string}} Threshold */
/** @typedef {{name: string, title: string, severity: string, explanation: string, thresholds: Threshold[]}} RuleInfo */
/** @typedef {{name: string, title: string, help: string, thresholds: RuleTables}} Preset */
/** @typedef {{id: number, run_id: number | null, rule: string, tensor: string, reason: string, created_by: string, until_ns: number}} Silence */
/** @typedef {{name: string, kind: string, severity: string, resolved: boolean}} Target */
/** @typedef {Record<string, Record<string, number | boolean>>} RuleTables */
/** @typedef {{file: RuleTables, run: RuleTables, in_force: RuleTables, defaults: RuleTables}} Thresholds */

export {};
