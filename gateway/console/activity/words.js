// What a request waits for or does, in words, and its dot.

const OUTCOMES = { ok: ["done", "good"], left: ["client left", ""], cancelled: ["cancelled", "warn"], send_timeout: ["client read nothing", "warn"] };

/** @returns {[string, string]} */
export function words({ state, place, percent, outcome }) {
  if (state === "queued") return [place ? `waiting, ${ordinal(place)} in line` : "waiting", "waiting"];
  if (state === "loading") return [percent === null ? "model loads" : `model loads, ${percent} %`, "loading"];
  if (state === "prompt" && place) return [`waits for another's prompt, ${ordinal(place)} in line`, "waiting"];
  if (state === "prompt") return [percent === null ? "reads the prompt" : `reads the prompt, ${percent} %`, "live"];
  if (state === "answering") return ["answers", "live"];
  const [text, kind] = OUTCOMES[outcome] ?? [String(outcome).replaceAll("_", " "), "bad"];
  return [text, { good: "", warn: "draining", bad: "failed" }[kind] ?? ""];
}

const ordinal = (number) => `${number}${["th", "st", "nd", "rd"][number % 100 > 10 && number % 100 < 14 ? 0 : number % 10] ?? "th"}`;
