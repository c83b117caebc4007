// The shapes of the server's answers and of what pages hand to each other. docs/api.md is the contract.

/** @typedef {"live" | "finished" | "failed" | "stale" | "empty"} RunState */
/** @typedef {{bits: number | null, state: string, step: number, rank: number, tensor: number, label: string}} LeastHeadroom */
/**
 * @typedef {object} RunSummary
 * @property {number} id
 * @property {string} name
 * @property {RunState} state
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
 */
/**
 * @typedef {object} RankInfo
 * @property {number} rank
 * @property {string} state
 * @property {string} host
 * @property {number} local_rank
 * @property {number} incarnation
 * @property {number | null} last_step
 * @property {number} last_seen_ns
 * @property {string} device
 * @property {number} [also_live] other live processes that claim this rank
 * @property {Record<string, unknown>} dropped
 * @property {Record<string, unknown>} faults
 * @property {Record<string, string>} not_observed
 * @property {Record<string, string>} [not_fused]
 * @property {string | null} level
 * @property {string | null} failure what the training raised, if it ended so
 */
/** @typedef {{level: string, parts: [string, string][], links: {label: string, path: string}[]}} Verdict */
/** @typedef {{step: number, rank: number, tensor: number, fqn: string, kind: string, index: number, what: string}} FirstOverflow */
/**
 * @typedef {object} RunDetail
 * @property {number} [now_ns]
 * @property {RankInfo[]} ranks
 * @property {number[]} missing_ranks
 * @property {Verdict} verdict
 * @property {FirstOverflow | null} first_overflow
 * @property {string[]} kinds
 * @property {string[]} series
 * @property {number | null} step_time_s
 */
/** @typedef {RunSummary & RunDetail} Run */
/** @typedef {{now_ns: number, address: string, runs: RunSummary[], next: number | null}} RunList */
/**
 * @typedef {object} Tensor
 * @property {number} tensor
 * @property {string} label
 * @property {string} fqn
 * @property {string} kind
 * @property {number} index
 * @property {string} module
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
 * @property {{step: number, steps: number} | null} thinned how it is kept, where retention has merged it with others
 * @property {Frame[]} frames in call order
 * @property {number | null} first_nonfinite index of the frame that was bad first, which call order alone does not tell
 * @property {number | null} previous_nonfinite_step
 * @property {number | null} next_nonfinite_step
 * @property {string} report
 */
/** @typedef {{label: string, count: number, tensor: number | null, tensors: [number, number] | null, rank: number | null}} HeatmapRow */
/** @typedef {{dtype: string, bdata: string, shape?: string}} TypedArraySpec */
/**
 * @typedef {object} FigureMeta
 * @property {number} start
 * @property {number} stop
 * @property {number} steps_per_column
 * @property {string} note
 * @property {HeatmapRow[]} [rows]
 * @property {HeatmapRow[]} [tensors] of `ranks`, its columns
 * @property {TypedArraySpec} [states]
 * @property {number[]} [nonfinite_columns]
 * @property {number[]} [nonfinite_steps]
 * @property {{dtype: string, max_finite: number, smallest_normal: number, smallest_subnormal: number}} [limits]
 * @property {string} [label]
 * @property {boolean} [loss_scaled]
 * @property {{rank: number, part: string, level: number, first_step: number, last_step: number}[]} [damaged]
 * @property {number} [damaged_tiles]
 */
/** @typedef {{figure: {data: any[], layout: object}, meta: FigureMeta}} FigureAnswer */
/** @typedef {{step: number, rank: number, tensor: number, label: string, state: string, bits: number | null}} Place */

/** @typedef {{start: number, stop: number}} StepRange Steps: start inclusive, stop exclusive. */
/**
 * @typedef {object} ViewState What the URL's query holds.
 * @property {number | null} start
 * @property {number | null} stop
 * @property {number | "all" | null} rank
 * @property {number | null} step
 * @property {number | null} tensor
 * @property {string[]} kinds
 * @property {string} q
 */
/**
 * @typedef {object} PageContext What app.js gives a page.
 * @property {Record<string, string>} params
 * @property {ViewState} state The view as of the last change of URL.
 * @property {(patch: Partial<ViewState>, options?: {replace?: boolean}) => void} setState
 * @property {(path: string) => void} navigate
 * @property {(listener: () => void) => void} onState Called when only the query changed.
 * @property {(run: string | null, listener: () => void) => () => void} onChange Called when the run (null: any) changed.
 * @property {(text: string) => void} say One line to the reader, for a few seconds.
 * @property {(title: string) => void} setTitle
 * @property {() => void} remount
 */
/** @typedef {{id: string, title: string, path: string, mount: (root: HTMLElement, ctx: PageContext) => () => void}} Page */

export {};
