// The sampling parameters as people know them: their words, and how far a slider goes. What an engine does with each is
// the server's to say; what it has and this table doesn't is listed behind them all the same.

/** @typedef {{name: string, label: string, from?: number, to?: number, step?: number, hint?: string}} Parameter */

/** @type {{title: string, isOpen: boolean, parameters: Parameter[]}[]} */
export const GROUPS = [
  { title: "Sampling", isOpen: true, parameters: [
    { name: "temperature", label: "Temperature", from: 0, to: 2, step: 0.05 },
    { name: "top_p", label: "Top P", from: 0, to: 1, step: 0.01 },
    { name: "top_k", label: "Top K", from: 0, to: 200, step: 1, hint: "0: all" },
    { name: "min_p", label: "Min P", from: 0, to: 1, step: 0.01 },
    { name: "seed", label: "Seed", step: 1, hint: "any" },
  ] },
  { title: "Repetition", isOpen: false, parameters: [
    { name: "repetition_penalty", label: "Repetition penalty", from: 0.8, to: 2, step: 0.01 },
    { name: "frequency_penalty", label: "Frequency penalty", from: -2, to: 2, step: 0.05 },
    { name: "presence_penalty", label: "Presence penalty", from: -2, to: 2, step: 0.05 },
    { name: "penalty_range", label: "Penalty range", step: 1, hint: "−1: all" },
    { name: "dry_multiplier", label: "DRY multiplier", from: 0, to: 5, step: 0.05 },
    { name: "dry_base", label: "DRY base", from: 1, to: 4, step: 0.05 },
    { name: "dry_allowed_length", label: "DRY allowed length", from: 1, to: 20, step: 1 },
    { name: "dry_range", label: "DRY range", step: 1, hint: "−1: all" },
  ] },
  { title: "Further samplers", isOpen: false, parameters: [
    { name: "typical_p", label: "Typical P", from: 0, to: 1, step: 0.01 },
    { name: "tfs", label: "Tail free", from: 0, to: 1, step: 0.01 },
    { name: "top_a", label: "Top A", from: 0, to: 1, step: 0.01 },
    { name: "top_n_sigma", label: "Top nσ", from: 0, to: 5, step: 0.1 },
    { name: "xtc_probability", label: "XTC probability", from: 0, to: 1, step: 0.01 },
    { name: "xtc_threshold", label: "XTC threshold", from: 0, to: 0.5, step: 0.01 },
    { name: "min_temp", label: "Dynamic, lowest", from: 0, to: 3, step: 0.05 },
    { name: "max_temp", label: "Dynamic, highest", from: 0, to: 3, step: 0.05 },
    { name: "smoothing_factor", label: "Smoothing factor", from: 0, to: 10, step: 0.1 },
    { name: "smoothing_curve", label: "Smoothing curve", from: 0, to: 10, step: 0.1 },
    { name: "skew", label: "Skew", from: -5, to: 5, step: 0.1 },
    { name: "mirostat_mode", label: "Mirostat", from: 0, to: 2, step: 1 },
    { name: "mirostat_tau", label: "Mirostat τ", from: 0, to: 10, step: 0.1 },
    { name: "mirostat_eta", label: "Mirostat η", from: 0, to: 1, step: 0.01 },
    { name: "adaptive_target", label: "Adaptive target", from: -1, to: 1, step: 0.01, hint: "below 0: off" },
    { name: "adaptive_decay", label: "Adaptive decay", from: 0, to: 1, step: 0.01 },
  ] },
];

const LISTED = new Set(GROUPS.flatMap((group) => group.parameters.map((one) => one.name)));

/** What the engine has beyond the table, if its value is a number. */
export const unlisted = (known) => known.filter((one) => !LISTED.has(one.name) && typeof one.default === "number")
  .map((one) => ({ name: one.name, label: one.name.replaceAll("_", " "), step: Number.isInteger(one.default) ? 1 : 0.01 }));
