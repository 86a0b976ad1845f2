// Style sheets that belong to one page: fetched with it, and there before it is drawn.

/** Resolves when the sheet beside a module is in force. @param {string} name @param {string} base the module's `import.meta.url` */
export function sheet(name, base) {
  const href = new URL(name, base).href;
  if (document.querySelector(`link[href="${href}"]`)) return Promise.resolve();
  const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href });
  return new Promise((resolve) => {
    link.onload = link.onerror = () => resolve();
    document.head.append(link);
  });
}
