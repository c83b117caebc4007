// The list of all pages. A new page is a folder here and a line below.

import agent from "./agent/agent.js";
import alerts from "./alerts/alerts.js";
import collectives from "./collectives/collectives.js";
import environment from "./environment/environment.js";
import gpu from "./gpu/gpu.js";
import gpus from "./gpus/gpus.js";
import hang from "./hang/hang.js";
import layers from "./layers/layers.js";
import lossScale from "./loss_scale/loss_scale.js";
import overview from "./overview/overview.js";
import runs from "./runs/runs.js";
import step from "./step/step.js";
import tensor from "./tensor/tensor.js";

/** A place within a page: it is come to by a click on a cell or a name. @param {import("../types.js").Page} page @param {string} under */
const within = (page, under) => ({ ...page, under, isListed: () => false });

/** In the order of the navigation. @type {readonly import("../types.js").Page[]} */
export const PAGES = [runs, overview, layers, lossScale, collectives, gpus, hang, environment, alerts, agent, within(tensor, "layers"), within(step, "layers"), gpu];
