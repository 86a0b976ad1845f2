// Before the first paint: the theme that was chosen here, or the system's. A classic script, because a module would come
// after it.
(() => {
  let chosen = null;
  try { chosen = JSON.parse(localStorage.getItem("roundhouse.theme")); } catch { /* storage is forbidden: the system's */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
