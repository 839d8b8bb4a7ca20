// Keeps all files of the export for use without a network; an export of another model has another version.

const VERSION = "$version";
const FILES = "./files.json";

self.addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const names = await (await fetch(FILES, { cache: "no-store" })).json();
    const cache = await caches.open(VERSION);
    await cache.addAll(names.map((name) => new Request(name, { cache: "no-cache" })));
    await self.skipWaiting();
  })());
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    // Other exports on the same host have their own caches: only those of this place are old.
    const prefix = VERSION.slice(0, VERSION.lastIndexOf("-") + 1);
    for (const name of await caches.keys()) if (name !== VERSION && name.startsWith(prefix)) await caches.delete(name);
    await self.clients.claim();
  })());
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  event.respondWith((async () => {
    const cache = await caches.open(VERSION);
    return await cache.match(event.request, { ignoreSearch: true }) ?? fetch(event.request);
  })());
});
