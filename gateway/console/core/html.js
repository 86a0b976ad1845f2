// Preact, its hooks, htm and signals under one roof: every module of the page takes them from here.
import { Fragment, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { Fragment, render };
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "../vendor/signals.js";

/** Templates of elements. Texts in `${}` become text nodes: whatever a model says, it is no markup. */
export const html = htm.bind(h);
