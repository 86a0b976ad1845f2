// The last hour in columns: the snapshot's, and samples of our own from the gauges at the same interval.
import { effect, signal, untracked } from "../vendor/preact.js";
import { gauges, history } from "./server.js";

const HOUR = 3600; // seconds
const MODEL_COLUMNS = ["tokens_per_second", "ttft", "waiting", "in_use"];
const DEVICE_COLUMNS = ["promised", "others", "process"];

/** A History of docs/console-api.md, that grows; null before the first snapshot. */
export const series = signal(null);

effect(() => { series.value = history.value; });

effect(() => {
  const now = gauges.value;
  const past = untracked(() => series.value);
  if (!now || !past || now.time - (past.times.at(-1) ?? 0) < past.every) return;
  series.value = grown(past, now);
});

/** Pure. */
export function grown(past, now) {
  const from = past.times.findIndex((time) => time > now.time - HOUR);
  const cut = (column) => column.slice(Math.max(0, from));
  const length = cut(past.times).length;
  const column = (before, value) => [...(before ? cut(before) : Array(length).fill(null)), value ?? null];
  const models = {};
  const current = new Map(now.models.map((model) => [model.id, model]));
  for (const id of new Set([...Object.keys(past.models), ...current.keys()])) {
    models[id] = Object.fromEntries(MODEL_COLUMNS.map((name) => [name, column(past.models[id]?.[name], current.get(id)?.[name])]));
  }
  const devices = {};
  for (const device of now.devices ?? []) {
    const before = past.devices[device.device];
    const held = new Map(device.models.map((model) => [model.id, model.bytes]));
    const ids = new Set([...Object.keys(before?.models ?? {}), ...held.keys()]);
    devices[device.device] = {
      ...Object.fromEntries(DEVICE_COLUMNS.map((name) => [name, column(before?.[name], device[name])])),
      models: Object.fromEntries([...ids].map((id) => [id, column(before?.models[id], held.get(id))])),
    };
  }
  return { every: past.every, times: [...cut(past.times), now.time], devices, models };
}
