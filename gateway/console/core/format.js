// Numbers as people read them. Every function takes null for "not known" and says it with a dash.

const NONE = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** Bytes in the powers of 1024 that the server's own messages use: "4.20 GiB". */
export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let amount = Math.abs(value), unit = 0;
  while (amount >= 999.5 && unit < units.length - 1) { amount /= 1024; unit += 1; }
  const digits = unit === 0 || amount >= 100 ? 0 : amount >= 10 ? 1 : 2;
  return `${value < 0 ? "−" : ""}${amount.toFixed(digits)} ${units[unit]}`;
}

/** Seconds, at the precision that matters: "42 ms", "3.1 s", "4 min 10 s", "2 h 5 min". */
export function seconds(value) {
  if (!known(value)) return NONE;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 60) return `${Math.round(value)} s`;
  if (value < 3600) return pair(value, 60, "min", 1, "s");
  if (value < 86400) return pair(value, 3600, "h", 60, "min");
  return pair(value, 86400, "d", 3600, "h");
}

function pair(value, large, largeName, small, smallName) {
  const whole = Math.floor(value / large), rest = Math.round((value % large) / small);
  return rest ? `${whole} ${largeName} ${rest} ${smallName}` : `${whole} ${largeName}`;
}

/** Whole numbers with thin spaces between thousands. */
export function count(value) {
  return known(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f") : NONE;
}

/** Lengths in tokens: "32k", "4096" stays "4.1k". */
export function tokens(value) {
  if (!known(value)) return NONE;
  if (value < 1000) return String(value);
  if (value % 1024 === 0) return `${value / 1024}k`;
  return value < 10000 ? `${(value / 1000).toFixed(1)}k` : `${Math.round(value / 1000)}k`;
}

/** Tokens per second. */
export function rate(value) {
  if (!known(value) || value <= 0) return NONE;
  return value >= 100 ? count(value) : value.toFixed(1);
}

export function percent(share) {
  return known(share) ? `${(share * 100).toFixed(share >= 0.0995 ? 0 : 1)} %` : NONE;
}

/** Time of day of a Unix time in seconds. */
export function clock(unix) {
  return known(unix) ? new Date(unix * 1000).toLocaleTimeString([], { hour12: false }) : NONE;
}

/** "just now", "12 min ago", "3 d ago", for a Unix time in milliseconds. */
export function ago(then, now = Date.now()) {
  const past = (now - then) / 1000;
  if (past < 45) return "just now";
  if (past < 3570) return `${Math.max(1, Math.round(past / 60))} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  return `${Math.round(past / 86400)} d ago`;
}
