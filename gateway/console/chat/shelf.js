// Where conversations are kept: this browser's IndexedDB, because pictures are too large for anything smaller.
// Without it (a private window may forbid it) they live as long as the page.

const NAME = "roundhouse", STORE = "conversations";
const fallback = new Map();
let opened = null;

/** @returns {Promise<IDBDatabase | null>} */
function open() {
  opened ??= new Promise((resolve) => {
    let request;
    try { request = indexedDB.open(NAME, 1); } catch { return resolve(null); }
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
    return undefined;
  });
  return opened;
}

async function inStore(mode, act, without) {
  const database = await open();
  if (database === null) return without();
  return new Promise((resolve, reject) => {
    const request = act(database.transaction(STORE, mode).objectStore(STORE));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export const readAll = () => inStore("readonly", (store) => store.getAll(), () => [...fallback.values()]);
export const keep = (conversation) => inStore("readwrite", (store) => store.put(conversation), () => fallback.set(conversation.id, conversation));
export const remove = (id) => inStore("readwrite", (store) => store.delete(id), () => fallback.delete(id));
