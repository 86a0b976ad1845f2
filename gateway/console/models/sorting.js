// Models in the order and the words of the page. Pure.
import { bytes, seconds } from "../ui/parts.js";

const IN_MEMORY = new Set(["loaded", "loading", "draining"]);

/** In memory or on the way there; and all others. Within each by name, so that no row jumps when its state changes. */
export function parted(models) {
  const byName = [...models].sort((a, b) => a.id.localeCompare(b.id, undefined, { numeric: true }));
  return { present: byName.filter((model) => IN_MEMORY.has(model.state)), absent: byName.filter((model) => !IN_MEMORY.has(model.state)) };
}

const LONGEST = 90; // characters of a short reason

/** Why a model failed, in few words: without places and what follows the first sentence. */
export function reasonOf({ why_failed: why }) {
  const words = (why ?? "").replaceAll(/(?:\/[^\s:,]+)+\/?:?\s?/g, "").replace(/^[^:]{1,60}\.(?:gguf|json|safetensors):\s*/, "").replace(/^(?:\S+\.gguf )?is not a usable GGUF file: /, "").trim();
  const first = /^.*?(?=[.;](?:\s|$)|\n|$)/s.exec(words)[0];
  return first.length > LONGEST ? `${first.slice(0, LONGEST - 1)}…` : first || "It failed";
}

/** Models that failed, together where they did for the same reason but for numbers and names. @returns {[string, object[]][]} */
export function failedGroups(models) {
  const groups = new Map();
  for (const model of models) {
    const reason = reasonOf(model);
    const key = reason.replaceAll(/\d+(?:\.\d+)?/g, "#").replaceAll(model.id, "");
    groups.set(key, [...(groups.get(key) ?? []), [reason, model]]);
  }
  return [...groups.values()].map((list) => [list[0][0], list.map(([, model]) => model)]).sort((a, b) => b[1].length - a[1].length);
}

export const VIEWS = {
  all: () => true,
  memory: (model) => IN_MEMORY.has(model.state),
  fits: (model) => model.fit?.verdict === "fits",
  failed: (model) => model.state === "failed",
};

/** What a load now would mean, and how good that is. @returns {[string, "good" | "warn" | "bad" | ""]} */
export function fitWords(fit) {
  switch (fit?.verdict) {
    case "fits": return ["fits", "good"];
    case "fits_after": return [`fits after unloading ${fit.unload.join(", ")}`, "warn"];
    case "too_large": return ["doesn’t fit", "bad"];
    case "remote": return ["on another server", ""];
    case "loaded": return ["in memory", "good"];
    default: return ["not known whether it fits", ""];
  }
}

/** How fast it would be, if a token reads all of its weights. */
export const speedWords = ({ speed }) => (speed ? `about ${speed < 10 ? speed.toFixed(1) : Math.round(speed)} tok/s` : "");

/** What a model does, and until when. @param {number} now Unix seconds, by the server's clock */
export function doing(model, now) {
  if (model.state === "loading") return loadingWords(model);
  if (model.state === "draining") return `Leaving once ${model.in_use === 1 ? "its answer has" : `its ${model.in_use} answers have`} ended`;
  if (model.state !== "loaded") return null;
  const parts = [];
  if (model.in_use) parts.push(model.slots ? `${model.in_use} of ${model.slots} slots busy` : `${model.in_use} in use`);
  if (model.waiting) parts.push(`${model.waiting} waiting`);
  if (!parts.length) parts.push("idle");
  parts.push(leaving(model, now));
  return parts.filter(Boolean).join(", ");
}

function leaving(model, now) {
  if (model.pinned) return "stays";
  if (model.expires_at !== null && now) return `goes in ${seconds(Math.max(0, model.expires_at - now))}`;
  return model.ttl < 0 ? "stays until its memory is needed" : null;
}

function loadingWords({ progress }) {
  if (!progress?.total) return "Loading";
  const left = progress.seconds_left === null ? "" : `, about ${seconds(progress.seconds_left)} left`;
  const stage = progress.stage === "weights" ? "" : `${progress.stage}: `;
  return `${stage}${bytes(progress.done)} of ${bytes(progress.total)}${left}`;
}
