// Light, dark, or as the system has it.
import { effect } from "./html.js";
import { stored } from "./stored.js";

const SAVED = "theme"; // theme.js reads the same name before the page is drawn

export const theme = stored(SAVED, "auto");

effect(() => {
  const chosen = theme.value;
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
});
