// The list of all pages. A new page is a module in a folder here that exports its entry (`runPage`), and its name below. What
// pages share is in the widgets, or in their folder.

import agent from "./agent/agent.js";
import alerts from "./alerts/alerts.js";
import compare from "./compare/compare.js";
import collectives from "./collectives/collectives.js";
import environment from "./environment/environment.js";
import experts from "./layers/experts.js";
import gpuTimeline from "./gpus/gpu_timeline.js";
import gpus from "./gpus/gpus.js";
import hang from "./collectives/hang.js";
import layers from "./layers/layers.js";
import lossScale from "./precision/loss_scale.js";
import overview from "./overview/overview.js";
import scales from "./precision/scales.js";
import runs from "./runs/runs.js";
import step from "./step/step.js";
import tensor from "./tensor/tensor.js";
import whatif from "./precision/whatif.js";

/** In the order of the navigation. @type {readonly import("../types.js").Page[]} */
export const PAGES = [runs, compare, overview, layers, lossScale, scales, whatif, experts, collectives, gpus, hang, environment, alerts, agent, tensor, step, gpuTimeline];
