// The one list of pages. A new page is a file here and a line below.

import agent from "./agent.js";
import alerts from "./alerts.js";
import collectives from "./collectives.js";
import environment from "./environment.js";
import gpu from "./gpu.js";
import gpus from "./gpus.js";
import hang from "./hang.js";
import layers from "./layers.js";
import lossScale from "./loss_scale.js";
import overview from "./overview.js";
import runs from "./runs.js";
import step from "./step.js";
import tensor from "./tensor.js";

/** A place within a page: it is come to by a click on a cell or a name. @param {import("../types.js").Page} page @param {string} under */
const within = (page, under) => ({ ...page, under, isListed: () => false });

/** In the order of the navigation. @type {readonly import("../types.js").Page[]} */
export const PAGES = [runs, overview, layers, lossScale, collectives, gpus, hang, environment, alerts, agent, within(tensor, "layers"), within(step, "layers"), gpu];
