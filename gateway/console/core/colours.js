// A colour for each model, the same on every page: given in the order in which models are first drawn.

const HUES = 8; // of --model-0 … --model-7 in style/tokens.css
const given = new Map();

/** The number of a model's colour. @param {string} model */
export function hue(model) {
  if (!given.has(model)) given.set(model, given.size % HUES);
  return given.get(model);
}

/** As a value of a style. */
export const colour = (model) => `var(--model-${hue(model)})`;

/** As canvases want it: worked out for the theme in force. */
export function resolved(value) {
  const probe = document.createElement("span");
  probe.style.color = value;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
